"""What a test needs of its host and does not find: it is skipped, and the end of the run shows how to run it."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NoReturn

import pytest

MARKS = ("disposable", "slurm")
"""By which tests are chosen; others are named by their files."""
TORCH = "tests/job/test_torch"
"""What the files begin with that have an environment of their own."""
PTXAS = "ptxas is not installed"
"""How the reason begins of what needs `make ptxas`."""
HELM = "helm is not installed"
"""How the reason begins of what needs `make helm`."""


def unmet(reason: str) -> NoReturn:
    """Ends this test: it is skipped. In CI, where nothing may be missing, it fails."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def not_run(reports: Iterable[pytest.TestReport | pytest.CollectReport]) -> Iterator[str]:
    """Of the reports of what was skipped: a line per reason, with how many it is and the command that runs them."""
    groups = defaultdict(list)
    for report in reports:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        groups[reason.removeprefix("Skipped: ").replace("\n", " ")].append(report)
    for reason, skipped in sorted(groups.items(), key=lambda group: -len(group[1])):
        yield f"{len(skipped)} skipped: {reason}; to run: {_command(reason, skipped)}"


def _command(reason: str, skipped: Sequence[pytest.TestReport | pytest.CollectReport]) -> str:
    marks = (mark for mark in MARKS if all(mark in getattr(report, "keywords", ()) for report in skipped))
    mark = next(marks, "")
    files = dict.fromkeys(report.nodeid.partition("::")[0] for report in skipped)
    if all(file.startswith(TORCH) for file in files):
        return "make test-torch"
    for begin, target in ((PTXAS, "ptxas"), (HELM, "helm")):
        if reason.startswith(begin):
            return f"make {target} pytest PYTEST='{' '.join(files)}'"
    rights = "sudo " if os.geteuid() and "root" in reason else ""
    host = "GPUWARDEN_TEST_HOST=disposable " if mark == "disposable" else ""
    return f"{rights}{host}make pytest PYTEST='{f'-m {mark}' if mark else ' '.join(files)}'"
