"""The container image: what it is made of, and the daemon in it, on a real dockerd."""

from __future__ import annotations

import json
import re
import shlex
import tarfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

import gpuwarden
from gpuwarden_deb.paths import REQUIREMENTS, ROOT, WORK
from support.docker import DOCKER, TIGHT, Docker, image_file, injected, require_docker, wait
from support.fake_nvml_library import FakeNvml

pytestmark = DOCKER
MOST = 90_000_000
"""Bytes unpacked."""
PYTHON = "/opt/gpuwarden/bin/python3"
IMPORTS = """
import glob, importlib, os, ssl
for file in glob.glob("/usr/lib/python3.*/lib-dynload/*.so"):
    importlib.import_module(os.path.basename(file).split(".")[0])
for name in ("aiohttp", "bcrypt", "grpclib", "lightkube", "pynvml", "yaml", "sqlite3", "gpuwarden_collectors.kernel_log"):
    importlib.import_module(name)
print(len(ssl.create_default_context().get_ca_certs()))
"""


# --- the image


@pytest.fixture(scope="module")
def members() -> dict[str, tarfile.TarInfo]:
    return dict(_members())


def _members() -> Iterator[tuple[str, tarfile.TarInfo]]:
    require_docker()
    with tarfile.open(image_file()) as archive:
        (legacy,) = json.loads(archive.extractfile("manifest.json").read())  # type: ignore[union-attr]
        with tarfile.open(fileobj=archive.extractfile(legacy["Layers"][0])) as files:
            for member in files:
                yield f"/{member.name}", member


def test_it_is_small_and_has_no_package_manager_no_shell_and_nothing_that_raises_rights(
    members: dict[str, tarfile.TarInfo],
) -> None:
    assert sum(member.size for member in members.values()) < MOST
    programs = {name.rpartition("/")[2] for name in members if re.match(r"/usr/s?bin/.", name)}
    assert programs == {"gpuwarden", "python3.11", "stat"}
    assert not [name for name, member in members.items() if member.mode & 0o6000]
    assert not [name for name, member in members.items() if member.uid or member.gid]


def test_each_module_is_compiled_and_each_package_is_listed_for_scanners_with_its_licence(
    members: dict[str, tarfile.TarInfo],
) -> None:
    sources = [name for name in members if re.match("/(opt|usr/lib/python3).*[.]py$", name)]
    assert len(sources) > 1000
    assert [name for name in sources if _pyc(name) not in members] == []
    listed = {name.rpartition("/")[2] for name in members if name.startswith("/var/lib/dpkg/status.d/")} - {""}
    assert {"libc6", "python3.11", "libssl3", "ca-certificates"} <= listed
    documented = {
        name.split("/")[4]
        for name, member in members.items()
        if not member.isdir() and fnmatch(name, "/usr/share/doc/*")
    }
    assert listed <= documented | {"status.d"}
    locked = re.findall(r"^([\w.-]+)==", REQUIREMENTS.read_text(), re.MULTILINE)
    assert (
        len([name for name in members if name.endswith(".dist-info")]) > len(locked) - 3
    )  # but for those of other systems


def _pyc(name: str) -> str:
    folder, _, file = name.rpartition("/")
    return f"{folder}/__pycache__/{file.removesuffix('.py')}.cpython-311.pyc"


def test_nothing_in_it_names_a_folder_of_the_machine_that_built_it() -> None:
    require_docker()
    with tarfile.open(image_file()) as archive:
        (legacy,) = json.loads(archive.extractfile("manifest.json").read())  # type: ignore[union-attr]
        with tarfile.open(fileobj=archive.extractfile(legacy["Layers"][0])) as files:
            for member in files:
                data = files.extractfile(member).read() if member.isreg() else b""  # type: ignore[union-attr]
                assert str(WORK).encode() not in data, member.name
                assert f"{ROOT}/daemon".encode() not in data, member.name


def test_its_description_is_that_of_the_tree(docker: Docker, image: str) -> None:
    assert image == f"gpuwarden:{gpuwarden.__version__}"
    (found,) = json.loads(docker.command("image", "inspect", image))
    assert found["Config"]["Labels"]["org.opencontainers.image.version"] == gpuwarden.__version__
    assert found["Size"] < MOST + 1_000_000
    assert found["Config"]["Entrypoint"] == ["/opt/gpuwarden/bin/gpuwarden"]


@pytest.mark.slow
def test_every_module_of_its_python_loads_and_the_tools_that_collectors_run_are_there(
    docker: Docker, image: str
) -> None:
    with docker.start(image, "-c", IMPORTS, flags=["--entrypoint", PYTHON, *TIGHT]) as container:
        wait(lambda: not container.state()["Running"], "the modules to load", container.logs)
        assert int(container.logs()) > 100  # certificates
        assert container.state()["ExitCode"] == 0
    with docker.start(image, "-f", "/", flags=["--entrypoint", "/usr/bin/stat", *TIGHT]) as container:
        wait(lambda: not container.state()["Running"], "stat to end", container.logs)
        assert "overlayfs" in container.logs()


# --- the daemon in it


@pytest.mark.slow
@pytest.mark.parametrize("user", ["0:0", "991:991"])
def test_the_quick_start_prints_what_to_type_and_what_it_prints_works(docker: Docker, image: str, user: str) -> None:
    with docker.start(image, "run", "--simulate", "8", flags=["--user", user, *TIGHT]) as container:
        wait(lambda: "status --run-dir" in container.logs(), "the lines to type", container.logs)
        typed = [shlex.split(line) for line in container.logs().splitlines() if line.startswith("  docker exec ")]
        where = typed[0][-2:]
        container.wait_status("healthy", *where)
        assert all(words[:2] == ["docker", "exec"] and container.id.startswith(words[2]) for words in typed)
        for words in typed:
            assert docker.run(*words[1:]).returncode == 0
        container.wait_status("failure", *where)
        assert container.stop() == 0


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    """Flags for the run and state directories of a host."""
    made = {tmp_path / "run": "/run/gpuwarden", tmp_path / "state": "/var/lib/gpuwarden"}
    for folder in made:
        folder.mkdir()
    return [part for here, there in made.items() for part in ("--volume", f"{here}:{there}")]


@pytest.mark.slow
def test_with_the_drivers_library_it_reads_the_gpus_and_after_a_restart_knows_what_was(
    docker: Docker, image: str, folders: list[str], tmp_path: Path
) -> None:
    (tmp_path / "driver").mkdir()
    fake = FakeNvml.build(tmp_path / "driver")
    flags = [*TIGHT, "--cap-add", "SYSLOG", "--pid", "host", *injected(fake), *folders]
    with docker.start(image, flags=flags) as container:
        found = container.wait_status("healthy")
        assert len(found["gpus"]) == 8
        assert "8 of 8 GPUs present" in container.exec("gpuwarden", "status").stdout
        fake.reading(3, "ecc_uncorrected_volatile", 1)
        container.wait_status("failure")
        assert container.stop() == 0
        fake.clear()
        docker.command("start", container.id)
        container.wait_status("failure")  # latched: until the GPU is reset
        assert "ecc_uncorrectable" in container.exec("gpuwarden", "events").stdout
    assert (tmp_path / "run/job.sock").exists()
