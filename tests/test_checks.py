"""The commands that check this tree: what fails makes them fail, and what does not run is listed with what runs it."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from support.needs import unmet

ROOT = Path(__file__).parent.parent
SUITE = """
from pathlib import Path
import pytest

@pytest.mark.xdist_group("slurm")
def test_that_is_broken():
    assert not "broken"

def test_that_fails_beside_others_and_passes_alone():
    marker = Path(__file__).with_name("has-run")
    before = marker.exists()
    marker.touch()
    assert before
"""
NEEDS_A_DISPOSABLE_HOST = (
    "collectors/test_kernel_log_device",
    "runtime/test_daemon_disposable",
    "ledger/test_ledger_errors",
)


def pytest_by_make(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`make pytest` as a person calls it, in the environment that these tests run in, which is not set up again."""
    if not shutil.which("make"):
        unmet("no make: apt-get install make")
    hidden = ("PYTEST_", "GPUWARDEN_", "MAKE", "CI")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    command = ("make", "--no-print-directory", f"--old-file={sys.prefix}/.dev", "pytest", f"VENV={sys.prefix}")
    return subprocess.run(
        [*command, f"PYTEST={' '.join(options)}"], cwd=ROOT, env={**kept, **environment},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_an_environment_that_exists_is_not_made_again_by_another_python(tmp_path: Path) -> None:
    if not shutil.which("make"):
        unmet("no make: apt-get install make")
    environment, made, other = tmp_path / "venv", tmp_path / "made", tmp_path / "python3"
    (environment / "bin").mkdir(parents=True)
    for program in (environment / "bin/python", environment / "bin/pip"):
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    other.write_text(f'#!/bin/sh\n[ "$3" = --help ] || echo "$*" > {made}\n')
    other.chmod(0o755)
    run = partial(subprocess.run, cwd=ROOT, capture_output=True, timeout=300, check=True)
    command = ("make", f"VENV={environment}", f"PYTHON={other}", f"{environment}/.run")
    run(command)
    assert not made.exists()
    (environment / ".run").unlink()
    (environment / "bin/python").unlink()
    run(command)
    assert made.read_text() == f"-m venv {environment}\n"


@pytest.mark.slow
def test_a_failure_in_an_xdist_group_fails_the_command_also_beside_one_that_passes_alone(tmp_path: Path) -> None:
    """A second run of what failed lost the first, whose id ends in the name of its group, and was green for the other."""
    suite = tmp_path / "test_suite.py"
    suite.write_text(SUITE)
    done = pytest_by_make(PYTEST_ADDOPTS=f"-c pyproject.toml --rootdir=. -o cache_dir={tmp_path}/cache {suite}")
    assert "2 failed" in done.stdout
    assert done.returncode != 0, done.stdout


@pytest.mark.slow
def test_what_changes_its_host_is_one_line_with_how_many_and_the_command_that_runs_them(tmp_path: Path) -> None:
    files = [f"tests/{name}.py" for name in NEEDS_A_DISPOSABLE_HOST]
    done = pytest_by_make("-p no:cacheprovider", "-m disposable", *files)
    (line,) = [line for line in done.stdout.splitlines() if "skipped:" in line]
    assert re.fullmatch(
        r"\d\d tests skipped: .*GPUWARDEN_TEST_HOST is not 'disposable'.*; to run: "
        r"(sudo )?GPUWARDEN_TEST_HOST=disposable make pytest PYTEST='-m disposable'",
        line,
    )
    assert (done.returncode, "SKIPPED" in done.stdout) == (0, False)


@pytest.mark.slow
def test_the_tests_with_pytorch_are_one_line_too_with_their_own_command() -> None:
    if importlib.util.find_spec("torch") is not None:
        unmet("PyTorch is installed in this environment, so that nothing of it is skipped")
    done = pytest_by_make("-p no:cacheprovider", *(str(path) for path in ROOT.glob("tests/job/test_torch*.py")))
    (line,) = [line for line in done.stdout.splitlines() if "skipped:" in line]
    assert re.fullmatch(r"1 test skipped: PyTorch is not installed: .*; to run: make test-torch", line)
