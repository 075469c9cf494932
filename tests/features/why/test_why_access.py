"""Who may see which job: the real sockets, asked by the real command as real users and from real control groups."""

from __future__ import annotations

import asyncio
import grp
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.features.why.answering import CALLERS_AT_ONCE, OWN_BURST, Answering
from gpuwarden.features.why.memory import ended
from gpuwarden.features.why.model import NAME, Answer, Cause, End, Epoch, Record, Touch
from gpuwarden.features.why.names import names_of
from gpuwarden.features.why.snapshot import Shown
from gpuwarden.ledger.store import Entry, Store
from gpuwarden.publish.notices import Notices
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden.publish.sockets.control import Control
from gpuwarden.publish.sockets.jobs import Caller, JobSocket
from gpuwarden.publish.sockets.unix_socket import VerbError
from gpuwarden_collectors.base import Clock, host_clock
from gpuwarden_collectors.facts import Stamp
from support.commands import environment, gpuwarden
from support.control_server import serving
from support.job_trees import Forest, forest
from support.snapshots import slot, snapshot
from support.socket_talk import ask

PATIENCE = 60.0
ROOT_ONLY = pytest.mark.needs("root")
ALICE, BOB = 61_001, 61_002
GROUP = "daemon"
CONTAINER = "3f9a0c1b2d4e" + "5" * 52
IN_POD = "abcd0c1b2d4e" + "5" * 52
OTHER = "77770c1b2d4e" + "5" * 52
COMMAND = textwrap.dedent("""
    import contextlib, io, json, os, sys
    from gpuwarden.cli.main import main
    import gpuwarden.features.why.text
    uid, groups, words = json.loads(sys.argv[1])
    with contextlib.redirect_stderr(io.StringIO()):  # whatever is imported late: other users may not be able to read Python's files
        main(["why", "--run-dir", "/nonexistent"])
        if "--state-dir" in words:
            main(["why", "1", "--state-dir", "/nonexistent"])
    if os.geteuid() == 0:
        os.setgroups(groups)
        os.setgid(uid)
        os.setuid(uid)
    sys.exit(main(["why", *words]))
""")
CLIENT = textwrap.dedent("""
    import json, os, socket, sys
    uid, groups, path, jobs = json.loads(sys.argv[1])
    os.setgroups(groups)
    os.setgid(uid)
    os.setuid(uid)
    for asked in jobs:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(60)
            client.connect(path)
            client.sendall(json.dumps({"verb": "why", **asked}).encode() + b"\\n")
            print(client.makefile().readline(), end="")
""")
NOT_MINE = 3


def stamp(ago: float) -> Stamp:
    now = host_clock()
    return Stamp(now.boottime - ago, now.wall - ago)


def job(name: str, uid: int | None, *, ago: float = 3600.0, user: str = "") -> Epoch:
    return Epoch(
        name=name,
        began=stamp(ago),
        boot_id="a-boot",
        uid=uid,
        user=user,
        slots=(slot(3),),
        touches=(Touch(what="xid", detail="79", at=stamp(ago - 60), slot=slot(3), pid=77),),
    )


def record(name: str, uid: int | None, *, ago: float = 600.0) -> Record:
    answer = Answer(cause=Cause.HARDWARE, sentence=f"GPU 3 ended {name}.", code="xid.79", slot=slot(3))
    end = End(at=stamp(ago), known_from="epilog", exit_code=1)
    return Record(epoch=job(name, uid, ago=ago + 3600), end=end, answer=answer)


POD = replace(
    job("pod/team-a/train-0", 0), also=("pod/0b4c1d7e-0000-4000-8000-000000000001", f"container/{IN_POD[:12]}")
)
KNOWN = Shown(
    running=(job("slurm/71", ALICE), job("slurm/72", BOB, user="bob"), job(f"container/{CONTAINER[:12]}", 0), POD),
    ended=(
        record("slurm/60", ALICE, ago=9000),
        record("slurm/61", ALICE, ago=800),
        record("slurm/62", BOB, ago=700),
        record("session/4242", 0, ago=90),
        record("slurm/63", None, ago=80),
    ),
)


@dataclass
class Site:
    run_dir: Path
    ledger: Path
    shown: Snapshot

    async def why(
        self, uid: int, *words: str, groups: Sequence[int] = (), cgroup: str = "", env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the command as this user."""
        request = json.dumps([uid, [uid, *groups], ["--run-dir", str(self.run_dir), *words]])
        line = [sys.executable, "-c", COMMAND, request]
        if cgroup:
            line = ["sh", "-c", f'echo $$ > {cgroup}/cgroup.procs && exec "$@"', "sh", *line]
        variables = {key: value for key, value in environment(self.run_dir).items() if key != "SLURM_JOB_ID"}
        return await asyncio.to_thread(
            subprocess.run, line, env={**variables, **(env or {})}, capture_output=True, text=True, timeout=PATIENCE,
            check=False, cwd="/",
        )  # fmt: skip

    async def jobs(
        self,
        uid: int,
        *names: str | None,
        hint: str = "",
        groups: Sequence[int] = (),
        cgroup: str = "",
        socket: str = "job.sock",
    ) -> list[str | None]:
        """Return the jobs that this user is shown for these names, None where there is none."""
        asked = [{"job": name, "hint": hint} for name in names]
        line = [
            sys.executable,
            "-I",
            "-c",
            CLIENT,
            json.dumps([uid, [uid, *groups], str(self.run_dir / socket), asked]),
        ]
        if cgroup:
            line = ["sh", "-c", f'echo $$ > {cgroup}/cgroup.procs && exec "$@"', "sh", *line]
        done = await asyncio.to_thread(
            subprocess.run, line, capture_output=True, text=True, timeout=PATIENCE, check=True
        )
        answers = list(map(json.loads, done.stdout.splitlines()))
        assert len(answers) == len(names)
        assert all(answer["ok"] or answer["code"] == NOT_MINE for answer in answers), answers
        return [answer["result"]["job"] if answer["ok"] else None for answer in answers]


@asynccontextmanager
async def site(
    folder: Path, past: Sequence[Record] = (), shown_jobs: Shown = KNOWN, clock: Clock = host_clock
) -> AsyncIterator[Site]:
    """Serve both sockets, with a ledger that holds `past`."""
    ledger = folder / "state" / "ledger.db"
    ledger.parent.mkdir()
    ledger.parent.chmod(0o700)
    with Store.open(ledger, now=host_clock().wall) as store:
        store.append([Entry(events=tuple(ended(record, "a-boot") for record in past))])
    shown = snapshot()
    shown = replace(shown, features={**shown.features, NAME: shown_jobs})
    answering = Answering(lambda: shown, ledger=ledger, proc=Path("/proc"), clock=clock)
    answering.follow(shown)
    run_dir = folder / "run"
    run_dir.mkdir(mode=0o755)
    jobs = JobSocket(
        run_dir, status=dict, notices=Notices(), verbs={"why": answering.to_job}, deadline=PATIENCE, check_every=3600.0
    )
    group = GROUP if os.geteuid() == 0 else None  # nobody else can give the socket to it
    control = Control(run_dir, {"why": answering.to_operator}, group=group, deadline=PATIENCE)
    await jobs.start()
    await control.start()
    try:
        yield Site(run_dir, ledger, shown)
    finally:
        await control.stop()
        await jobs.stop()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a busy host the time that it needs: told to try again, nobody here does."""
    for limit in ("CALLER_READ_WITHIN", "LEDGER_READ_WITHIN"):
        monkeypatch.setattr(f"gpuwarden.features.why.answering.{limit}", PATIENCE)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users reach, which pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="gw-why-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture
def trees() -> Iterator[Forest]:
    with forest() as grown:
        yield grown


def group_id() -> int:
    return grp.getgrnam(GROUP).gr_gid


@ROOT_ONLY
async def test_a_user_sees_his_own_jobs_and_another_s_is_as_one_that_does_not_exist(folder: Path) -> None:
    async with site(folder) as here:
        own = await here.why(ALICE, "71", "--short")
        assert own.stdout.startswith(
            "gpuwarden: slurm/71 is running: GPU 3: Xid 79: GPU has fallen off the bus, process 77, "
        )
        hers, none = await here.why(ALICE, "72"), await here.why(ALICE, "99")
        assert (hers.returncode, hers.stdout) == (NOT_MINE, "")
        assert hers.stderr.replace("72", "99") == none.stderr
        assert "no job '99' that you may see" in none.stderr
        assert await here.jobs(ALICE, "71", "slurm/61", "session/4242") == ["slurm/71", "slurm/61", None]
        assert await here.jobs(ALICE, "63") == [None], "whose it is, is not known"


@ROOT_ONLY
async def test_without_a_name_it_is_the_user_s_newest_job(folder: Path) -> None:
    only_ended = Shown(ended=KNOWN.ended)
    async with site(folder, shown_jobs=only_ended) as here:
        assert (await here.why(BOB)).stdout.startswith("slurm/62: GPU 3 ended slurm/62.\n")
        assert await here.jobs(ALICE, None) == ["slurm/61"]
        assert await here.jobs(ALICE, None, hint="60") == ["slurm/60"], "the job that it runs in goes before"
        assert await here.jobs(ALICE, None, hint="62") == ["slurm/61"], "a forged number shows nobody else's"
        assert await here.jobs(65534, None) == [None]
        assert await here.jobs(0, None) == [None], "root has the other socket"


@ROOT_ONLY
async def test_root_and_the_control_group_see_all(folder: Path) -> None:
    names = ("71", "72", "63", "session/4242", f"container/{CONTAINER}")
    every = ["slurm/71", "slurm/72", "slurm/63", "session/4242", f"container/{CONTAINER[:12]}"]
    async with site(folder) as here:
        assert await here.jobs(0, *names, socket="control.sock") == every
        assert await here.jobs(BOB, *names, groups=[group_id()], socket="control.sock") == every
        own = await here.why(BOB, "--short", groups=[group_id()])
        assert own.stdout.startswith("gpuwarden: slurm/72 "), "his own before others'"


@ROOT_ONLY
async def test_a_container_sees_itself_alone_whatever_its_user(folder: Path, trees: Forest) -> None:
    async with site(folder) as here:
        own, other = (trees.cgroup(f"/docker/{container}") for container in (CONTAINER, OTHER))
        mine = f"container/{CONTAINER[:12]}"
        for uid in (0, ALICE):
            names = await here.jobs(uid, None, mine, f"container/{CONTAINER}", "71", "72", "session/4242", cgroup=own)
            assert names == [mine, mine, mine, None, None, None], "a user's number means nothing there"
            assert await here.jobs(uid, None, mine, cgroup=other, hint="71") == [None, None]
        pod = trees.cgroup(f"/kubepods/burstable/pod0b4c1d7e-0000-4000-8000-000000000001/{IN_POD}")
        assert await here.jobs(0, None, f"container/{IN_POD}", POD.name, mine, cgroup=pod) == [POD.name] * 3 + [None]
        by_name = await here.jobs(0, POD.name, POD.also[0], f"container/{IN_POD}", socket="control.sock")
        assert by_name == [POD.name] * 3


@ROOT_ONLY
async def test_a_process_in_a_job_of_slurm_is_shown_that_job(folder: Path, trees: Forest) -> None:
    async with site(folder) as here:
        group = trees.cgroup("/system.slice/slurmstepd.scope/job_72/step_0")
        assert await here.jobs(ALICE, None, "72", "71", cgroup=group) == ["slurm/72", "slurm/72", "slurm/71"]
        forged = trees.cgroup("/user.slice/job_72")
        assert await here.jobs(ALICE, None, "72", cgroup=forged) == ["slurm/71", None], (
            "a name elsewhere counts for nothing"
        )


@ROOT_ONLY
async def test_a_process_in_a_job_that_the_tree_calls_by_its_sluid_is_shown_that_job(
    folder: Path, trees: Forest
) -> None:
    """A user who asks from elsewhere is shown the newest of the jobs, which is another one."""
    running = (replace(job("slurm/72", ALICE, ago=7200), also=(f"slurm/{trees.sluid}",)), job("slurm/73", ALICE))
    async with site(folder, shown_jobs=Shown(running=running)) as here:
        group = trees.cgroup(f"/system.slice/slurmstepd.scope/{trees.sluid}/step_0")
        assert await here.jobs(ALICE, None, "73", cgroup=group) == ["slurm/72", "slurm/73"]
        assert await here.jobs(ALICE, None) == ["slurm/73"]


@ROOT_ONLY
async def test_nobody_sees_a_container_or_pod_by_the_number_of_its_user(folder: Path) -> None:
    """Images have users with the numbers that people have on the host."""
    names = [f"container/{CONTAINER[:12]}", POD.name]
    running = tuple(replace(job(name, ALICE), also=POD.also if name == POD.name else ()) for name in names)
    past = [record(f"container/{OTHER[:12]}", ALICE)]
    async with site(folder, past, shown_jobs=Shown(running=running)) as here:
        assert await here.jobs(ALICE, None, *names, f"container/{IN_POD}", past[0].epoch.name) == [None] * 5
        assert await here.jobs(0, *names, past[0].epoch.name, socket="control.sock") == [*names, past[0].epoch.name]


@ROOT_ONLY
async def test_an_ended_job_of_the_same_number_is_not_shown_to_a_job_of_another_user(
    folder: Path, trees: Forest
) -> None:
    past = [record("slurm/73", BOB, ago=7 * 86_400.0), record("slurm/73", None, ago=6 * 86_400.0)]
    ended = Shown(ended=(record("slurm/73", BOB, ago=900), record("slurm/61", ALICE, ago=5_000)))
    async with site(folder, past, shown_jobs=ended) as here:
        group = trees.cgroup("/system.slice/slurmstepd.scope/job_73/step_0")
        assert await here.jobs(ALICE, None, "73", hint="73", cgroup=group) == ["slurm/61", None]
        assert await here.jobs(BOB, None, "73", cgroup=group) == ["slurm/73", "slurm/73"]


@pytest.mark.slow
@ROOT_ONLY
async def test_older_jobs_are_in_the_ledger_and_the_newest_of_a_number_is_shown(folder: Path) -> None:
    week = 7 * 86_400.0
    past = [
        record("slurm/71", ALICE, ago=2 * week),
        record("slurm/5", BOB, ago=2 * week),
        record("slurm/5", ALICE, ago=week),
    ]
    async with site(folder, past) as here:
        control, job = here.run_dir / "control.sock", here.run_dir / "job.sock"
        answer = (await ask(control, {"verb": "why", "job": "71"}))["result"]
        assert (answer["running"], answer["older"]) == (True, 1)
        answer = (await ask(control, {"verb": "why", "job": "5"}))["result"]
        assert (answer["running"], answer["older"], answer["uid"]) == (False, 1, ALICE)
        answer = json.loads((await here.why(ALICE, "5", "--json")).stdout)
        assert (answer["job"], answer["older"]) == ("slurm/5", 0), "bob's of this number is not even counted"
        control.unlink()
        job.unlink()
        offline = await here.why(0, "5", "--state-dir", str(here.ledger.parent))
        assert offline.stdout.startswith("slurm/5: GPU 3 ended slurm/5.\n"), offline.stderr
        assert (await here.why(0, "6", "--state-dir", str(here.ledger.parent))).returncode == NOT_MINE
        forbidden = await here.why(ALICE, "5", "--state-dir", str(here.ledger.parent))
        assert (forbidden.returncode, forbidden.stdout) == (69, "")
        silent = await here.why(ALICE)
        assert (silent.returncode, "no daemon answers" in silent.stderr) == (69, True)


@ROOT_ONLY
async def test_one_user_cannot_keep_the_ledger_busy(folder: Path) -> None:
    async with site(folder) as here:
        answers = [await ask(here.run_dir / "job.sock", {"verb": "why", "job": "99"}) for _ in range(40)]
        codes = [answer["code"] for answer in answers]
        assert (codes[0], codes[-1]) == (NOT_MINE, 75)
        assert await here.jobs(ALICE, "71") == ["slurm/71"], "another user is not held up"


@ROOT_ONLY
async def test_all_ranks_of_a_node_may_ask_at_their_end_and_nobody_endlessly(folder: Path) -> None:
    asked_at = host_clock()  # with the time that a busy host takes for the questions more would be allowed
    async with site(folder, clock=lambda: asked_at) as here:
        names = await here.jobs(ALICE, *[None] * 200)
        assert names == ["slurm/71"] * 200
        answers = [await ask(here.run_dir / "job.sock", {"verb": "why"}) for _ in range(OWN_BURST + 100)]
        assert {answer["code"] for answer in answers} == {NOT_MINE, 75}
        assert await here.jobs(BOB, None) == ["slurm/72"]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "x" * 300,
        "slurm/",
        "slurm/-1",
        "slurm/1;2",
        "pod/../x/y",
        "cron/7",
        "4711\n",
        "\x1b[2J",
        "job/slurm/71",
        "٣",
        "slurm/" + "9" * 40,
    ],
)
async def test_a_name_that_is_none_is_refused_with_what_was_expected(folder: Path, name: str) -> None:
    async with site(folder) as here:
        answer = await ask(here.run_dir / "control.sock", {"verb": "why", "job": name})
    assert (answer["ok"], answer["code"]) == (False, 64)
    assert "expected a job such as 4711" in answer["error"]
    assert answer["error"].isprintable()


@pytest.mark.parametrize("name", ["7_3", "slurm/7_3", "7_[1-3]", "7_[1,4-9%2]", "7+1", "7_3.0", "7+1.batch"])
async def test_a_part_of_a_job_is_refused_with_the_command_that_gives_its_number(folder: Path, name: str) -> None:
    async with site(folder) as here:
        answer = await ask(here.run_dir / "control.sock", {"verb": "why", "job": name})
    assert (answer["ok"], answer["code"]) == (False, 64)
    part = name.removeprefix("slurm/").partition(".")[0].partition("_[")[0]  # Slurm knows no 7_[1-3]
    assert f"`scontrol show job {part}` prints it as JobId" in answer["error"]


@pytest.mark.parametrize("name", ["4711.0", "slurm/4711.12", "4711.batch", "4711.extern"])
def test_a_step_is_the_job_that_it_is_of(name: str) -> None:
    assert names_of(name) == ("slurm/4711",)


@pytest.mark.parametrize("asked", [{"job": 71}, {"job": ["71"]}, {"job": {}}, {"job": True}])
async def test_a_request_of_another_form_is_refused(folder: Path, asked: dict[str, Any]) -> None:
    async with site(folder) as here:
        answer = await ask(here.run_dir / "control.sock", {"verb": "why", **asked})
    assert (answer["ok"], answer["code"]) == (False, 64)


async def test_a_name_of_ten_kilobytes_is_refused_before_it_is_sent(folder: Path) -> None:
    async with site(folder) as here:
        done = await here.why(os.geteuid(), "x" * 10_000)
        assert done.returncode == 64
        assert len(done.stderr) < 400
        answer = await ask(here.run_dir / "job.sock", {"verb": "why", "job": "7" * 10_000})
        assert (answer["ok"], answer["code"]) == (False, 64)


@ROOT_ONLY
async def test_a_batch_script_prints_one_line_at_its_end_and_keeps_its_exit_code(folder: Path) -> None:
    async with site(folder) as here:
        script = f"set -e\ntrap '{sys.executable} -m gpuwarden why --short --run-dir $RUN || true' EXIT\nexit 7\n"
        variables = environment(here.run_dir, {"SLURM_JOB_ID": "72"})
        for run_dir in (here.run_dir, here.run_dir / "nowhere"):
            done = await asyncio.to_thread(
                subprocess.run, ["bash", "-c", script], env={**variables, "RUN": str(run_dir)}, capture_output=True,
                text=True, timeout=PATIENCE, check=False,
            )  # fmt: skip
            assert done.returncode == 7
            assert len((done.stdout + done.stderr).splitlines()) == 1, done
    assert "no daemon answers" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("answers", [None, b"no JSON\n", b"[]\n"], ids=["nothing", "no JSON", "no answer"])
async def test_a_daemon_that_does_not_answer_ends_neither_the_command_s_time_nor_the_script(
    tmp_path: Path, answers: bytes | None
) -> None:
    with serving(tmp_path, None if answers is None else lambda _: answers):
        done = await asyncio.to_thread(gpuwarden, "why", "--short", "--run-dir", tmp_path, temporary=tmp_path)
    assert done.returncode == (75 if answers is None else 69)
    assert (done.stdout, len(done.stderr.splitlines())) == ("", 1)


async def test_a_job_that_asks_at_its_end_gets_the_answer_that_it_would_have(folder: Path) -> None:
    """The trap of a batch script runs while the job still does."""
    oom = replace(job("slurm/71", ALICE), touches=(Touch(what="oom_limit", at=stamp(3), pid=77),))
    async with site(folder, shown_jobs=Shown(running=(oom,))) as here:
        answer = (await ask(here.run_dir / "control.sock", {"verb": "why", "job": "71"}))["result"]
    assert (answer["running"], answer["answer"]["cause"]) == (True, "job")
    assert "memory" in answer["answer"]["sentence"]


async def test_a_job_that_has_ended_is_not_running_before_its_record_is_made(folder: Path) -> None:
    shown_jobs = Shown(running=(job("slurm/71", ALICE),), ends={"slurm/71": End(at=stamp(9), known_from="cgroup")})
    async with site(folder, shown_jobs=shown_jobs) as here:
        answer = (await ask(here.run_dir / "control.sock", {"verb": "why", "job": "71"}))["result"]
    assert (answer["running"], answer["end"]["known_from"], answer["final"]) == (False, "cgroup", False)


async def test_a_job_that_asks_at_its_end_hears_nothing_of_what_was_another_s_or_is_contradicted(folder: Path) -> None:
    other = replace(job("slurm/72", BOB), pids=(200,))
    xids = [
        Touch(what="xid", detail=number, at=stamp(3), slot=slot(3), pid=pid)
        for number, pid in (("94", 200), ("79", None))
    ]
    mine = replace(job("slurm/71", ALICE), touches=tuple(xids), pids=(77,))
    shown_jobs = Shown(running=(mine, other), denied=frozenset({f"xid.79@gpu/{slot(3)}"}))
    async with site(folder, shown_jobs=shown_jobs) as here:
        answer = (await ask(here.run_dir / "control.sock", {"verb": "why", "job": "71"}))["result"]
    assert answer["answer"] is None
    assert len(answer["touches"]) == 2


@pytest.mark.slow
async def test_callers_whose_control_group_cannot_be_read_take_a_few_threads_only(tmp_path: Path) -> None:
    """A read of /proc/PID/cgroup waits while the kernel's lock of all control groups is held."""
    (tmp_path / "77").mkdir()
    os.mkfifo(tmp_path / "77" / "cgroup")
    shown = snapshot()
    answering = Answering(lambda: shown, ledger=tmp_path / "none", proc=tmp_path, clock=host_clock)
    caller = Caller(pid=77, started=1, uid=ALICE)
    before = set(threading.enumerate())  # of which some may end meanwhile: other tests left them
    asked = [answering.to_job({}, caller) for _ in range(3 * CALLERS_AT_ONCE)]
    failed = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(error) for error in failed} == {VerbError}
    assert len(set(threading.enumerate()) - before) == CALLERS_AT_ONCE
    os.close(os.open(tmp_path / "77" / "cgroup", os.O_RDWR))  # whoever waits for a writer reads nothing, and goes on
    with pytest.raises(VerbError, match="no job of yours"):
        await answering.to_job({}, Caller(pid=0, started=None, uid=ALICE))
