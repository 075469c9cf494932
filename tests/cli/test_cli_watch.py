"""`gpuwarden watch`: on a terminal, over a pipe, over a daemon that is away."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.cli.watch_text import Known, screen
from gpuwarden.health.model import NODE, Health, Severity
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden.publish.status import status
from support.commands import COMMAND, environment, gpuwarden
from support.control_server import refusal, result, serving
from support.daemons import PATIENCE, FakeHost
from support.prometheus import wait
from support.snapshots import UPTIME, at, finding, missing, slot, snapshot
from support.terminal import CTRL_C, on_a_terminal


def document(shown: Snapshot, now: float = UPTIME + 3) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(status(shown, at(now))))
    return made


class Watching:
    """`gpuwarden watch` with its output in a file."""

    def __init__(self, process: subprocess.Popen[bytes], file: Path) -> None:
        self._process = process
        self._file = file

    def blocks(self) -> list[str]:
        """Return the printed blocks without their times."""
        return [block.partition("\n")[2].rstrip() for block in self._file.read_text().split("== ")[1:]]

    def wait_block(self, number: int, text: str) -> None:
        wait(lambda: text in "".join(self.blocks()[number : number + 1]), f"{text!r} in block {number}", self._file)

    def end(self, by: signal.Signals) -> int:
        """End the command by this signal, and return its exit code."""
        self._process.send_signal(by)
        return self._process.wait(PATIENCE)


@contextmanager
def watching(folder: Path, *words: str | Path, command: tuple[str, ...] = COMMAND) -> Iterator[Watching]:
    file = folder / "watched"
    with (
        file.open("wb") as stdout,
        (folder / "errors").open("wb") as stderr,
        subprocess.Popen(
            [*command, "watch", "--run-dir", str(folder / "run"), *map(str, words)],
            env=environment(folder), stdout=stdout, stderr=stderr,
        ) as process,
    ):  # fmt: skip
        try:
            yield Watching(process, file)
        finally:
            process.kill()


@pytest.mark.slow
def test_on_a_terminal_a_fault_is_shown_and_a_daemon_that_hangs_or_dies_is_reported_and_waited_for(
    tmp_path: Path,
) -> None:
    host = FakeHost(tmp_path, gpus=2)
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        with on_a_terminal("watch", "--run-dir", host.run_dir, temporary=tmp_path, columns=70, rows=24) as terminal:
            terminal.wait_shows("node7 is HEALTHY")
            host.xid(1, 95)
            lines = terminal.wait_shows("node7 is FAILURE: xid", "GPU 1 (0000:28:00.0)")
            assert max(map(len, lines)) <= 70
            terminal.resize(40, 60)
            narrow = terminal.wait_shows("node7 is FAILURE: xid", "ends when the GPU was reset, the node\n")
            assert 24 < len(narrow) <= 59
            assert max(map(len, narrow)) <= 40
            terminal.resize(200, 40)
            daemon.process.send_signal(signal.SIGSTOP)
            terminal.wait_shows("NO RESPONSE since", "has not responded")
            daemon.process.send_signal(signal.SIGCONT)
            terminal.wait_shows("node7 is FAILURE: xid")
            daemon.kill()
            terminal.wait_shows("NO RESPONSE since", "no daemon answers at", "node7 is FAILURE: xid")
            with host.daemon():
                terminal.wait_shows("the daemon was restarted", "node7 is FAILURE: xid")
                terminal.type(CTRL_C)
                assert terminal.wait_ended() == 2


def test_over_a_pipe_each_change_is_a_block_and_ages_and_readings_are_none(tmp_path: Path) -> None:
    healthy, failing = snapshot(2), missing(snapshot(2), 1)
    responses = [document(healthy)]
    with watching(tmp_path, "--interval", "200ms") as watch:
        watch.wait_block(0, "NO RESPONSE since")
        with serving(tmp_path / "run", lambda _: result(responses[-1])) as asked:
            watch.wait_block(1, "gpu-node01 is HEALTHY")
            hotter = document(healthy, UPTIME + 9)
            hotter["gpus"][0]["readings"]["temperature"] += 1
            responses.append(hotter)
            count = len(asked)
            wait(lambda: len(asked) > count + 3, "three more questions")
            responses.append(document(failing))
            watch.wait_block(2, "gpu-node01 is FAILURE\nmay not take work")
            assert watch.end(signal.SIGTERM) == 2
        assert len(watch.blocks()) == 3
    assert (tmp_path / "errors").read_text() == ""


@pytest.mark.parametrize(("health", "by", "code"), [("warning", signal.SIGINT, 1), ("unknown", signal.SIGTERM, 3)])
def test_the_exit_code_is_that_of_the_last_response(health: str, by: signal.Signals, code: int, tmp_path: Path) -> None:
    shown = document(snapshot(1, health=Health(health)))
    with serving(tmp_path / "run", lambda _: result(shown)), watching(tmp_path) as watch:
        watch.wait_block(0, health.upper())
        assert watch.end(by) == code


def test_a_client_without_permission_is_refused_at_once(tmp_path: Path) -> None:
    with serving(tmp_path / "run", lambda _: refusal("be root", 77)):
        done = gpuwarden("watch", "--run-dir", tmp_path / "run", temporary=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "gpuwarden watch: be root\n")


@pytest.mark.parametrize("interval", ["0.1s", "2h", "often", ""])
def test_an_interval_is_bounded(interval: str, tmp_path: Path) -> None:
    assert gpuwarden("watch", "--interval", interval, temporary=tmp_path).returncode == 64


def test_it_loads_what_status_does_and_two_small_modules_more(tmp_path: Path) -> None:
    script = "import sys\nfrom gpuwarden.cli.main import main\nmain()\nprint('\\n== ', *sys.modules)"
    command = (sys.executable, "-c", script)
    with serving(tmp_path / "run", lambda _: result(document(snapshot()))):
        done = gpuwarden("status", "--run-dir", tmp_path / "run", temporary=tmp_path, command=command)
        with watching(tmp_path, command=command) as watch:
            watch.wait_block(0, "HEALTHY")
            watch.end(signal.SIGTERM)
            last = (tmp_path / "watched").read_text().partition("\n== ")[2].rpartition("== ")[2]
    more = set(last.split()) - set(done.stdout.rpartition("== ")[2].split())
    assert more == {"gpuwarden.cli.watch", "gpuwarden.cli.watch_text", "signal"}


FAULTS = [finding(f"code_{n}", NODE, Severity.WARNING, detail="some text that needs some room " * n) for n in range(4)]
LONG = replace(FAULTS[0], evidence={"name": "x" * 500})


@settings(max_examples=60, deadline=None)
@given(
    columns=st.integers(1, 200), rows=st.integers(3, 60), gpus=st.integers(0, 16), faults=st.integers(0, 4),
    error=st.sampled_from(["", "no daemon answers at /run/gpuwarden/control.sock"]),
)  # fmt: skip
def test_a_screen_fits_the_terminal_whatever_its_size(
    columns: int, rows: int, gpus: int, faults: int, error: str
) -> None:
    shown = document(snapshot(gpus, health=Health.WARNING, findings=[*FAULTS[:faults], LONG]))
    received = Known().answer(shown, UPTIME)
    received = received.silence(error, UPTIME) if error else received
    drawn = screen(received, UPTIME, columns, rows)
    lines = drawn.split("\n")
    assert len(lines) <= rows
    shown_lines = [line.partition("\x1b[K")[0] for line in lines[2:-1]]  # the head is cut by the terminal
    assert all(len(line) <= columns or line.startswith("… ") for line in shown_lines)


def test_healthy_gpus_and_the_least_important_columns_are_left_out_for_want_of_room() -> None:
    received = Known().answer(document(missing(snapshot(8), 5)), UPTIME)
    wide, narrow = screen(received, UPTIME, 120, 40), screen(received, UPTIME, 50, 18)
    assert wide.count("NVIDIA H100") == 8
    assert "NVIDIA H100" not in narrow
    assert "7 healthy GPUs hidden: terminal too small" in narrow
    assert f"failure  {slot(5)}" in narrow
    assert "gpu_missing" in narrow
    assert "PCI BUS ID" not in screen(received, UPTIME, 30, 18)


def test_what_users_wrote_cannot_move_the_cursor_of_a_screen() -> None:
    evil = replace(FAULTS[0], evidence={"name": "\x1b[2J\r\n"})
    received = Known().answer(document(snapshot(1, health=Health.WARNING, findings=[evil])), UPTIME)
    assert "\\x1b[2J\\r\\n" in screen(received, UPTIME, 100, 40)
    assert "\\x1b[2J" in screen(received.silence("at \x1b[2J", UPTIME), UPTIME, 100, 40)
