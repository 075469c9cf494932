"""What a training image needs in order to have it: Python 3.9 and nothing else."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from support.job_world import JOB

FILES = sorted(JOB.rglob("*.py"))
PACKAGE = [path for path in FILES if path.parent.name == "gpuwarden_job"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_is_written_in_python_3_9(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 9))


@pytest.mark.parametrize("minor", [9, 10])
def test_it_runs_on_the_oldest_interpreters(minor: int, tmp_path: Path) -> None:
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    python = min(versions.glob(f"3.{minor}.*/bin/python"), default=None)
    if python is None:
        pytest.skip(f"pyenv has no Python 3.{minor} here: pyenv install 3.{minor}")
    story = "from gpuwarden_job import *; s = CheckpointStore('x', ranks=Ranks()); s.save(1, 2); print(s.load_latest().step)"
    done = subprocess.run(
        [python, "-B", "-c", story],
        env={"PYTHONPATH": str(JOB)}, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("2\n", "")


@pytest.mark.parametrize("path", PACKAGE, ids=lambda path: path.name)
def test_it_imports_the_standard_library_only(path: Path) -> None:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} - sys.stdlib_module_names <= {"gpuwarden_job"}


def test_its_distribution_declares_the_same() -> None:
    project = tomllib.loads((JOB / "pyproject.toml").read_text())["project"]
    assert (project["name"], project["requires-python"], project["dependencies"]) == ("gpuwarden-job", ">=3.9", [])
