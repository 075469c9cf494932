"""Acknowledgements for the jobs of another user: real processes of two users, in real control groups that one of them made."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from gpuwarden.features.evacuation.acknowledge import Acknowledge
from gpuwarden.health.model import EventKind
from gpuwarden.policy.notices import id_of
from gpuwarden.publish.notices import Notices
from gpuwarden.publish.sockets.jobs import JobSocket
from gpuwarden_collectors.base import host_clock
from support.evacuation_rig import Rig, running
from support.evacuations import announced
from support.job_trees import Forest, cgroup_root, forest
from support.ranks import Rank, rank

OWNER, ATTACKER = 1001, 1002
ACKNOWLEDGEMENTS = 10
"""Of each attacker."""

ATTACK = """
import json, os, socket, sys

uid, place, path, notice, count = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5])
os.setgroups([]); os.setgid(uid); os.setuid(uid)
if place:
    os.makedirs(place)
    with open(f"{place}/cgroup.procs", "w") as group:
        group.write(str(os.getpid()))
print(open("/proc/self/cgroup").read().count("\\n"), flush=True)
sys.stdin.readline()
for n in range(count):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        message = {"verb": "acknowledge", "notice": notice, "rank": n // 2, "saved": n % 5 > 0, "step": n, "all_ranks": n % 2 == 0}
        client.sendall(json.dumps(message).encode() + b"\\n")
        print(client.makefile().readline().strip(), flush=True)
sys.stdin.readline()
"""


def forged(job: int, container: str) -> list[str]:
    """Folders that a user makes who has a group of their own."""
    return [
        f"x_slurmstepd.scope/job_{job}/step_0",
        f"slurmstepd.scope/job_{job}/step_0/user/task_0",
        f"system.slice/slurmstepd.scope/job_{job}/step_0/user/task_0",
        f"slurm/uid_{OWNER}/job_{job}/step_0/task_0",
        f"slurm/uid_{ATTACKER}/job_{job}/step_0/task_0",
        f"docker-{container}.scope",
        f"docker/{container}",
        f"machine.slice/libpod-{container}.scope/container",
        f"kubepods.slice/kubepods-pod7.slice/cri-containerd-{container}.scope",
        f"kubepods/burstable/pod7/{container}",
    ]


@contextmanager
def delegated(version: int, label: str) -> Iterator[Path]:
    """A group that is the attacker's, as systemd gives one to each user who is logged in."""
    top = cgroup_root(version) / f"gpuwarden-test-{os.getpid()}-{label}.slice"
    own = top / f"user@{ATTACKER}.service"
    own.mkdir(parents=True)
    for path in (own, own / "cgroup.procs"):
        os.chown(path, ATTACKER, ATTACKER)
    try:
        yield own
    finally:
        for folder in sorted((path for path in top.rglob("*") if path.is_dir()), key=lambda path: -len(path.parts)):
            folder.rmdir()
        top.rmdir()


@contextmanager
def attacker(folder: Path | None, below: str, socket: Path, notice: str) -> Iterator[subprocess.Popen[str]]:
    """Run an attacker in the control group and folder that it wants to be in."""
    place = "" if folder is None else str(folder / below)
    join = [] if folder is None else ["sh", "-c", f'echo $$ > {folder}/cgroup.procs && exec "$@"', "sh"]
    words = [sys.executable, "-I", "-c", ATTACK, str(ATTACKER), place, str(socket), notice, str(ACKNOWLEDGEMENTS)]
    process = subprocess.Popen(
        [*join, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={"SLURM_PROCID": "0"}, cwd="/"
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip(), "it could not make its group"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def trees() -> Iterator[Forest]:
    with forest() as grown:
        yield grown


@pytest.fixture
def victims(trees: Forest) -> Iterator[list[Rank]]:
    """A rank of a job by version 2, one of the same job by version 1, and one in a container."""
    groups = [
        trees.cgroup(f"system.slice/slurmstepd.scope/job_{trees.job}/step_0/user/task_0"),
        trees.cgroup(f"slurm/uid_{OWNER}/job_{trees.job + 50}/step_0/task_0", version=1),
        trees.cgroup(f"docker/{trees.container}"),
    ]
    environment = {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "RANK": "0"}
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                rank(
                    uid=OWNER,
                    env=environment,
                    prefix=["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"],
                )
            )
            for group in groups
        ]


@asynccontextmanager
async def listening(folder: Path, rig: Rig) -> AsyncIterator[JobSocket]:
    """Serve the job socket in a folder that every user reaches."""
    verb = Acknowledge(rig.departing.current, rig.departing.membership_of, rig.departing.acknowledged).verb
    verbs = {"acknowledge": verb}
    served = JobSocket(folder, status=dict, notices=Notices(), verbs=verbs, clients=512, clients_of_user=256)
    await served.start()
    task = asyncio.create_task(served.run())
    try:
        yield served
    finally:
        task.cancel()
        await served.stop()


@pytest.mark.slow
async def test_none_of_two_hundred_forged_acknowledgements_is_accepted(
    tmp_path: Path, trees: Forest, victims: list[Rank]
) -> None:
    """The forgeries come while no controller answers, from the attacker's own process, and from groups with the names of the
    job, of its user and of the container.
    """
    rig = Rig(tmp_path, victims[0])
    rig.holders.clear()
    (rig.proc / "self").symlink_to("/proc/self")
    for victim in victims[1:]:
        rig.admits(victim.pid)
    rig.committed.set()
    notice = announced(7_200.0, at=host_clock().boottime)
    with ExitStack() as stack:
        folders: list[tuple[Path | None, str]] = [(None, "")]
        for version in (1, 2):
            own = stack.enter_context(delegated(version, f"{trees.job}v{version}"))
            folders += [(own, f"{n}/{below}") for n, below in enumerate(forged(trees.job, trees.container))][
                : 10 if version == 2 else 9
            ]
        async with running(rig), listening(trees.folder, rig) as served:
            attackers = [
                stack.enter_context(attacker(own, below, served.path, id_of(notice))) for own, below in folders
            ]
            for each in attackers:
                rig.admits(each.pid)
            rig.acts(notice)
            await rig.wait(lambda: rig.kinds().count(EventKind.SIGNALLED) >= len(victims), "all victims to be told")
            for each in attackers:
                assert each.stdin is not None
                each.stdin.write("go\n")
                each.stdin.flush()
            answers = await asyncio.gather(*(asyncio.to_thread(_answers, each) for each in attackers))
            replies = [answer for of_one in answers for answer in of_one]
            assert len(replies) == 200
            assert [answer for answer in replies if answer["ok"]] == []
            assert EventKind.SAVED not in rig.kinds()
        assert [victim.received() for victim in victims] == ["TERM"] * len(victims)


def _answers(process: subprocess.Popen[str]) -> list[dict[str, object]]:
    assert process.stdout is not None
    return [json.loads(process.stdout.readline()) for _ in range(ACKNOWLEDGEMENTS)]


SCAN = """
import sys
from pathlib import Path
from gpuwarden_collectors.receivers.reader import ReceiversReader

for job in ReceiversReader(Path("/proc")).read({int(pid) for pid in sys.argv[1:]}):
    for process in job.processes:
        if str(process.pid) in sys.argv[1:]:
            print(process.pid, job.kind, job.id, job.uid, process.role)
"""


@pytest.mark.slow
@pytest.mark.parametrize("sees", ["all", "its own groups", "none"])
async def test_a_daemon_in_a_container_sees_the_same_jobs_and_is_not_deceived_either(
    trees: Forest, victims: list[Rank], sees: str
) -> None:
    """The daemon is in a cgroup namespace of its own, beside the victims' groups: with the file systems of the host,
    with its own part of them, and without any, where a group's place alone counts.
    """
    covers = {
        "all": ":",
        "its own groups": "umount --recursive --lazy /sys/fs/cgroup; mount -t cgroup2 cgroup2 /sys/fs/cgroup",
        "none": "umount --recursive --lazy /sys/fs/cgroup",
    }
    own = trees.cgroup(f"system.slice/docker-{'e' * 32}{trees.container[:32]}.scope")
    join = 'echo $$ > "$1"/cgroup.procs; shift; exec unshare --cgroup --mount sh -c "$@"'
    with ExitStack() as stack:
        attackers = []
        for version in (1, 2):
            folder = stack.enter_context(delegated(version, f"{trees.job}v{version}"))
            attackers += [
                stack.enter_context(attacker(folder, f"{n}/{below}", Path("/none"), ""))
                for n, below in enumerate(forged(trees.job, trees.container))
            ]
        pids = [
            str(pid)
            for pid in (*(participant.pid for participant in victims), *(participant.pid for participant in attackers))
        ]
        words = ["sh", "-c", join, "sh", own, f'{covers[sees]}; exec "$@"', "sh", sys.executable, "-c", SCAN, *pids]
        process = await asyncio.create_subprocess_exec(
            *words, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        )
        rows = [line.split() for line in (await process.communicate())[0].decode().splitlines()]
    shown = {row[0]: row[1:] for row in rows}
    jobs = [("slurm", str(trees.job)), ("slurm", str(trees.job + 50)), ("container", trees.container)]
    assert [shown[pid] for pid in pids[:3]] == [[kind, number, str(OWNER), "rank"] for kind, number in jobs]
    assert {tuple(shown[pid][:1]) for pid in pids[3:] if pid in shown} == {("process",)}
