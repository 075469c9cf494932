"""The kernel's line of a process that it killed for lack of memory: whose it was, and whose limit."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuwarden_collectors.event_facts import LogOrigin, OomKillEvent
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.kernel_log.lines import TEXT_MAX, Record, event_of, parse_record
from gpuwarden_collectors.places import name_at
from support.disposable import kernel_log_writer
from support.kernel_log import following
from support.memory_groups import Step, limited_step
from support.waiting import until

DATA = Path(__file__).parents[1] / "data" / "kernel_log" / "oom.txt"
AT = Stamp(100.0, 1_700_000_000.0)
JOB = "/slurm/uid_1000/job_7"
POD = "pod/eded8c65-6e8e-4c6e-a889-3e427565c740"
CONTAINER = "0123456789abcdef" * 4


def kill(text: str) -> OomKillEvent | None:
    event = event_of(Record(0, 6, 1, 1, text), AT, "boot")
    assert event is None or isinstance(event, OomKillEvent)
    return event


def line(limit: str, group: str, name: str = "python", *, cpuset: str = "/") -> str:
    of = f"oom_memcg={limit}" if limit else "global_oom"
    constraint = "CONSTRAINT_MEMCG" if limit else "CONSTRAINT_NONE"
    head = f"oom-kill:constraint={constraint},nodemask=(null),cpuset={cpuset},mems_allowed=0"
    return f"{head},{of},task_memcg={group},task={name},pid=4711,uid=1000"


def named(text: str) -> tuple[str, str, int | None, int | None]:
    seen = kill(text)
    assert seen is not None
    return seen.job, seen.limit_job, seen.pid, seen.uid


def test_every_recorded_line_is_read() -> None:
    records = [parse_record(raw) for raw in DATA.read_bytes().split(b"\n") if raw and not raw.startswith(b"#")]
    seen = [event_of(record, AT, "boot") for record in records if record]
    assert [(e.of_limit, e.job, e.limit_job, e.pid, e.uid) if isinstance(e, OomKillEvent) else None for e in seen] == [
        (True, "slurm/7", "slurm/7", 32615, 0),
        (True, "container/ef807430361e", "pod/fbdfe8e3-1c87-4ff2-907c-b2ec8e25d012", 966, 0),
        (True, "container/ec9ee26695de", POD, 461754, 0),
        (False, "container/00748bf4e957", "", 7134, 1000),
        (False, "", "", 3035, 10383),
        (False, "", "", 23173, 0),
        (False, "slurm/4711", "", 4712, 1001),
        (True, "slurm/4711", "slurm/4711", 4713, 1001),
        (True, "slurm/3", "slurm/3", 1808, 1000),
        (True, "slurm/4", "slurm/4", 1909, 1000),
        (True, "slurm/s5KDM8K23S7J00", "slurm/s5KDM8K23S7J00", 1095, 65534),
        (True, "", "", None, None),
        (True, "", "", None, None),
        None,
        None,
        None,
    ]


def test_an_event_holds_the_control_groups_and_where_its_line_came_from() -> None:
    record = Record(0, 6, 77, 5, line(JOB, f"{JOB}/step_0"))
    assert event_of(record, AT, "boot", history=True) == OomKillEvent(
        at=AT,
        of_limit=True,
        limit_group=JOB,
        limit_job="slurm/7",
        group=f"{JOB}/step_0",
        job="slurm/7",
        pid=4711,
        uid=1000,
        history=True,
        origin=LogOrigin(boot_id="boot", sequence=77),
    )


@pytest.mark.parametrize(
    "name",
    [
        "a,pid=1,uid=0",
        ",task=x,pid=1",
        "/slurm/uid_0",
        "a/job_8,uid=0",
        "\n,uid=0",
        "",
        "IN= OUT= SRC=",
        ",task_memcg=/",
    ],
)
def test_a_name_of_a_process_changes_nothing_and_is_not_kept(name: str) -> None:
    assert len(name) <= 15
    assert kill(line(JOB, f"{JOB}/step_0", name)) == kill(line(JOB, f"{JOB}/step_0"))


@pytest.mark.parametrize(
    "cpuset", ["x,cpuset=", "x,oom_memcg=", "x,global_oom,task_memcg=", "x,mems_allowed=0,oom_memcg="]
)
def test_a_name_of_a_cpuset_changes_nothing(cpuset: str) -> None:
    assert kill(line(JOB, f"{JOB}/step_0", cpuset=cpuset)) == kill(line(JOB, f"{JOB}/step_0"))


OWN = "/user.slice/user-1000.slice/user@1000.service"
FORGED = (
    f"{OWN}{JOB}",
    f"{OWN}/system.slice/slurmstepd.scope/job_7",
    f"{OWN}/docker-{CONTAINER}.scope",
    f"{OWN}/user.slice/libpod-{CONTAINER}.scope",  # podman without root
    f"{OWN}/kubepods/podeded8c65-6e8e-4c6e-a889-3e427565c740",
    f"{OWN}/x,task_memcg={JOB}",
    f"{OWN}/x,task={JOB}",
    f"{OWN}/x,oom_memcg={JOB},task_memcg={JOB}",
    f"/system.slice/mine.service{JOB}",
    "/system.slice/mine.service/slurmstepd.scope/job_7",
    f"/lxc.payload.mine{JOB}",
    "/lxc.payload.mine/kubepods/podeded8c65-6e8e-4c6e-a889-3e427565c740",
    "/slurm/uid_1000/job_7x",
    "/slurm/uid_1000",
    "/docker/0123456789ab",
    "/",
)
"""Control groups that a user can have, or that are no job's."""


@pytest.mark.parametrize("group", FORGED)
def test_a_control_group_elsewhere_is_no_jobs_whatever_its_name(group: str) -> None:
    assert named(line("", group))[:2] == ("", "")
    assert named(line(group, group))[:2] == ("", "")
    assert name_at(group) == ""


@pytest.mark.parametrize(
    "folder", [f",task_memcg={JOB.replace('7', '8')}", f"x,task={JOB.replace('7', '8')}", "job_8", "a,pid=1,uid=0"]
)
def test_what_a_job_makes_in_its_own_folder_is_its_own_or_no_ones(folder: str) -> None:
    job, limit_job, _, _ = named(line(JOB, f"{JOB}/step_0/{folder}"))
    assert job in ("slurm/7", "")
    assert limit_job in ("slurm/7", "")
    assert named(line("", f"{JOB}/step_0/{folder}"))[0] == "slurm/7"


def test_what_is_in_a_container_is_the_containers_even_if_it_is_called_a_job() -> None:
    assert named(line("", f"/docker/{CONTAINER}{JOB}"))[0] == f"container/{CONTAINER[:12]}"
    assert (
        named(line("", f"/system.slice/docker-{CONTAINER}.scope/system.slice/slurmstepd.scope/job_7"))[0]
        == f"container/{CONTAINER[:12]}"
    )


def test_the_limit_of_all_pods_is_no_pods() -> None:
    assert named(line("/kubepods.slice", f"/kubepods.slice/cri-containerd-{CONTAINER}.scope")) == (
        f"container/{CONTAINER[:12]}", "", 4711, 1000,
    )  # fmt: skip


@pytest.mark.parametrize("length", range(0, len(line(JOB, f"{JOB}1234/step_0")), 3))
def test_a_line_that_was_cut_names_no_other_job(length: int) -> None:
    seen = kill(line(JOB, f"{JOB}1234/step_0")[:length])
    assert seen is None or (seen.job, seen.limit_job, seen.pid) == ("", "", None)


@settings(deadline=None)
@given(st.text(max_size=600))
@example(",task_memcg=/a" * 140)
@example("/" + ",task=" * 300)
@example(",oom_memcg=/" + "/a" * 900 + ",task_memcg=/" + ",task=a" * 20)
def test_no_text_stalls_the_parser_or_makes_an_unbounded_event(rest: str) -> None:
    for text in (rest, f"(null),cpuset=/,mems_allowed=0{rest}", f"(null),oom_memcg=/{rest},task=x,pid=1,uid=1"):
        seen = kill(f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask={text}")
        assert seen is not None
        assert max(len(seen.group), len(seen.limit_group)) <= TEXT_MAX
        assert (seen.group + seen.limit_group).isprintable()
        assert re.fullmatch(
            r"((slurm|container)/[0-9a-f]{1,12}|slurm/s[0-9A-Za-z]{6,24}|pod/[0-9A-Za-z-]{8,64})?", seen.job
        )


@pytest.fixture
def limited() -> Iterator[Step]:
    """Slurm of another version would make it so."""
    with limited_step(f"oomtest{os.getpid()}", 1000, 4711) as step:
        yield step


@pytest.mark.disposable
async def test_a_real_kill_in_a_real_control_group_is_read_from_the_real_kernel_log(limited: Step) -> None:
    script = (
        "import ctypes, os, sys; open(sys.argv[1], 'w').write(str(os.getpid()));"
        "ctypes.CDLL(None).prctl(15, b'a,pid=1,uid=0', 0, 0, 0); x = bytearray(200 << 20)"
    )
    with kernel_log_writer():  # nobody fills the ring meanwhile
        async with following(Path("/dev/kmsg")) as (log, received):
            await until(lambda: log.complete or log.gaps > 0)
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", script, str(limited.folder / "cgroup.procs")
            )
            assert await asyncio.wait_for(process.wait(), 120) == -9
            await until(lambda: any(isinstance(e, OomKillEvent) and e.pid == process.pid for e in received.events))
    (seen,) = [e for e in received.events if isinstance(e, OomKillEvent) and e.pid == process.pid]
    assert (seen.of_limit, seen.job, seen.limit_job, seen.uid) == (True, "slurm/4711", "slurm/4711", 0)
    assert seen.group == limited.group
