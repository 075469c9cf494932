"""The container image: what it is made of, and the daemon in it, on a real dockerd."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

import gpuwarden
from support.docker import BASE, DOCKER, TIGHT, Docker, injected, wait
from support.fake_nvml_library import FakeNvml

pytestmark = DOCKER
MOST = 90_000_000
"""Bytes unpacked that may come on top of Debian."""
PYTHON = "/opt/gpuwarden/bin/python3"
IMPORTS = """
import importlib, ssl
for name in ("aiohttp", "bcrypt", "grpclib", "lightkube", "pynvml", "yaml", "sqlite3", "gpuwarden_collectors.kernel_log"):
    importlib.import_module(name)
print(len(ssl.create_default_context().get_ca_certs()))
"""


# --- the image


@pytest.mark.slow
def test_its_description_is_that_of_the_tree_and_it_adds_little_to_debian(docker: Docker, image: str) -> None:
    whole, base = json.loads(docker.command("image", "inspect", image, BASE))
    assert whole["Config"]["Labels"]["org.opencontainers.image.version"] == gpuwarden.__version__
    assert whole["Config"]["Entrypoint"] == ["/opt/gpuwarden/bin/gpuwarden"]
    assert whole["Size"] - base["Size"] < MOST


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "arguments", "printed"),
    [
        (PYTHON, ["-c", IMPORTS], r"[1-9]\d\d\n"),  # certificates
        ("/usr/bin/stat", ["-f", "/"], r"(?s).*overlayfs.*"),
        ("/usr/bin/find", ["/", "-xdev", "-type", "f", "-perm", "/6000"], ""),  # nothing raises rights
    ],
    ids=["modules", "stat", "rights"],
)
def test_what_the_daemon_calls_is_in_it_and_nothing_that_raises_rights(
    docker: Docker, image: str, program: str, arguments: list[str], printed: str
) -> None:
    with docker.start(image, *arguments, flags=["--entrypoint", program, *TIGHT]) as container:
        wait(lambda: not container.state()["Running"], f"{program} to end", container.logs)
        assert container.state()["ExitCode"] == 0, container.logs()
        assert re.fullmatch(printed, container.logs())


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
        status = container.wait_status("healthy")
        assert len(status["gpus"]) == 8
        assert "8 of 8 GPUs present" in container.exec("gpuwarden", "status").stdout
        fake.reading(3, "ecc_uncorrected_volatile", 1)
        container.wait_status("failure")
        assert container.stop() == 0
        fake.clear()
        docker.command("start", container.id)
        container.wait_status("failure")  # latched: until the GPU is reset
        assert "ecc_uncorrectable" in container.exec("gpuwarden", "events").stdout
    assert (tmp_path / "run/job.sock").exists()
