"""The control socket, with real clients of real users."""

from __future__ import annotations

import asyncio
import grp
import json
import os
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from gpuwarden.base.peer import Peer, peer_of
from gpuwarden.publish.sockets.control import LINE_LIMIT, NEW_NAME, Control, ControlError, Verb, VerbError
from gpuwarden.publish.sockets.unix_socket import SocketFile
from gpuwarden_collectors.base import host_clock
from gpuwarden_collectors.facts import Stamp
from support.socket_talk import ask, client

PATIENCE = 60.0
ROOT_ONLY = pytest.mark.needs("root")
GROUP, OTHER_GROUP, NOBODY = "adm", "mail", 65534


async def echo(arguments: dict[str, Any], peer: Peer) -> object:
    return {"arguments": arguments, "uid": peer.uid}


async def picky(arguments: dict[str, Any], peer: Peer) -> object:
    raise VerbError("there is no finding x", 66)


async def broken(arguments: dict[str, Any], peer: Peer) -> object:
    raise OSError("a detail")


async def unspeakable(arguments: dict[str, Any], peer: Peer) -> object:
    return object()


async def endless(arguments: dict[str, Any], peer: Peer) -> object:
    await asyncio.Event().wait()
    return None


async def long(arguments: dict[str, Any], peer: Peer) -> object:
    return "x" * 50_000_000


VERBS: Mapping[str, Verb] = {
    "echo": echo, "picky": picky, "broken": broken, "unspeakable": unspeakable, "endless": endless, "long": long,
}  # fmt: skip


def control(run_dir: Path, **settings: Any) -> Control:
    return Control(run_dir, VERBS, **settings)


@asynccontextmanager
async def listening(run_dir: Path, **settings: Any) -> AsyncIterator[Control]:
    socket_ = control(run_dir, **settings)
    await socket_.start()
    try:
        yield socket_
    finally:
        await socket_.stop()


# --- talk


async def test_a_verb_gets_its_arguments_and_who_asks(tmp_path: Path) -> None:
    async with listening(tmp_path) as control:
        answer = await ask(control.path, {"verb": "echo", "finding": "x", "reason": "déjà vu"})
    assert answer == {
        "ok": True,
        "result": {"arguments": {"finding": "x", "reason": "déjà vu"}, "uid": os.geteuid()},
    }


async def test_one_connection_can_ask_many_times(tmp_path: Path) -> None:
    async with listening(tmp_path) as control, client(control.path) as (reader, writer):
        writer.write(b'{"verb":"echo","n":1}\n{"verb":"picky"}\n{"verb":"echo","n":2}\n')
        answers = [json.loads(await reader.readline()) for _ in range(3)]
    assert [answer["ok"] for answer in answers] == [True, False, True]
    assert answers[2]["result"]["arguments"] == {"n": 2}


async def test_an_error_of_a_verb_reaches_its_caller_with_its_code(tmp_path: Path) -> None:
    async with listening(tmp_path) as control:
        assert await ask(control.path, {"verb": "picky"}) == {"ok": False, "error": "there is no finding x", "code": 66}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"\n", "one JSON object"),
        (b"hello\n", "one JSON object"),
        (b"\xff\xfe\n", "one JSON object"),
        (b"[" * 60_000 + b"\n", "one JSON object"),
        (b"[1]\n", '{"verb"'),
        (b"{}\n", '{"verb"'),
        (b'{"verb":7}\n', '{"verb"'),
        (b'{"verb":"reboot"}\n', "broken, echo, endless"),
    ],
    ids=["empty", "no JSON", "no UTF-8", "deep", "no object", "no verb", "odd verb", "unknown verb"],
)
async def test_a_line_without_a_request_is_an_error_that_names_the_expected_form(
    tmp_path: Path, line: bytes, message: str
) -> None:
    async with listening(tmp_path) as control:
        answer = await ask(control.path, line)
        assert (answer["ok"], answer["code"]) == (False, 64)
        assert message in answer["error"]
        assert (await ask(control.path, {"verb": "echo"}))["ok"]


async def test_a_line_that_is_too_long_is_refused(tmp_path: Path) -> None:
    async with listening(tmp_path) as control:
        assert (await ask(control.path, b"x" * (LINE_LIMIT + 1)))["code"] == 64
        assert (await ask(control.path, b"x" * 2_000_000 + b"\n"))["code"] == 64
        fits = {"verb": "echo", "text": "x" * (LINE_LIMIT - 100)}
        assert (await ask(control.path, fits))["ok"]


@pytest.mark.parametrize("verb", ["broken", "unspeakable"])
async def test_an_internal_error_is_logged_and_reported_without_its_details(tmp_path: Path, verb: str) -> None:
    with capture_logs() as logs:
        async with listening(tmp_path) as control:
            answer = await ask(control.path, {"verb": verb})
    assert (answer["ok"], answer["code"]) == (False, 70)
    assert "detail" not in answer["error"]
    assert [entry["log_level"] for entry in logs] == ["error"]


@pytest.mark.slow
async def test_a_verb_that_takes_too_long_is_given_up_and_others_are_not_kept_waiting(tmp_path: Path) -> None:
    async with listening(tmp_path, deadline=3.0) as control:
        slow, quick = await asyncio.gather(
            ask(control.path, {"verb": "endless"}), ask(control.path, {"verb": "echo"})
        )  # fmt: skip
    assert (slow["code"], quick["ok"]) == (75, True)


@pytest.mark.parametrize("sent", [b"", b'{"verb":"ec'])
async def test_a_client_that_sends_nothing_or_half_a_line_is_disconnected(tmp_path: Path, sent: bytes) -> None:
    async with listening(tmp_path, deadline=0.3) as control, client(control.path) as (reader, writer):
        writer.write(sent)
        assert await reader.read() == b""


async def test_a_client_that_reads_nothing_is_given_up(tmp_path: Path) -> None:
    async with listening(tmp_path, deadline=0.3) as control, client(control.path) as (_, writer):
        writer.write(b'{"verb":"long"}\n')
        async with asyncio.timeout(PATIENCE):
            while not control._talks:
                await asyncio.sleep(0.01)
            while control._talks:
                await asyncio.sleep(0.05)


async def test_one_client_too_many_gets_a_temporary_refusal(tmp_path: Path) -> None:
    async with listening(tmp_path, connections=2) as control:
        async with client(control.path), client(control.path), client(control.path) as (reader, _):
            assert json.loads(await reader.readline())["code"] == 75
        while control._talks:
            await asyncio.sleep(0.01)
        assert (await ask(control.path, {"verb": "echo"}))["ok"]


# --- who may talk


def ask_as(uid: int, groups: tuple[int, ...], path: Path) -> dict[str, Any]:
    """The answer to a client process of this user, whose first group is its primary one."""
    script = textwrap.dedent("""
        import json, os, socket, sys
        uid, groups = int(sys.argv[1]), json.loads(sys.argv[2])
        os.setgroups(groups[1:]); os.setgid(groups[0]); os.setuid(uid)
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(60)
            client.connect(sys.argv[3])
            client.sendall(b'{"verb": "echo"}\\n')
            print(client.makefile().readline())
    """)
    command = [sys.executable, "-I", "-c", script, str(uid), json.dumps(groups), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    answer = json.loads(done.stdout)
    assert isinstance(answer, dict)
    return answer


def gid(name: str) -> int:
    return grp.getgrnam(name).gr_gid


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A run directory that other users reach, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@ROOT_ONLY
@pytest.mark.parametrize(
    ("groups", "ok"),
    [
        ((GROUP,), True),
        ((OTHER_GROUP, GROUP), True),
        ((OTHER_GROUP,), False),
    ],
    ids=["primary", "supplementary", "stranger"],
)
async def test_members_of_the_group_may_talk(open_dir: Path, groups: tuple[str, ...], ok: bool) -> None:
    async with listening(open_dir, group=GROUP) as control:
        control.path.chmod(0o666)  # past the file mode, the socket itself is asked
        answer = await asyncio.to_thread(ask_as, NOBODY, tuple(gid(name) for name in groups), control.path)
    assert answer["ok"] is ok
    if not ok:
        assert answer["code"] == 77
        assert f"uid {NOBODY} may not do this: only root, uid 0 and members of group {GROUP} may" in answer["error"]


@ROOT_ONLY
async def test_without_a_group_only_root_and_the_daemons_own_user_may_talk(open_dir: Path) -> None:
    async with listening(open_dir) as control:
        control.path.chmod(0o666)
        answer = await asyncio.to_thread(ask_as, NOBODY, (gid(GROUP),), control.path)
    assert answer["code"] == 77


@ROOT_ONLY
async def test_the_file_is_the_groups_and_closed_to_everybody_else(tmp_path: Path) -> None:
    async with listening(tmp_path, group=GROUP) as control:
        about = control.path.stat()
        assert (about.st_mode & 0o777, about.st_gid) == (0o660, gid(GROUP))
        assert {path.name for path in tmp_path.iterdir()} == {"control.pid", "control.sock"}


def test_the_kernel_names_every_group_of_the_peer() -> None:
    own, theirs = socket.socketpair()
    with own, theirs:
        peer = peer_of(own)
    assert (peer.pid, peer.uid) == (os.getpid(), os.geteuid())
    assert {os.getegid(), *os.getgroups()} <= peer.groups


async def test_a_group_that_is_not_there_yet_keeps_nobody_else_out_and_is_found_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory server that has the group may be away at a boot. The node is judged all the same."""
    groups: dict[str, int] = {}
    monkeypatch.setattr("grp.getgrnam", lambda name: SimpleNamespace(gr_gid=groups[name]))
    monkeypatch.setattr("gpuwarden.publish.sockets.control.RETRY", 0.01)
    async with listening(tmp_path, group="gpu-admins") as control:
        assert (await ask(control.path, {"verb": "echo"}))["ok"]
        assert "there is no group 'gpu-admins' on this host: only root can use" in control.error(host_clock())
        groups["gpu-admins"] = os.getegid()
        while control.error(host_clock()):
            await asyncio.sleep(0.01)
        assert control.path.stat().st_gid == os.getegid()


@ROOT_ONLY
def test_a_group_to_which_the_daemon_may_not_give_the_socket_keeps_root_served(tmp_path: Path) -> None:
    """The user of the profiles observe and jobs has no CAP_CHOWN."""
    tmp_path.chmod(0o755)
    script = f"""
        import asyncio, os
        from pathlib import Path
        from gpuwarden.publish.sockets.control import Control
        from gpuwarden_collectors.base import host_clock

        async def main():
            control = Control(Path({str(tmp_path / "run")!r}), {{}}, group={GROUP!r})
            await control.start()
            print(control.path.is_socket(), control.error(host_clock()))
            await control.stop()

        os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
        asyncio.run(main())
    """
    (tmp_path / "run").mkdir()
    os.chown(tmp_path / "run", NOBODY, NOBODY)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout.startswith("True "), done.stderr
    assert f"SupplementaryGroups={GROUP}" in done.stdout


async def test_a_directory_server_that_does_not_answer_delays_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()
    monkeypatch.setattr("grp.getgrnam", lambda _: answered.wait(60))
    monkeypatch.setattr("gpuwarden.publish.sockets.control.GROUP_WITHIN", 0.05)
    async with listening(tmp_path, group="gpu-admins") as control:
        assert (await ask(control.path, {"verb": "echo"}))["ok"]
        assert "has not been found within" in control.error(host_clock())
        answered.set()


# --- the file


async def test_a_socket_left_behind_by_a_dead_daemon_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "control.sock"))
        dead.listen()
    async with listening(tmp_path) as control:
        assert (await ask(control.path, {"verb": "echo"}))["ok"]


async def test_a_socket_that_somebody_answers_on_is_left_alone(tmp_path: Path) -> None:
    async with listening(tmp_path) as first:
        with pytest.raises(ControlError, match="another gpuwarden answers"):
            await control(tmp_path).start()
        assert (await ask(first.path, {"verb": "echo"}))["ok"]


async def test_a_socket_whose_owner_hangs_is_left_alone(tmp_path: Path) -> None:
    with SocketFile(tmp_path / "control.sock", NEW_NAME, 0o660).make(1), ExitStack() as waiting:
        fill_backlog(tmp_path / "control.sock", waiting)
        with pytest.raises(ControlError, match="another gpuwarden answers"):
            await control(tmp_path, deadline=0.3).start()


def fill_backlog(path: Path, waiting: ExitStack) -> None:
    """Connect to the socket until no more clients can wait there."""
    with suppress(BlockingIOError):
        while True:
            waiting.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)).connect(
                str(path)
            )


ENDED = """
import ctypes, sys, threading, time
from pathlib import Path
from gpuwarden.publish.sockets.unix_socket import SocketFile
listener = SocketFile(Path(sys.argv[1]), "control.new", 0o660).make(1)
threading.Thread(target=time.sleep, args=(1000,)).start()
print("listens", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""
"""Its first thread has exited and another one stays, as of a killed daemon with a thread in an uninterruptible sleep."""


@pytest.mark.parametrize("full", [False, True])
async def test_a_socket_of_an_ended_daemon_with_a_thread_that_cannot_end_is_replaced(
    tmp_path: Path, full: bool
) -> None:
    path = tmp_path / "control.sock"
    with subprocess.Popen(  # noqa: ASYNC220 - it is started at once
        [sys.executable, "-c", ENDED, str(path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as ended:
        try:
            assert ended.stdout is not None
            ended.stdout.readline()
            async with asyncio.timeout(PATIENCE):
                while Path(f"/proc/{ended.pid}/stat").read_text().rpartition(") ")[2][0] != "Z":
                    await asyncio.sleep(0.01)
            async with client(path):
                pass
            with ExitStack() as waiting:
                if full:
                    fill_backlog(path, waiting)
                async with listening(tmp_path) as control:
                    assert (await ask(control.path, {"verb": "echo"}))["ok"]
        finally:
            ended.kill()


async def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "control.sock").write_text("mine")
    with pytest.raises(ControlError, match="is not a socket"):
        await control(tmp_path).start()
    assert (tmp_path / "control.sock").read_text() == "mine"


async def test_a_run_directory_that_cannot_be_used_is_named_and_used_as_soon_as_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuwarden.publish.sockets.control.RETRY", 0.05)
    folder = tmp_path / "folder"
    folder.write_text("a file where the folder should be")
    here = control(folder / "run")
    await here.start()
    assert "check the run directory" in here.error(Stamp(0, 0))
    folder.unlink()
    async with asyncio.timeout(60):
        while here.error(Stamp(0, 0)):
            await asyncio.sleep(0.01)
    assert (await ask(here.path, {"verb": "echo"}))["ok"]
    await here.stop()
    assert not here.path.exists()


async def test_a_control_socket_that_cannot_be_made_can_be_stopped(tmp_path: Path) -> None:
    here = control(tmp_path / ("d" * 120))
    await here.start()
    assert "check the run directory" in here.error(Stamp(0, 0))
    await here.stop()


async def test_stop_ends_every_talk_and_removes_the_socket(tmp_path: Path) -> None:
    async with listening(tmp_path) as control, client(control.path) as (reader, writer):
        writer.write(b'{"verb":"endless"}\n')
        while not control._talks:
            await asyncio.sleep(0.01)
        await control.stop()
        assert await reader.read() == b""
        assert not control.path.exists()


async def test_stop_leaves_the_socket_of_a_successor(tmp_path: Path) -> None:
    async with listening(tmp_path) as control:
        control.path.unlink()
        async with listening(tmp_path) as successor:
            await control.stop()
            assert (await ask(successor.path, {"verb": "echo"}))["ok"]
