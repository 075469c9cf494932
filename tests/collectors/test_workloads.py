"""What runs on the GPUs: what belongs together, since when, and when it is gone."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.process_stat import process_stat
from gpuwarden_collectors.receivers.workloads import KEPT_FOR, SESSIONS_MAX, WORKLOADS_MAX, WorkloadsReader
from gpuwarden_collectors.receivers.workloads_facts import Workload, WorkloadProcess, WorkloadsFacts
from support.job_trees import Forest, forest, member
from support.memory_groups import Step, limited_step
from support.needs import root_rights
from support.waiting import until

ID, OTHER = "0123456789ab" + "cd" * 26, "ab" * 32
GPU, NEXT = "0000:1b:00.0", "0000:43:00.0"
UID = "0c7b5c32-1111-4222-8333-123456789abc"
POD = f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice"
JOB = "/system.slice/slurmstepd.scope/job_7"
PID_MAX_LIMIT = 4 << 20
"""A number that the kernel gives to no process (linux/threads.h)."""


class Proc:
    """Processes as /proc shows them, on a clock of their own, and a tree of control groups of version 2."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tree = folder / "proc", folder / "cgroup"
        self.now = 1000.0
        self.open: dict[int, tuple[str, ...]] | None = {}
        self.jobs: dict[int, int] = {}
        self.tree.mkdir()
        (self.folder / "self").mkdir(parents=True)
        device = self.tree.stat().st_dev
        mount = f"30 1 {os.major(device)}:{os.minor(device)} / {self.tree} rw - cgroup2 cgroup2 rw\n"
        (self.folder / "self/mountinfo").write_text(mount)
        self.reader = WorkloadsReader(
            self.folder,
            users=lambda: self.open,
            jobs=lambda: self.jobs,
            root=folder,
            clock=lambda: Stamp(self.now, self.now),
        )

    def add(self, pid: int, group: str = "/", *, began: float = 100.0, session: int = 0, parent: int = 1) -> None:
        """A process of the user of this test, with the first GPU open."""
        folder = self.folder / str(pid)
        folder.mkdir(exist_ok=True)
        ticks = int(began * os.sysconf("SC_CLK_TCK"))
        line = (
            f"{pid} (python (x) ) S {parent} {pid} {session or pid} 0 -1 4194560 1 0 0 0 1 1 0 0 20 0 1 0 {ticks} 1 1"
        )
        (folder / "stat").write_text(f"{line}{' 0' * 25}\n")
        (folder / "cgroup").write_text(f"0::{group}\n")
        self.uses(pid, GPU)

    def of_user(self, uid: int) -> None:
        for process in self.folder.iterdir():
            os.chown(process, uid, uid)

    def uses(self, pid: int, *slots: str) -> None:
        assert self.open is not None
        self.open = {**self.open, pid: slots}

    def group(self, path: str, **files: str) -> Path:
        folder = self.tree / path.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name.replace("__", ".")).write_text(text)
        return folder

    def gone(self, pid: int) -> None:
        shutil.rmtree(self.folder / str(pid))
        assert self.open is not None
        self.open = {other: slots for other, slots in self.open.items() if other != pid}

    def read(self, after: float = 5.0) -> dict[str, Workload]:
        """The workloads by name, at the next pass."""
        self.now += after
        facts = self.reader.read()
        assert [workload.name for workload in facts.workloads] == sorted(workload.name for workload in facts.workloads)
        return {workload.name: workload for workload in facts.workloads}


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Proc:
    """Processes of any number: none of them is taken for the daemon itself, whose children are nobody's workload."""
    root_rights()
    monkeypatch.setattr(os, "getpid", lambda: PID_MAX_LIMIT)
    return Proc(tmp_path)


def test_processes_are_grouped_by_job_container_pod_and_session(proc: Proc) -> None:
    for group in (
        f"{JOB}/step_0/user/task_0",
        f"/system.slice/docker-{ID}.scope",
        f"{POD}/cri-containerd-{OTHER}.scope",
    ):
        proc.group(group)
    proc.add(10, f"{JOB}/step_0/user/task_0", began=50.0)
    proc.add(11, f"{JOB}/step_0/user/task_1", began=40.0)
    proc.add(20, f"/system.slice/docker-{ID}.scope")
    proc.add(30, f"{POD}/cri-containerd-{OTHER}.scope")
    proc.add(40, "/user.slice/user-1000.slice/session-3.scope", session=39)
    proc.add(41, "/user.slice/user-1000.slice/session-3.scope", session=39)
    proc.of_user(1000)
    proc.uses(11, NEXT, GPU)
    workloads = proc.read()
    assert list(workloads) == ["container/0123456789ab", f"pod/{UID}", "session/39", "slurm/7"]
    assert workloads["slurm/7"] == Workload(
        name="slurm/7",
        uid=1000,
        started=40.0,
        slots=(GPU, NEXT),
        processes=(
            WorkloadProcess(pid=10, uid=1000, slots=(GPU,)),
            WorkloadProcess(pid=11, uid=1000, slots=(GPU, NEXT)),
        ),
        group=JOB,
    )
    assert workloads[f"pod/{UID}"].also == ("container/abababababab", f"pod/{UID}")
    assert [process.pid for process in workloads["session/39"].processes] == [40, 41]


def test_a_pod_has_the_name_that_kubelet_has_written(proc: Proc, tmp_path: Path) -> None:
    for name in (f"research_train-0_{UID}", "x_y", f"../_bad_{UID}x", f"UPPER_case_{UID}"):
        (tmp_path / "var/log/pods" / name.replace("/", "")).mkdir(parents=True)
    proc.group(POD)
    proc.add(30, f"{POD}/cri-containerd-{OTHER}.scope")
    assert list(proc.read()) == ["pod/research/train-0"]


_BURSTABLE = "b787881eab72720af02b9b405aa3e44b"
_GUARANTEED = "139ff4e89c3da4bc68b5b6b0b5b4291a"
_BEST_EFFORT = "53cdf212c537b17589cdd47299df1761"


@pytest.mark.parametrize(
    ("pod", "uid", "folder"),
    [
        ("team-b_two-node7", _BURSTABLE, f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{_BURSTABLE}.slice"),
        ("team-g_guar.with-dots-node7", _GUARANTEED, f"kubepods.slice/kubepods-pod{_GUARANTEED}.slice"),
        ("team-c_migs-node7", _BEST_EFFORT, f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{_BEST_EFFORT}.slice"),
        ("team-b_two-node7", _BURSTABLE, f"kubepods/burstable/pod{_BURSTABLE}"),
        ("team-g_guar.with-dots-node7", _GUARANTEED, f"kubepods/pod{_GUARANTEED}"),
        ("team-c_migs-node7", _BEST_EFFORT, f"kubepods/besteffort/pod{_BEST_EFFORT}"),
    ],
)  # fmt: skip
def test_a_static_pod_of_kubelet_1_36_is_known_by_its_name(
    proc: Proc, tmp_path: Path, pod: str, uid: str, folder: str
) -> None:
    """The UID of a static pod has no dashes. Folders as kubelet 1.36.2 makes them with systemd and with cgroupfs."""
    (tmp_path / f"var/log/pods/{pod}_{uid}").mkdir(parents=True)
    proc.group(f"/{folder}")
    proc.add(30, f"/{folder}/cri-containerd-{OTHER}.scope" if ".slice" in folder else f"/{folder}/{OTHER}")
    workloads = proc.read()
    assert list(workloads) == [f"pod/{pod.replace('_', '/')}"]
    assert workloads[f"pod/{pod.replace('_', '/')}"].also == ("container/abababababab", f"pod/{uid}")


def test_services_of_roots_and_our_own_processes_are_none(proc: Proc) -> None:
    proc.group(f"/system.slice/docker-{ID}.scope")
    proc.add(20, f"/system.slice/docker-{ID}.scope")  # root in a container
    proc.add(50, "/system.slice/nvidia-dcgm.service")
    assert list(proc.read()) == ["container/0123456789ab"]
    proc.add(os.getpid(), "/system.slice/gpuwarden.service")
    proc.add(61, "/system.slice/gpuwarden.service", parent=os.getpid())
    proc.add(62, "/system.slice/gpuwarden.service", parent=61)
    proc.add(63, "/system.slice/inference.service")
    proc.of_user(990)
    assert set(proc.read()) == {"container/0123456789ab", "session/63"}


OWN = "/user.slice/user-1000.slice/user@1000.service"


@pytest.mark.parametrize(
    "group",
    [f"{OWN}/docker-{ID}.scope", f"{OWN}{JOB}", f"{OWN}{POD}", f"/system.slice/mine.service{JOB}"],
)
def test_a_group_in_the_delegation_of_a_user_counts_for_nothing(proc: Proc, group: str) -> None:
    (proc.group(group) / "memory.events").write_text("oom_kill 5\n")
    proc.add(40, group)
    proc.of_user(1000)
    assert {(workload.name, workload.group, workload.oom_kills) for workload in proc.read().values()} == {
        ("session/40", "", None)
    }


@pytest.mark.parametrize("group", [JOB, f"/system.slice/docker-{ID}.scope", POD])
def test_a_group_at_its_place_that_a_user_owns_counts_for_nothing(proc: Proc, group: str) -> None:
    os.chown(proc.group(group), 1000, 1000)
    proc.add(40, group)
    proc.of_user(1000)
    assert list(proc.read()) == ["session/40"]


def test_a_job_is_there_until_its_control_group_is_gone(proc: Proc) -> None:
    folder = proc.group(JOB)
    proc.add(10, f"{JOB}/step_0")
    began = proc.read()["slurm/7"]
    proc.gone(10)
    assert proc.read()["slurm/7"].processes == ()
    assert proc.read()["slurm/7"].ended is None
    proc.add(11, f"{JOB}/step_1", began=900.0)
    again = proc.read()["slurm/7"]
    assert (again.started, [process.pid for process in again.processes]) == (began.started, [11])
    shutil.rmtree(folder)
    proc.gone(11)
    ended = proc.read()["slurm/7"]
    assert (ended.ended, ended.slots, ended.processes) == (proc.now, (GPU,), ())
    assert proc.read(KEPT_FOR - 1)["slurm/7"] == ended
    assert proc.read(2.0) == {}


def test_a_group_of_the_same_name_is_another_job(proc: Proc) -> None:
    folder = proc.group(JOB)
    proc.add(10, f"{JOB}/step_0")
    proc.read()
    folder.rename(folder.with_name("old"))  # so that its number is not given again
    proc.group(JOB)
    proc.gone(10)
    proc.add(10, f"{JOB}/step_0", began=1003.0)
    proc.now += 5
    first, second = proc.reader.read().workloads
    assert (first.name, first.started, first.ended) == ("slurm/7", 100.0, proc.now)
    assert (second.name, second.started, second.ended) == ("slurm/7", 1003.0, None)


def test_a_session_is_gone_with_its_last_process_and_the_next_run_is_another(proc: Proc) -> None:
    proc.add(40, session=39)
    proc.add(41, session=39)
    proc.of_user(1000)
    proc.read()
    proc.gone(40)
    assert proc.read()["session/39"].ended is None
    proc.gone(41)
    assert proc.read()["session/39"].ended == proc.now
    proc.add(42, session=39, began=1012.0)
    proc.of_user(1000)
    proc.now += 5
    assert [(workload.started, workload.ended is None) for workload in proc.reader.read().workloads] == [
        (100.0, False),
        (1012.0, True),
    ]


def test_a_process_number_that_comes_again_is_another_process(proc: Proc) -> None:
    proc.add(40)
    proc.of_user(1000)
    proc.read()
    proc.add(40, began=1003.0)
    proc.of_user(1000)
    proc.now += 5
    assert [(workload.started, workload.ended is None) for workload in proc.reader.read().workloads] == [
        (100.0, False),
        (1003.0, True),
    ]


def test_while_nvml_does_not_answer_what_lives_is_there(proc: Proc) -> None:
    proc.add(40)
    proc.add(41)
    proc.of_user(1000)
    proc.read()
    proc.open = None
    workloads = proc.read()
    assert [(workload.ended, len(workload.processes)) for workload in workloads.values()] == [(None, 1), (None, 1)]
    shutil.rmtree(proc.folder / "41")
    workloads = proc.read()
    assert (workloads["session/40"].ended, workloads["session/41"].ended) == (None, proc.now)


def test_a_container_began_with_its_first_process_though_that_has_no_gpu_open(proc: Proc) -> None:
    group = f"/system.slice/docker-{ID}.scope"
    proc.group(group, cgroup__procs="9\n20\nx\n0\n")
    proc.add(9, group, began=60.0)
    proc.add(20, group)
    proc.open = {20: (GPU,)}
    assert proc.read()["container/0123456789ab"].started == 60.0


def test_where_slurm_has_no_control_groups_the_job_is_what_the_other_collector_found(proc: Proc) -> None:
    proc.add(10)
    proc.add(11)
    proc.of_user(1000)
    assert list(proc.read()) == ["session/10", "session/11"]
    proc.jobs = {10: 7, 11: 7}
    workloads = proc.read()
    assert [process.pid for process in workloads["slurm/7"].processes] == [10, 11]
    proc.gone(10)
    proc.gone(11)
    assert {workload.name for workload in proc.read().values() if workload.ended == proc.now} >= {"slurm/7"}


def test_a_job_whose_tree_has_no_number_is_named_by_the_other_collector(proc: Proc) -> None:
    group = "/system.slice/slurmstepd.scope/s5K1P9VPN8R8C00"
    proc.group(group)
    proc.add(10, f"{group}/step_0/user/task_0")
    proc.jobs = {10: 4711}
    assert {(workload.name, workload.group) for workload in proc.read().values()} == {("slurm/4711", group)}


def test_kills_of_a_group_are_counted_while_it_lives_and_kept_when_it_is_gone(proc: Proc) -> None:
    folder = proc.group(JOB, memory__events="low 0\nhigh 0\nmax 7\noom 2\noom_kill 0\noom_group_kill 0\n")
    proc.add(10, f"{JOB}/step_0")
    assert proc.read()["slurm/7"].oom_kills == 0
    (folder / "memory.events").write_text("oom 3\noom_kill 2\n")
    assert proc.read()["slurm/7"].oom_kills == 2
    (folder / "memory.events").write_text("oom_kill x\n")
    assert proc.read()["slurm/7"].oom_kills == 2
    shutil.rmtree(folder)
    assert proc.read()["slurm/7"].oom_kills == 2


def test_no_more_than_the_limit_are_kept_and_the_rest_is_counted(proc: Proc) -> None:
    for pid in range(1000, 1000 + WORKLOADS_MAX + 9):
        proc.add(pid)
        os.chown(proc.folder / str(pid), pid, pid)
    facts = proc.reader.read()
    assert (len(facts.workloads), facts.left_out) == (WORKLOADS_MAX, 9)


def test_a_user_with_many_sessions_displaces_no_other_s(proc: Proc) -> None:
    many, other = range(1000, 1000 + WORKLOADS_MAX), 9000
    for pid in many:
        proc.add(pid)
    proc.of_user(1000)
    proc.add(other)
    os.chown(proc.folder / str(other), 1001, 1001)
    facts = proc.reader.read()
    assert (len(facts.workloads), facts.left_out) == (SESSIONS_MAX + 1, WORKLOADS_MAX - SESSIONS_MAX)
    proc.gone(other)
    proc.reader.read()
    for pid in many:
        proc.gone(pid)
    over = [workload for workload in proc.reader.read().workloads if workload.ended is not None]
    assert len(over) == SESSIONS_MAX + 1
    assert f"session/{other}" in [workload.name for workload in over]


def test_what_cannot_be_read_is_not_there(tmp_path: Path) -> None:
    reader = WorkloadsReader(tmp_path / "none", users=lambda: {1: (GPU,)})
    assert reader.read() == WorkloadsFacts()
    folder = tmp_path / "7"
    folder.mkdir()
    for text in ("", "7 (x) S", "7 (x) S 1 1 x 0", "x"):
        (folder / "stat").write_text(text)
        assert WorkloadsReader(tmp_path, users=lambda: {7: (GPU,)}).read() == WorkloadsFacts()


# --- real processes in real control groups


@pytest.fixture
def trees() -> Iterator[Forest]:
    with forest() as grown:
        yield grown


async def test_real_processes_in_real_control_groups(trees: Forest) -> None:
    container = trees.cgroup(f"system.slice/docker-{trees.container}.scope")
    job = trees.cgroup(f"system.slice/slurmstepd.scope/job_{trees.job}/step_0/user/task_0")
    pids = trees.start(
        member(
            "shell",
            member("contained", cgroup=container),
            member("job", cgroup=job),
            member("parent", member("free", uid=65534, session=True, orphan=True), leaves=True),  # else it is our own
        )
    )
    await until(lambda: (stat := process_stat("/proc", pids["parent"])) is None or stat.over)
    gpus = {pids[label]: (GPU,) for label in ("contained", "job", "free")}
    reader = WorkloadsReader(Path("/proc"), users=lambda: gpus)
    workloads = {workload.name: workload for workload in reader.read().workloads}
    assert set(workloads) == {
        f"container/{trees.container[:12]}",
        f"slurm/{trees.job}",
        f"session/{os.getsid(pids['free'])}",
    }
    assert [process.pid for process in workloads[f"slurm/{trees.job}"].processes] == [pids["job"]]
    assert all(workload.ended is None for workload in workloads.values())
    trees.clear()
    await until(lambda: (stat := process_stat("/proc", pids["free"])) is None or stat.over)  # killed, by nobody awaited
    ended = {workload.name for workload in reader.read().workloads if workload.ended is not None}
    assert ended == set(workloads)


@pytest.fixture
def limited() -> Iterator[Step]:
    with limited_step("workloads", 65534, 4712) as step:
        yield step


@pytest.mark.disposable
async def test_a_real_kill_is_counted_and_kept_when_its_step_is_gone(limited: Step) -> None:
    enter = f"open('{limited.folder}/cgroup.procs', 'w').write(str(os.getpid()))"
    lives = await asyncio.create_subprocess_exec(
        sys.executable, "-c", f"import os, sys; {enter}; print(flush=True); sys.stdin.read()",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert lives.stdout is not None
    await lives.stdout.readline()
    reader = WorkloadsReader(Path("/proc"), users=lambda: {lives.pid: (GPU,)})
    (job,) = reader.read().workloads
    assert (job.name, job.uid, job.group, job.oom_kills) == ("slurm/4712", limited.owner, limited.job, 0)
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", f"import os; {enter}; x = bytearray(200 << 20)")
    await killed.wait()
    if lives.returncode is None and killed.returncode == -9:
        await until(lambda: [workload.oom_kills for workload in reader.read().workloads] == [1])
    lives.kill()
    await lives.communicate()
    limited.folder.rmdir()
    (job,) = reader.read().workloads
    assert (job.oom_kills, job.ended) == (1, None)
