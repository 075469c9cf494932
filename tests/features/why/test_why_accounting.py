"""The program of docs/use/why.md that writes into Slurm's accounting, beside stand-ins for Slurm's commands."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from gpuwarden.features.why.model import Cause
from gpuwarden.notify.messages import Origin, message
from support.jobs_ended import job_ended

pytestmark = pytest.mark.needs("jq")
PAGE = Path(__file__).parents[3] / "docs/use/why.md"


def written(folder: Path, name: str, comment: str) -> str:
    """Return what `sacctmgr` was called with. `comment`: what accounting has for the job."""
    called = folder / "called"
    for program, does in {"sacct": f'echo "{comment}"', "sacctmgr": f'printf "%s\\n" "$@" >{called}'}.items():
        (folder / program).write_text(f"#!/bin/sh\n{does}\n")
        (folder / program).chmod(0o755)
    script = PAGE.read_text().partition("```\n#!/bin/sh\n")[2].partition("```")[0]
    made = message(job_ended(name, Cause.HARDWARE), Origin(node="n1", mode="enforce", boot_id="b"), names=True)
    assert script
    assert made is not None
    path = f"{folder}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", script],
        input=made[1].body,
        env={"PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return called.read_text() if called.exists() else ""


def test_one_line_is_written_where_the_comment_is_empty(tmp_path: Path) -> None:
    assert written(tmp_path, "slurm/4711", "").splitlines() == [
        "-i", "modify", "job", "where", "jobid=4711", "set", "AdminComment=gpuwarden: hardware xid.79 on n1, likely",
    ]  # fmt: skip


@pytest.mark.parametrize("comment", ["JS1:H4sIAJ", "gpuwarden: hardware xid.79 on n2, certain"])
def test_another_text_is_left_alone(tmp_path: Path, comment: str) -> None:
    assert written(tmp_path, "slurm/4711", comment) == ""


@pytest.mark.parametrize("name", ["container/0123456789ab", "session/4711", "pod/a/b"])
def test_what_is_no_job_of_slurm_is_none_there(tmp_path: Path, name: str) -> None:
    assert written(tmp_path, name, "") == ""
