"""What would go to a package index: the source distributions and wheels of gpuwarden and gpuwarden-job, and what uvx makes of the wheel."""

from __future__ import annotations

import email.message
import email.parser
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuwarden.health.runbooks import RUNBOOKS
from gpuwarden_deb import environment
from gpuwarden_deb.build import work_folder
from gpuwarden_deb.host import this_host
from gpuwarden_deb.paths import ROOT
from support.daemons import PATIENCE
from support.packages import require_build

pytestmark = pytest.mark.xdist_group("package")


@dataclass(frozen=True, slots=True)
class Built:
    """Two wheels, two source distributions, and the folder with the wheels of gpuwarden's libraries."""

    folder: Path
    libraries: Path

    def wheel(self, name: str) -> Path:
        (file,) = self.folder.glob(f"{name}-[0-9]*.whl")
        return file

    def metadata(self, name: str) -> email.message.Message:
        with zipfile.ZipFile(self.wheel(name)) as wheel:
            (path,) = (entry for entry in wheel.namelist() if entry.endswith("METADATA"))
            return email.parser.Parser().parsestr(wheel.read(path).decode())

    def source(self, name: str) -> set[str]:
        (file,) = self.folder.glob(f"{name}-[0-9]*.tar.gz")
        with tarfile.open(file) as archive:
            return {entry.partition("/")[2] for entry in archive.getnames()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    require_build()
    with work_folder():  # as the package's own build
        tools = environment.tools()
        libraries = environment.wheels(tools, this_host().python)
    folder = tmp_path_factory.mktemp("dist")
    for project in (ROOT, ROOT / "job"):
        environment.run(str(tools), "-m", "hatchling", "build", "--directory", str(folder), cwd=project)
    return Built(folder, libraries)


@pytest.mark.slow
def test_the_source_has_what_a_wheel_is_made_of_and_no_strays(built: Built) -> None:
    of_daemon = built.source("gpuwarden")
    assert {path.partition("/")[0] for path in of_daemon} == {
        "daemon", "collectors", "systemd", "README.md", "LICENSE", "CHANGELOG.md", "hatch_build.py", "pyproject.toml", "PKG-INFO", ".gitignore",
    }  # fmt: skip
    assert not [
        path for path in of_daemon if "tests" in path.split("/") or (path.endswith("README.md") and "/" in path)
    ]
    assert {path.partition("/")[0] for path in built.source("gpuwarden_job")} == {
        "gpuwarden_job", "examples", "README.md", "LICENSE", "pyproject.toml", "PKG-INFO", ".gitignore",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["gpuwarden", "gpuwarden_job"])
def test_the_metadata_is_complete_and_of_a_version_that_indexes_take(built: Built, name: str) -> None:
    metadata = built.metadata(name)
    assert metadata["Metadata-Version"] == "2.4"
    assert metadata["License-Expression"] == "Apache-2.0"
    for field in ("Author", "Keywords", "Classifier", "Project-URL", "Requires-Python"):
        assert metadata[field], field
    with zipfile.ZipFile(built.wheel(name)) as wheel:
        (licence,) = (entry for entry in wheel.namelist() if entry.endswith("licenses/LICENSE"))
        assert wheel.read(licence) == (ROOT / "LICENSE").read_bytes()


def test_the_readme_of_the_wheel_has_no_link_that_needs_a_checkout(built: Built) -> None:
    """The address of the tree is in one place, with that of the runbooks below it."""
    shown, written = built.metadata("gpuwarden").get_payload(), (ROOT / "README.md").read_text()
    assert isinstance(shown, str)
    links = re.findall(r"\]\(([^)\s]+)\)", shown)
    assert len(links) == len(re.findall(r"\]\(([^)\s]+)\)", written)) > 30
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    repository = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
    assert RUNBOOKS.startswith(f"{repository}/blob/main/")
    ours = [link.removeprefix(f"{repository}/").split("/", 2) for link in links if link.startswith(repository)]
    assert all((ROOT / path.partition("#")[0]).exists() for _, _, path in ours)
    assert {kind for kind, _, path in ours if path.endswith((".svg", ".png"))} == {"raw"}


@pytest.fixture
def uvx(built: Built, tmp_path: Path) -> list[str]:
    """Return the command of a computer that has never seen gpuwarden, and has no index."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent))
    assert uv is not None, "uv is in the dependency group dev: make .venv/.dev"
    python = str(this_host().python)
    return [
        uv, "tool", "run", "--no-config", "--offline", "--no-index", "--python", python, "--cache-dir", str(tmp_path / "cache"),
        "--find-links", str(built.libraries), "--from", str(built.wheel("gpuwarden")), "gpuwarden",
    ]  # fmt: skip


@pytest.fixture
def started(uvx: list[str], tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    folders = ("--listen", "127.0.0.1:0", "--run-dir", str(tmp_path / "run"), "--state-dir", str(tmp_path / "state"))
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([*uvx, "run", "--simulate", "8", *folders], stdout=log, stderr=log)
    yield process
    process.terminate()
    assert process.wait(PATIENCE) == 0, (tmp_path / "log").read_text()


@pytest.mark.slow
def test_uvx_runs_the_daemon_and_its_installation_is_no_service(
    uvx: list[str], started: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    end = time.monotonic() + PATIENCE
    status = ""
    while "8 of 8 GPUs present" not in status:
        assert time.monotonic() < end, f"{status}{(tmp_path / 'log').read_text()}"
        asked = [*uvx, "status", "--run-dir", str(tmp_path / "run")]
        status = subprocess.run(asked, capture_output=True, text=True, timeout=120, check=False).stdout
    assert "SIMULATED" in status
    shown = subprocess.run(
        [*uvx, "service", "show", "--root", str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert "etc/systemd/system/gpuwarden.service: not installed" in shown.stdout, shown.stderr
    assert "install would be refused" in shown.stdout
    refused = subprocess.run(
        [*uvx, "service", "install", "--root", str(tmp_path / "root")], capture_output=True, text=True, timeout=120, check=False
    )  # fmt: skip
    expected = (64, "cannot be started by a unit") if os.geteuid() == 0 else (77, "run as root")
    assert refused.returncode == expected[0], refused.stderr
    assert expected[1] in refused.stderr
    assert not (tmp_path / "root").exists()
