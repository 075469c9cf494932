"""What systemd passes on, what it is notified of, and when the daemon counts as ready and as alive."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gpuwarden.base.sd_notify import ServiceManager
from gpuwarden.publish.sockets.unix_socket import SocketFile
from gpuwarden.runtime.systemd import READY_WITHIN, SLACK, Systemd, ready, restart_helps, silent, without_driver
from gpuwarden_collectors.base import Observation, PassOutcome
from gpuwarden_collectors.facts import NvmlFacts, NvmlProblem, Stamp
from support.daemons import PATIENCE
from support.responders import activated, unix
from support.snapshots import snapshot

PACES = {"nvml": 15.0, "pci": 20.0}
NOW = Stamp(1.0, 1.0)


def seen(problem: NvmlProblem | None, outcome: PassOutcome = PassOutcome.OBSERVED) -> Observation[NvmlFacts]:
    facts = NvmlFacts(problem=problem) if outcome is PassOutcome.OBSERVED else None
    return Observation(collector="nvml", outcome=outcome, started=NOW, finished=NOW, facts=facts)


def test_it_is_ready_once_a_pass_of_every_collector_is_in() -> None:
    assert not ready(PACES, {"nvml"}, 3.0)
    assert ready(PACES, {"nvml", "pci", "jobs"}, 3.0)
    assert ready((), (), 0.0)


def test_it_is_ready_after_fifteen_seconds_whatever_is_in() -> None:
    assert not ready(PACES, set(), READY_WITHIN - 0.1)
    assert ready(PACES, set(), READY_WITHIN)
    assert READY_WITHIN == 15.0


def test_the_daemon_is_alive_while_passes_come_in_whatever_their_outcome() -> None:
    last_passes = {"nvml": 100.0, "pci": 100.0}
    assert silent(PACES, last_passes, 100.0 + 15.0 + SLACK) == ()
    assert silent(PACES, last_passes, 100.1 + 15.0 + SLACK) == ("nvml",)
    assert silent(PACES, {**last_passes, "nvml": 130.0}, 100.1 + 20.0 + SLACK) == ("pci",)


async def test_after_a_pause_of_the_machine_systemd_is_notified_as_soon_as_passes_arrive_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuwarden.runtime.systemd.AGAIN_AFTER", 0.05)
    loop, paused = asyncio.get_running_loop(), 0.0
    time = loop.time
    monkeypatch.setattr(loop, "time", lambda: time() + paused)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as manager:
        manager.bind(str(tmp_path / "notify"))
        systemd = Systemd(ServiceManager(address=str(tmp_path / "notify"), watchdog=4_000.0), {"nvml": 5.0}, 5.0)

        def passes() -> None:
            systemd.observed(seen(None))
            systemd.published(snapshot(1))

        async def notified() -> None:
            async with asyncio.timeout(PATIENCE):  # far less than a fourth of the watchdog's
                while await loop.sock_recv(manager, 4096) != b"WATCHDOG=1":
                    pass

        systemd.start()
        passes()
        systemd.run()
        await notified()
        paused = 3_000.0
        with capture_logs() as logs:
            await asyncio.sleep(0.2)
        assert [each["event"].partition(";")[0] for each in logs] == ["watchdog notification withheld"]
        passes()
        await notified()
        systemd.stop()


def test_a_new_start_helps_only_where_the_driver_came_after_the_first_one() -> None:
    assert without_driver(seen(NvmlProblem.DRIVER_NOT_LOADED))
    assert without_driver(seen(None, PassOutcome.ABSENT))
    assert not without_driver(seen(None))
    assert restart_helps(True, seen(NvmlProblem.NO_PERMISSION))
    assert not restart_helps(False, seen(NvmlProblem.NO_PERMISSION))
    assert not restart_helps(True, seen(NvmlProblem.OTHER))
    assert not restart_helps(True, seen(None))


def test_systemds_variables_are_removed_from_the_environment_whatever_process_they_are_for() -> None:
    mine = {"NOTIFY_SOCKET": "/run/n", "WATCHDOG_USEC": "90000000", "WATCHDOG_PID": str(os.getpid()), "HOME": "/"}
    manager = ServiceManager.of(mine)
    assert (manager.address, manager.watchdog, manager.sockets) == ("/run/n", 90.0, {})
    assert mine == {"HOME": "/"}
    others = {"WATCHDOG_USEC": "90000000", "WATCHDOG_PID": "1", "LISTEN_PID": "1", "LISTEN_FDS": "3"}
    manager = ServiceManager.of(others)
    assert (manager.address, manager.watchdog, manager.sockets, others) == ("", 0.0, {}, {})


@pytest.mark.parametrize("value", ["", "-1", "nan", "a lot", "1e9"])
def test_a_watchdog_of_no_number_is_none(value: str) -> None:
    assert ServiceManager.of({"WATCHDOG_USEC": value}).watchdog == 0.0


def test_it_notifies_its_manager_and_is_not_blocked_where_nobody_listens(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        ServiceManager(address=str(tmp_path / "notify")).send("READY=1", "STATUS=well")
        assert listener.recv(100) == b"READY=1\nSTATUS=well"
    ServiceManager(address=str(tmp_path / "notify")).send("READY=1")
    ServiceManager(address=str(tmp_path / "nobody")).send("READY=1")
    ServiceManager().send("READY=1")


def test_a_listening_socket_is_taken_by_its_name_and_nothing_else_is(tmp_path: Path) -> None:
    script = (
        "import os\nfrom gpuwarden.base.sd_notify import ServiceManager\n"
        "os.environ['LISTEN_PID'] = str(os.getpid())\n"
        "print({n: s.getsockname() for n, s in ServiceManager.of(os.environ).sockets.items()})\n"
    )
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        listener.bind(str(tmp_path / "job.sock"))
        listener.listen()

        def hand_over() -> None:
            os.dup2(listener.fileno(), 3)
            os.dup2(other.fileno(), 4)

        done = subprocess.run(
            [sys.executable, "-c", script], preexec_fn=hand_over, close_fds=False, capture_output=True, text=True,
            timeout=60, check=True,
            env={"PYTHONPATH": os.pathsep.join(sys.path), "LISTEN_FDS": "2", "LISTEN_FDNAMES": "job.sock:other"},
        )  # fmt: skip
    assert done.stdout.strip() == str({"job.sock": str(tmp_path / "job.sock")})


@pytest.mark.slow
def test_a_daemon_that_may_not_start_lets_nobody_wait_for_whom_it_would_be_started_again(tmp_path: Path) -> None:
    with unix(tmp_path / "job.sock") as listener, socket.socket(socket.AF_UNIX) as waiting:
        waiting.connect(str(tmp_path / "job.sock"))
        faulty = {"LISTEN_FDNAMES": "job.sock", "GPUWARDEN_MODE": "neither"}
        with activated(listener, "run", folder=tmp_path, **faulty) as service:
            assert service.process is not None
            assert service.process.wait(PATIENCE) == 64
            waiting.settimeout(PATIENCE)
            assert waiting.recv(1) == b""


def test_a_socket_that_systemd_listens_on_is_used_and_left_to_it(tmp_path: Path) -> None:
    path = tmp_path / "job.sock"
    with socket.socket(socket.AF_UNIX) as passed:
        passed.bind(str(path))
        passed.listen()
        file = SocketFile(path, "job.new", 0o666, passed)
        assert file.make(5) is passed
        assert file.is_current()
        file.remove()
        assert path.exists()


def test_a_passed_socket_whose_file_is_gone_is_replaced_by_one_of_gpuwarden(tmp_path: Path) -> None:
    path = tmp_path / "job.sock"
    passed = socket.socket(socket.AF_UNIX)
    passed.bind(str(path))
    passed.listen()
    path.unlink()
    file = SocketFile(path, "job.new", 0o666, passed)
    with file.make(5) as made:
        assert made.getsockname() != ""
        assert file.is_current()
        file.remove()
    assert not path.exists()
