"""The socket for jobs, with real clients of real users: nobody can speak for another's job, nor keep the others out."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from gpuwarden.features.evacuation.acknowledge import Acknowledge, Acknowledged, Membership
from gpuwarden.publish.notices import Notices
from gpuwarden.publish.sockets.jobs import LINE_LIMIT, Caller, JobSocket
from gpuwarden.publish.sockets.unix_socket import VerbError
from gpuwarden_collectors.base import host_clock
from gpuwarden_job.acknowledge import acknowledge
from support.mounts import remount, tmpfs
from support.socket_talk import ask, client
from support.waiting import until

PATIENCE = 60.0
ROOT_ONLY = pytest.mark.needs("root")
NOBODY = 65534
NOTICE = "aws/spot:stop@1000"
ACKNOWLEDGE = {"verb": "acknowledge", "notice": NOTICE, "rank": 3, "saved": True, "step": 1200}
STATUS = {"status": "healthy", "schedulable": True, "notice": None}


@dataclass
class Daemon:
    """What is behind the socket: every caller is of this job."""

    membership: Membership | None = field(default_factory=lambda: Membership("slurm/71", os.geteuid(), is_rank=True))
    notices: Notices = field(default_factory=Notices)
    callers: list[Caller] = field(default_factory=list)
    received: list[Acknowledged] = field(default_factory=list)
    refuses: str = ""
    known: asyncio.Event = field(default_factory=asyncio.Event)

    async def membership_of(self, caller: Caller) -> Membership | None:
        self.callers.append(caller)
        await self.known.wait()
        return self.membership

    def acknowledged(self, acknowledgement: Acknowledged) -> None:
        if self.refuses:
            raise VerbError(self.refuses)
        self.received.append(acknowledgement)

    def socket(self, run_dir: Path, **options: Any) -> JobSocket:
        verb = Acknowledge(lambda: {NOTICE}, self.membership_of, self.acknowledged).verb
        verbs = {"acknowledge": verb}
        return JobSocket(run_dir, status=lambda: dict(STATUS), notices=self.notices, verbs=verbs, **options)


@asynccontextmanager
async def listening(run_dir: Path, daemon: Daemon, **options: Any) -> AsyncIterator[JobSocket]:
    """Serve the socket with a `deadline` that no slow machine misses, and without checks of the file unless the test asks for them."""
    daemon.known.set()
    served = daemon.socket(run_dir, **{"deadline": PATIENCE, "check_every": 3600.0, **options})
    await served.start()
    assert served.error(host_clock()) == ""
    try:
        yield served
    finally:
        await served.stop()


# --- what may be asked


async def test_a_job_can_read_whether_the_node_may_take_work(tmp_path: Path) -> None:
    async with listening(tmp_path, Daemon()) as served:
        assert await ask(served.path, {"verb": "status"}) == {"ok": True, "result": STATUS}


async def test_a_notice_is_returned_at_once_or_waited_for(tmp_path: Path) -> None:
    daemon = Daemon()
    async with listening(tmp_path, daemon) as served:
        early = await ask(served.path, {"verb": "notice"})
        assert (early["ok"], early["code"]) == (False, 75)
        daemon.notices.show(b'{"act":false}', imminent=False)
        response = await ask(served.path, {"verb": "notice"})
        assert response["result"] == {"tag": daemon.notices.tag, "notice": {"act": False}}
        async with client(served.path) as (reader, writer):
            writer.write(json.dumps({"verb": "notice", "wait": 60, "tag": response["result"]["tag"]}).encode() + b"\n")
            await until(lambda: any(peer.waits for peer in served._clients))
            daemon.notices.show(b'{"act":true}', imminent=True)
            assert json.loads(await reader.readline())["result"]["notice"] == {"act": True}
        assert (await ask(served.path, {"verb": "notice", "wait": 60}))["result"]["notice"] == {"act": True}


@pytest.mark.parametrize("wait", [-1, "1", True, None, [], 10**400, float("nan"), float("inf")])
async def test_a_wait_that_is_no_number_of_seconds_is_refused(tmp_path: Path, wait: object) -> None:
    daemon = Daemon()
    daemon.notices.show(b"{}", imminent=True)
    async with listening(tmp_path, daemon) as served:
        answer = await ask(served.path, {"verb": "notice", "wait": wait})
        assert answer["ok"] is (wait == 10**400)  # a minute at most, and here at once


async def test_one_user_cannot_take_all_slots_to_wait(tmp_path: Path) -> None:
    daemon = Daemon()
    daemon.notices.show(b"{}", imminent=False)
    async with listening(tmp_path, daemon) as served:
        waiting = [asyncio.create_task(ask(served.path, {"verb": "notice", "wait": 60})) for _ in range(8)]
        await until(lambda: sum(peer.waits for peer in served._clients) == 8)
        assert (await ask(served.path, {"verb": "notice", "wait": 60}))["code"] == 75
        daemon.notices.show(b'{"act":true}', imminent=True)
        assert all(answer["ok"] for answer in await asyncio.gather(*waiting))


async def test_who_is_killed_while_waiting_gives_its_place_back(tmp_path: Path) -> None:
    daemon = Daemon(notices=Notices(waiters=1))
    daemon.notices.show(b"{}", imminent=False)
    async with listening(tmp_path, daemon) as served:
        async with client(served.path) as (_, writer):
            writer.write(b'{"verb":"notice","wait":60}\n')
            await until(lambda: any(peer.waits for peer in served._clients))
        await until(lambda: not served._clients)
        daemon.notices.show(b'{"act":true}', imminent=True)
        assert (await ask(served.path, {"verb": "notice", "wait": 60}))["ok"]


# --- acknowledgements


async def test_an_acknowledgement_is_that_of_the_caller_s_job(tmp_path: Path) -> None:
    daemon = Daemon()
    async with listening(tmp_path, daemon) as served:
        assert await ask(served.path, ACKNOWLEDGE) == {"ok": True, "result": {"job": "slurm/71"}}
        for named in ("slurm/71", "71"):
            assert (await ask(served.path, {**ACKNOWLEDGE, "step": None, "saved": False, "job": named}))["ok"]
    started = int(Path("/proc/self/stat").read_text().rpartition(") ")[2].split()[19])
    assert daemon.received[0] == Acknowledged(
        job="slurm/71", pid=os.getpid(), started=started, uid=os.geteuid(), notice=NOTICE, rank=3, saved=True, step=1200
    )
    assert (daemon.received[1].step, daemon.received[1].saved) == (None, False)
    assert daemon.callers[0] == Caller(pid=os.getpid(), started=started, uid=os.geteuid())


async def test_an_acknowledgement_holds_for_its_own_rank_unless_it_declares_all_ranks(tmp_path: Path) -> None:
    """Clients of before know nothing of it."""
    daemon = Daemon()
    async with listening(tmp_path, daemon) as served:
        for more in ({}, {"all_ranks": False}, {"all_ranks": True}):
            assert (await ask(served.path, {**ACKNOWLEDGE, **more}))["ok"]
    assert [acknowledgement.all_ranks for acknowledgement in daemon.received] == [False, False, True]


REFUSED = {
    "another user's job": (Membership("slurm/71", 1001, is_rank=True), {}, 77, "which is user 1001's"),
    "nobody knows whose": (Membership("slurm/71", None, is_rank=True), {}, 75, "Slurm has not answered; try again"),
    "no rank": (Membership("slurm/71", 65534, is_rank=False), {"all_ranks": True}, 75, "may not answer for all ranks"),
}


@ROOT_ONLY
@pytest.mark.parametrize("case", REFUSED)
async def test_only_the_job_s_user_or_root_acknowledges_and_only_a_rank_for_all(tmp_path: Path, case: str) -> None:
    membership, more, code, why = REFUSED[case]
    tmp_path.chmod(0o755)
    script = textwrap.dedent("""
        import os, socket, sys
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
        client = socket.socket(socket.AF_UNIX)
        client.connect(sys.argv[1])
        client.sendall(sys.argv[2].encode() + b"\\n")
        print(client.makefile().readline())
    """)
    daemon = Daemon(membership=membership)
    message = {**ACKNOWLEDGE, **more}
    async with listening(tmp_path, daemon) as served:
        command = [sys.executable, "-c", script, str(served.path), json.dumps(message)]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        answer = json.loads((await process.communicate())[0])
        assert (answer["ok"], answer["code"]) == (False, code)
        assert why in answer["error"]
        assert daemon.received == []
        as_root = await ask(served.path, ACKNOWLEDGE)
        assert as_root["ok"], "root may, as a process of the job"


async def test_the_library_of_the_job_side_is_understood(tmp_path: Path) -> None:
    daemon = Daemon()
    async with listening(tmp_path, daemon) as served:

        def is_accepted(notice: str) -> bool:
            return acknowledge(served.path.parent, "71", notice, 5, saved=True, step=None, all_ranks=True)

        # Its patience is a second: on a machine under load it may have to be asked again.
        async with asyncio.timeout(PATIENCE):
            while not await asyncio.to_thread(is_accepted, NOTICE):
                pass
        assert (daemon.received[-1].rank, daemon.received[-1].all_ranks) == (5, True)
        assert not await asyncio.to_thread(is_accepted, "another")


@ROOT_ONLY
async def test_another_user_may_connect_and_is_known_as_such(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    script = textwrap.dedent("""
        import os, sys
        from pathlib import Path
        from gpuwarden_job.acknowledge import acknowledge
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
        while not acknowledge(Path(sys.argv[1]), None, sys.argv[2], 0, saved=True, step=7):
            pass
        print(os.getpid())
    """)
    daemon = Daemon(membership=Membership("slurm/71", 65534, is_rank=True))
    async with listening(tmp_path, daemon) as served:
        assert stat.S_IMODE(served.path.stat().st_mode) == 0o666
        command = [sys.executable, "-c", script, str(tmp_path), NOTICE]
        environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=PATIENCE, check=True, env=environment
        )
    assert (daemon.received[-1].uid, daemon.received[-1].pid) == (NOBODY, int(done.stdout))


async def test_nobody_speaks_for_another_s_job_nor_without_one_and_the_log_has_it_once(tmp_path: Path) -> None:
    daemon = Daemon()
    with capture_logs() as logs:
        async with listening(tmp_path, daemon) as served:
            foreign = [await ask(served.path, {**ACKNOWLEDGE, "job": job}) for job in ("slurm/72", "7", "", 71, ["71"])]
            daemon.membership = None
            stray = await ask(served.path, ACKNOWLEDGE)
    assert {answer["code"] for answer in (*foreign, stray)} == {77}
    assert f"process {os.getpid()} of user {os.geteuid()} belongs to slurm/71" in foreign[0]["error"]
    assert "belongs to no job" in stray["error"]
    assert not daemon.received
    assert [entry["event"] for entry in logs] == ["acknowledgement refused"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"notice": "aws/spot:stop@900"}, "no notice 'aws/spot:stop@900' to acknowledge"),
        ({"notice": ""}, '"notice"'),
        ({"notice": 7}, '"notice"'),
        ({"notice": "x" * 201}, '"notice"'),
        ({"notice": f"{NOTICE}\n"}, '"notice"'),
        ({"rank": -1}, '"rank"'),
        ({"rank": 1_000_000}, '"rank"'),
        ({"rank": 10**300}, '"rank"'),
        ({"rank": True}, '"rank"'),
        ({"rank": 3.0}, '"rank"'),
        ({"rank": None}, '"rank"'),
        ({"saved": 1}, '"saved"'),
        ({"saved": None}, '"saved"'),
        ({"all_ranks": 1}, '"all_ranks"'),
        ({"all_ranks": "yes"}, '"all_ranks"'),
        ({"all_ranks": None}, '"all_ranks"'),
        ({"step": -1}, '"step"'),
        ({"step": 2**63}, '"step"'),
        ({"step": False}, '"step"'),
        ({"step": "1"}, '"step"'),
        ({"step": float("nan")}, "one JSON object"),
        ({"step": float("inf")}, "one JSON object"),
    ],
)
async def test_what_is_no_acknowledgement_is_refused_with_what_was_expected(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    daemon = Daemon()
    async with listening(tmp_path, daemon) as served:
        answer = await ask(served.path, {**ACKNOWLEDGE, **change})
    assert (answer["ok"], answer["code"]) == (False, 64)
    assert message in answer["error"]
    assert not daemon.received


async def test_what_the_daemon_refuses_after_all_reaches_the_caller(tmp_path: Path) -> None:
    async with listening(tmp_path, Daemon(refuses="slurm/71 was not signalled")) as served:
        assert (await ask(served.path, ACKNOWLEDGE))["error"] == "slurm/71 was not signalled"


@pytest.mark.slow
async def test_who_is_not_found_out_in_time_may_try_again_and_is_not_refused(tmp_path: Path) -> None:
    daemon = Daemon()
    async with listening(tmp_path, daemon) as served:
        daemon.known.clear()
        answer = await ask(served.path, ACKNOWLEDGE)
        assert (answer["code"], "was not found in time; try again" in answer["error"]) == (75, True)
        daemon.known.set()
        assert (await ask(served.path, ACKNOWLEDGE))["ok"]


async def test_an_acknowledgement_of_a_client_that_leaves_right_after_it_counts(tmp_path: Path) -> None:
    daemon = Daemon()
    async with listening(tmp_path, daemon) as served:
        script = "import os, socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
        script += 's.sendall(b\'{"verb":"status"}\\n\'); s.recv(4096)\n'  # it is let in by now, and has a name
        script += "s.sendall(sys.argv[2].encode() + b'\\n'); os._exit(0)"
        daemon.known.clear()  # who it is comes out only when it is gone
        command = [sys.executable, "-c", script, str(served.path), json.dumps(ACKNOWLEDGE)]
        process = await asyncio.create_subprocess_exec(*command)
        assert await process.wait() == 0
        await until(lambda: daemon.callers)
        daemon.known.set()
        await until(lambda: daemon.received)
    assert daemon.received[0].pid == process.pid


@ROOT_ONLY
async def test_a_caller_in_a_namespace_that_cannot_be_seen_has_no_number(tmp_path: Path) -> None:
    """The daemon is in a PID namespace of its own here, and the client outside of it."""
    script = textwrap.dedent("""
        import asyncio, sys
        from pathlib import Path
        from gpuwarden.features.evacuation.acknowledge import Acknowledge
        from gpuwarden.publish.sockets.jobs import JobSocket
        from gpuwarden.publish.notices import Notices

        async def membership_of(caller):
            print(caller.pid, caller.started, flush=True)

        async def main():
            verb = Acknowledge(lambda: {sys.argv[2]}, membership_of, print).verb
            served = JobSocket(Path(sys.argv[1]), status=dict, notices=Notices(), verbs={"acknowledge": verb}, deadline=60.0)
            await served.start()
            print("ready", flush=True)
            await served.run()

        asyncio.run(main())
    """)
    command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", script, str(tmp_path), NOTICE]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, env=environment)
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        answer = await ask(tmp_path / "job.sock", ACKNOWLEDGE)
        assert await process.stdout.readline() == b"0 None\n"
    finally:
        process.kill()
        await process.communicate()
    assert answer["code"] == 77
    assert "PID namespace" in answer["error"]


# --- hostile or broken clients


@pytest.mark.parametrize("line", [b"x" * (LINE_LIMIT + 1) + b"\n", b"x" * 2**20 + b"\n", b"[" * 2**20])
async def test_a_line_that_is_too_long_is_refused_and_the_next_client_served(tmp_path: Path, line: bytes) -> None:
    async with listening(tmp_path, Daemon()) as served:
        assert (await ask(served.path, line))["error"] == f"a line has at most {LINE_LIMIT} bytes"
        assert (await ask(served.path, ACKNOWLEDGE))["ok"]


@pytest.mark.parametrize(
    "verb", ["notify-termination", "exclude", "restore", "Notice", "__init__", "", None, ["status"]]
)
async def test_verbs_of_operators_are_refused_here(tmp_path: Path, verb: object) -> None:
    """Everybody may talk to this socket: nobody announces an end on it, or takes one back."""
    daemon = Daemon()
    async with listening(tmp_path, daemon) as served:
        answer = await ask(served.path, {"verb": verb, "in": 5, "reason": "spot", "cancel": True})
        assert (answer["ok"], answer["code"]) == (False, 64)
        assert await ask(served.path, {"verb": "status"}) == {"ok": True, "result": STATUS}
    assert not daemon.received


async def test_half_a_line_is_given_up(tmp_path: Path) -> None:
    daemon = Daemon()
    async with listening(tmp_path, daemon, deadline=0.3) as served, client(served.path) as (reader, writer):
        writer.write(b'{"verb":"acknowledge"')
        assert await reader.read() == b""
    assert not daemon.received


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)


def within(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return inner | st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)


NOISE = st.one_of(
    st.binary(max_size=200),
    within(within(within(VALUES))).map(lambda value: json.dumps(value).encode()),
    st.fixed_dictionaries({
        "verb": st.sampled_from(["acknowledge", "notice", "status"]),
        "notice": st.sampled_from([NOTICE, "x", None, 0]),
        "rank": st.integers() | st.floats() | st.booleans() | st.none(),
        "saved": st.booleans() | st.integers(0, 1),
        "step": st.integers() | st.floats() | st.none(),
        "job": st.sampled_from(["slurm/71", "71", "slurm/1", None, 1, {}]),
    }).map(lambda value: json.dumps(value).encode()),
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(NOISE.filter(lambda line: b"\n" not in line), min_size=1, max_size=8))
def test_each_line_has_one_response_and_only_a_valid_acknowledgement_counts(
    tmp_path: Path, lines: Sequence[bytes]
) -> None:
    async def talk() -> None:
        daemon = Daemon()
        daemon.notices.show(b"{}", imminent=True)
        async with listening(tmp_path, daemon) as served, client(served.path) as (reader, writer):
            for line in lines:
                writer.write(line + b"\n")
                answer = json.loads(await reader.readline())
                assert answer["ok"] or answer["code"] in (64, 77)
        for acknowledgement in daemon.received:
            assert (acknowledgement.notice, acknowledgement.job) == (NOTICE, "slurm/71")
            assert type(acknowledgement.rank) is int
            assert 0 <= acknowledgement.rank < 1_000_000
            assert acknowledgement.saved in (True, False)

    asyncio.run(talk())


def idle(path: Path, number: int) -> ExitStack:
    """Open that many connections that send nothing."""
    stack = ExitStack()
    for _ in range(number):
        sock = stack.enter_context(socket.socket(socket.AF_UNIX))
        sock.settimeout(PATIENCE)
        sock.connect(str(path))
    return stack


async def test_an_idle_client_gives_way_to_an_active_one(tmp_path: Path) -> None:
    daemon = Daemon()
    async with listening(tmp_path, daemon) as served:
        with await asyncio.to_thread(idle, served.path, 128):
            await until(lambda: len(served._clients) == 16)
            for _ in range(20):
                assert (await ask(served.path, ACKNOWLEDGE))["ok"]
    assert len(daemon.received) == 20


@pytest.mark.slow
@ROOT_ONLY
async def test_one_user_s_silence_keeps_no_other_user_out(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    script = textwrap.dedent("""
        import os, socket, sys
        os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
        held = []
        for _ in range(128):
            held.append(socket.socket(socket.AF_UNIX)); held[-1].connect(sys.argv[1])
        print("ready", flush=True)
        sys.stdin.read()
    """)
    daemon = Daemon()
    # Room for four users: the fourth to come silences somebody.
    async with listening(tmp_path, daemon, clients=48) as served:
        pipe = subprocess.PIPE
        idlers = [
            await asyncio.create_subprocess_exec(
                sys.executable, "-c", script, str(served.path), str(uid), stdin=pipe, stdout=pipe
            )
            for uid in (NOBODY, 1001, 1002)
        ]  # fmt: skip
        try:
            for idler in idlers:
                assert idler.stdout is not None
                assert await idler.stdout.readline() == b"ready\n"
            await until(lambda: len(served._clients) == 48)
            for _ in range(20):
                assert (await ask(served.path, ACKNOWLEDGE))["ok"]
        finally:
            for idler in idlers:
                idler.kill()
                await idler.wait()


async def test_all_ranks_of_a_node_can_acknowledge_at_once(tmp_path: Path) -> None:
    daemon = Daemon()

    def rank(number: int) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as talk, talk.makefile("rb") as lines:
            talk.settimeout(PATIENCE)
            talk.connect(str(served.path))
            talk.sendall(json.dumps({**ACKNOWLEDGE, "rank": number}).encode() + b"\n")
            answer = json.loads(lines.readline())
        assert isinstance(answer, dict)
        return answer

    async with listening(tmp_path, daemon) as served:
        answers = await asyncio.gather(*(asyncio.to_thread(rank, number) for number in range(200)))
    assert all(answer["ok"] for answer in answers)
    assert {acknowledgement.rank for acknowledgement in daemon.received} == set(range(200))


async def test_who_is_being_answered_does_not_give_way(tmp_path: Path) -> None:
    daemon = Daemon()
    async with listening(tmp_path, daemon, clients_of_user=2) as served:
        daemon.known.clear()
        busy = [asyncio.create_task(ask(served.path, ACKNOWLEDGE)) for _ in range(2)]
        await until(lambda: len(daemon.callers) == 2)
        async with client(served.path) as (reader, _):
            assert json.loads(await reader.readline())["code"] == 75
        daemon.known.set()
        assert all(answer["ok"] for answer in await asyncio.gather(*busy))


# --- the file


async def test_a_socket_left_behind_by_a_killed_daemon_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "job.sock"))
        dead.listen()
    async with listening(tmp_path, Daemon()) as served:
        assert (await ask(served.path, {"verb": "status"}))["ok"]
    assert list(tmp_path.iterdir()) == []


async def test_a_socket_that_somebody_removed_is_created_again(tmp_path: Path) -> None:
    async with listening(tmp_path, Daemon(), check_every=0.05) as served:
        running = asyncio.create_task(served.run())
        for _ in range(3):
            served.path.unlink()
            await until(served.path.exists)
            assert (await ask(served.path, ACKNOWLEDGE))["ok"]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_socket_of_another_daemon_is_left_alone_and_reported(tmp_path: Path) -> None:
    async with listening(tmp_path, Daemon()) as first:
        second = Daemon().socket(tmp_path)
        with capture_logs() as logs:
            await second.start()
            await second.start()
        assert "another gpuwarden answers" in second.error(host_clock())
        assert len(logs) == 1
        await second.stop()
        assert (await ask(first.path, {"verb": "status"}))["ok"]


@pytest.mark.disposable
async def test_a_run_directory_that_cannot_be_written_is_reported_and_retried(tmp_path: Path) -> None:
    daemon = Daemon()
    daemon.known.set()
    with tmpfs(tmp_path / "run", "1m") as run_dir:
        remount(run_dir, "ro")
        served = daemon.socket(run_dir)
        await served.start()
        assert "Read-only file system" in served.error(host_clock())
        remount(run_dir, "rw")
        await served.start()
        assert served.error(host_clock()) == ""
        assert (await ask(served.path, ACKNOWLEDGE))["ok"]
        await served.stop()


async def test_stop_ends_every_talk(tmp_path: Path) -> None:
    daemon = Daemon()
    async with listening(tmp_path, daemon) as served, client(served.path) as (reader, _):
        await until(lambda: served._clients)
        await served.stop()
        assert await reader.read() == b""
        assert not served.path.exists()
