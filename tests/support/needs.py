"""What a test needs of its host and does not find: it is skipped, and the end of the run shows how to run it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from gpuwarden_collectors.host import FIRST_PIDS

MARKS = ("disposable", "slurm")
"""By which tests are chosen; others are named by their files."""
TORCH = ("tests/job/test_torch", "tests/job/test_forged_files")
"""What the files begin with that have an environment of their own."""
PTXAS = "ptxas is not installed"
"""How the reason begins of what needs `make ptxas`."""
HELM = "helm is not installed"
"""How the reason begins of what needs `make helm`."""


PACKAGES = {
    "chromium": "chromium", "dbus-daemon": "dbus-daemon", "git": "git", "ip": "iproute2", "jq": "jq", "mount": "mount", "ps": "procps", "setpriv": "util-linux", "strace": "strace", "systemd-analyze": "systemd", "zstd": "zstd",
}  # fmt: skip
"""Debian's package of each command that single tests need."""


def needed(command: str) -> str:
    """Return the path of the command, or skip or fail the test if this host lacks it."""
    return shutil.which(command) or unmet(f"needs {command} (apt-get install {PACKAGES[command]})")


def root_rights() -> None:
    """Require root, who alone becomes another user, gives files away, and makes devices and namespaces. A test has it as the mark `needs("root")`, too."""
    if os.geteuid() != 0:
        unmet("needs root (sudo make test)")


def systemd_analyze() -> None:
    """Require the command, and the folder that it makes where systemd runs, or root makes it."""
    needed("systemd-analyze")
    if os.geteuid() != 0 and not Path("/run/systemd").is_dir():
        unmet("needs /run/systemd, for systemd-analyze (a host that systemd has booted, or root)")


def checkout_of_root() -> None:
    """Require that nobody but root can change this checkout, which a Python that runs from it loads."""
    if os.geteuid() != 0 or Path(__file__).stat().st_uid != 0:
        unmet("needs root, in a checkout that is root's")


def python_of_all() -> None:
    """Require a Python that another user may run: not one in a folder of root's."""
    command = (sys.executable, "-c", "import asyncio")
    try:
        runs = not subprocess.run(command, user=65534, capture_output=True, timeout=60, check=False).returncode
    except PermissionError:
        runs = False
    if not runs:
        unmet("needs a Python that every user may run (make test PYTHON=/usr/bin/python3)")


def host_pid_namespace() -> None:
    """Require the PID namespace of the host, in which processes have the kernel's numbers; a container has another."""
    if Path("/proc/self/ns/pid").stat().st_ino != FIRST_PIDS:
        unmet("needs the PID namespace of the host (docker run --pid=host)")


def unmet(reason: str) -> NoReturn:
    """Ends this test: it is skipped. In CI, where nothing may be missing, it fails."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def not_run(reports: Iterable[pytest.TestReport | pytest.CollectReport]) -> Iterator[str]:
    """Yield a line per reason for skipped tests, with their number and the command that runs them."""
    groups = defaultdict(list)
    for report in reports:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        groups[reason.removeprefix("Skipped: ").replace("\n", " ")].append(report)
    for reason, skipped in sorted(groups.items(), key=lambda group: -len(group[1])):
        tests = "1 test" if len(skipped) == 1 else f"{len(skipped)} tests"
        to_run = "" if reason.startswith("needs ") else f"; to run: {_command(reason, skipped)}"
        yield f"{tests} skipped: {reason}{to_run}"


def _command(reason: str, skipped: Sequence[pytest.TestReport | pytest.CollectReport]) -> str:
    mark = next((mark for mark in MARKS if all(_has(report, mark) for report in skipped)), "")
    files = dict.fromkeys(report.nodeid.partition("::")[0] for report in skipped)
    if all(file.startswith(TORCH) for file in files):
        return "make test-torch"
    for begin, target in ((PTXAS, "ptxas"), (HELM, "helm")):
        if reason.startswith(begin):
            return f"make {target} pytest PYTEST='{' '.join(files)}'"
    rights = "sudo " if os.geteuid() and "root" in reason else ""
    host = "GPUWARDEN_TEST_HOST=disposable " if "GPUWARDEN_TEST_HOST" in reason else ""
    return f"{rights}{host}make pytest PYTEST='{f'-m {mark}' if mark else ' '.join(files)}'"


def _has(report: pytest.TestReport | pytest.CollectReport, mark: str) -> bool:
    """Return True if a test has this mark. Its folders are among its keywords, too: of a test in one of that name it is not known."""
    return mark in getattr(report, "keywords", ()) and mark not in Path(report.nodeid.partition("::")[0]).parts
