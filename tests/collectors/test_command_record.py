"""What a command whose daemon was killed says of itself, with real processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest

from gpuwarden_collectors.slurm.command_record import RECORDED, CommandRecords, of_several
from gpuwarden_collectors.slurm.departing_facts import CommandOutcome
from support.job_world import until
from support.mounts import fill, tmpfs

PURPOSE = "aws/1", "slurm/7"

DAEMON = """
    import subprocess, sys, time
    from pathlib import Path
    from gpuwarden_collectors.slurm.command_record import RECORDED, CommandRecords
    with CommandRecords(Path(sys.argv[1])).begin("aws/1", "slurm/7") as record:
        if sys.argv[2:]:
            subprocess.Popen((*RECORDED, *sys.argv[2:]), stdin=record, stdout=subprocess.DEVNULL, start_new_session=True)
        print("begun", flush=True)
        time.sleep(600)
"""


@contextmanager
def killed(folder: Path, *command: str) -> Iterator[CommandRecords]:
    """A process that began a record, started the command if there is one, and was killed."""
    daemon = subprocess.Popen(
        [sys.executable, "-c", dedent(DAEMON), str(folder), *command], stdout=subprocess.PIPE, text=True
    )
    try:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == "begun\n"
        assert CommandRecords(folder).read(*PURPOSE) in (
            CommandOutcome.RUNNING,
            CommandOutcome.SUCCEEDED,
            CommandOutcome.UNKNOWN,
        )
    finally:
        daemon.kill()
        daemon.communicate()
    yield CommandRecords(folder)


def settled(records: CommandRecords) -> CommandOutcome:
    until(lambda: records.read(*PURPOSE) is not CommandOutcome.RUNNING, "the command to end")
    return records.read(*PURPOSE)


def test_a_command_that_was_never_started_is_known_as_such(tmp_path: Path) -> None:
    with killed(tmp_path / "records") as records:
        assert records.read(*PURPOSE) is CommandOutcome.NOT_STARTED


def test_a_command_outlives_its_daemon_and_keeps_its_outcome(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with killed(tmp_path / "records", "sh", "-c", f"read line <{gate}") as records:
        assert records.read(*PURPOSE) is CommandOutcome.RUNNING
        gate.write_text("go on\n")
        assert settled(records) is CommandOutcome.SUCCEEDED


@pytest.mark.parametrize("command", [("false",), ("sh", "-c", "kill -KILL $$"), ("no-such-program",)])
def test_the_outcome_of_a_command_that_failed_is_not_known(tmp_path: Path, command: tuple[str, ...]) -> None:
    with killed(tmp_path / "records", *command) as records:
        assert settled(records) is CommandOutcome.UNKNOWN


def test_a_command_that_was_killed_with_its_daemon_is_not_known(tmp_path: Path) -> None:
    with killed(tmp_path / "records", "sh", "-c", f'echo $PPID >"{tmp_path}/pid"; exec sleep 600') as records:
        pid = tmp_path / "pid"
        until(lambda: pid.exists() and pid.read_text(), "the command to begin")
        os.killpg(int(pid.read_text()), signal.SIGKILL)
        assert settled(records) is CommandOutcome.UNKNOWN


def test_the_command_reads_nothing_of_its_record_and_its_exit_status_is_passed_on(tmp_path: Path) -> None:
    with CommandRecords(tmp_path / "records").begin(*PURPOSE) as record:
        done = subprocess.run((*RECORDED, "sh", "-c", "cat; exit 3"), stdin=record, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, b"", b"")


def test_a_new_record_replaces_the_one_before_and_no_other(tmp_path: Path) -> None:
    records = CommandRecords(tmp_path / "records")
    for purpose in (PURPOSE, ("aws/2", "slurm/7")):
        with records.begin(*purpose) as record:
            subprocess.run((*RECORDED, "true"), stdin=record, check=True)
    with records.begin(*PURPOSE):
        assert records.read(*PURPOSE) is CommandOutcome.RUNNING
    assert records.read(*PURPOSE) is CommandOutcome.NOT_STARTED
    assert records.read("aws/2", "slurm/7") is CommandOutcome.SUCCEEDED


def test_of_several_commands_nothing_is_known(tmp_path: Path) -> None:
    records = CommandRecords(tmp_path / "records")
    with records.begin(*PURPOSE) as record:
        assert record is not None
        of_several(record)
    assert records.read(*PURPOSE) is CommandOutcome.UNKNOWN


def test_old_records_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    records = CommandRecords(folder)
    with records.begin("aws/1", "slurm/1"):
        pass
    [old] = folder.iterdir()
    os.utime(old, (0, 0))
    with records.begin(*PURPOSE):
        pass
    assert len(list(folder.iterdir())) == 1
    assert not old.exists()


def test_where_no_record_can_be_made_an_older_one_counts_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "records").write_text("a file where the folder belongs")
    records = CommandRecords(tmp_path / "records")
    with records.begin(*PURPOSE) as record:
        assert record is None
    assert records.read(*PURPOSE) is CommandOutcome.UNKNOWN


@pytest.mark.disposable
def test_a_command_keeps_its_record_on_a_file_system_that_filled_up_behind_it(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "64k") as disk:
        records = CommandRecords(disk / "records")
        with records.begin(*PURPOSE) as record:
            fill(disk)
            subprocess.run((*RECORDED, "true"), stdin=record, check=True)
        assert records.read(*PURPOSE) is CommandOutcome.SUCCEEDED
        shutil.rmtree(disk / "records")
        fill(disk)
        with records.begin(*PURPOSE) as record:
            assert record is None
        assert records.read(*PURPOSE) is CommandOutcome.UNKNOWN
