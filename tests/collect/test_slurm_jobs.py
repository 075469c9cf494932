"""Which jobs are on this node, whose the processes are that have a GPU open, and what little the controller is asked for it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
import time
import tracemalloc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PosixPath
from typing import ClassVar

import pytest

from gpuwarden.collect.jobs import jobs_source
from gpuwarden_collectors.base import CollectorError, PassOutcome, SourceAbsent, host_clock
from gpuwarden_collectors.control_groups import RootFolders
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.slurm import jobs_text
from gpuwarden_collectors.slurm.client import SlurmClient
from gpuwarden_collectors.slurm.hostlist import in_hostlist
from gpuwarden_collectors.slurm.jobs import DOUBTED_AFTER, SETTLED_AFTER, JobsReader
from gpuwarden_collectors.slurm.jobs_cgroup import NO_JOB, JobCgroup, job_cgroup_in
from gpuwarden_collectors.slurm.jobs_facts import Job, JobProcess
from gpuwarden_collectors.slurm.jobs_gres import conf_text, expanded, gpu_lines, in_order, kinds_of, minors
from gpuwarden_collectors.slurm.jobs_process import Claim, claimed
from gpuwarden_collectors.slurm.jobs_register import FILES_MAX, KEPT, KEPT_FOR, parse, registered, tidy
from gpuwarden_collectors.slurm.options import SlurmOptions
from support.needs import root_rights

CGROUP_PATHS = {
    "4:devices:/slurm/uid_1001/job_4711/step_0/task_0": JobCgroup(job=4711, step="0", task="0", owner=1001),
    "11:cpuset:/slurm_n2/uid_0/job_12/step_batch\n1:name=systemd:/system.slice/slurmd.service": JobCgroup(
        job=12, step="batch", owner=0
    ),
    "0::/system.slice/slurmstepd.scope/job_4711/step_batch/user/task_0": JobCgroup(job=4711, step="batch", task="0"),
    "0::/system.slice/n2_slurmstepd.scope/job_12/step_extern/slurm": JobCgroup(job=12, step="extern"),
    "0::/system.slice/slurmstepd.scope/job_7": JobCgroup(job=7),
    f"0::/kubepods/pod7/{'a' * 64}/system.slice/slurmstepd.scope/job_8/step_0/user/inner/cgroup": JobCgroup(
        job=8, step="0"
    ),
    "0::/kubepods/x/system.slice/slurmstepd.scope/job_8/step_0": NO_JOB,
    "0::/system.slice/slurmstepd.scope/s5K1P9VPN8R8C00/step_0/user/task_0": JobCgroup(
        sluid="s5K1P9VPN8R8C00", step="0", task="0"
    ),
    "0::/system.slice/slurmd.service": NO_JOB,
    "0::/user.slice/user-1001.slice/job_4711": NO_JOB,
    "0::/system.slice/slurmstepd.scope/system": NO_JOB,
    "0::/": NO_JOB,
    "": NO_JOB,
    "rubbish\0\n::::": NO_JOB,
}
"""v1, v1 with several slurmd, v2, v2 with several, SLUIDs (26.05, written from its source), and what only resembles it."""


@pytest.mark.parametrize(("text", "place"), CGROUP_PATHS.items())
def test_a_control_group_of_slurm_s_names_the_job(text: str, place: JobCgroup) -> None:
    assert job_cgroup_in(text, RootFolders(Path("/nowhere"))) == place


SHOW_JOB = """JobId=12 JobName=two nodes
   JOB_GRES=gpu:6
     Nodes=n1 CPU_IDs=0-1 Mem=100 GRES=gpu:2(IDX:0,3)
     Nodes=n[2-3,010] CPU_IDs=0 Mem=100 GRES=gpu:h100:2(IDX:1-2),nic:1(IDX:0),gpu:l4:1(IDX:5)
     Nodes=n4 CPU_IDs=0 Mem=100 GRES=
   MinCPUsNode=1
"""


@pytest.mark.parametrize(
    ("sharing", "alone"),
    [
        ("OverSubscribe=NO Contiguous=0", True),
        ("OverSubscribe=OK Contiguous=0", False),
        ("OverSubscribe=USER Contiguous=0", False),
        ("OverSubscribe=NO Exclusive=NO Contiguous=0", False),
        ("OverSubscribe=NO Exclusive=NODE Contiguous=0", True),
        ("OverSubscribe=NO Exclusive=TOPO Contiguous=0", False),
        ("OverSubscribe=NO Exclusive=USER Contiguous=0", False),
        ("OverSubscribe=YES Exclusive=NO Contiguous=0", False),
        ("Contiguous=0 Comment=OverSubscribe=NO", False),
    ],
)
def test_a_job_is_exclusive_as_its_release_of_slurm_writes_it(sharing: str, alone: bool) -> None:
    """The lines are those of 22.05.8, 25.11.7 and 26.05.3, but for TOPO, which is by the source of 26.05."""
    text = f"JobId=12 JobName=a OverSubscribe=NO\n   Reservation=x\n   {sharing}\n   Comment=x OverSubscribe=NO Exclusive=NODE\n"
    assert jobs_text.is_exclusive(text) is alone


def test_the_gpus_of_a_job_are_listed_for_each_node() -> None:
    assert jobs_text.gpus_of(SHOW_JOB, "n1") == (0, 3)
    assert jobs_text.gpus_of(SHOW_JOB, "n3") == jobs_text.gpus_of(SHOW_JOB, "n010") == (1, 2, 5)
    assert jobs_text.gpus_of(SHOW_JOB, "n4") == ()
    assert jobs_text.gpus_of(SHOW_JOB, "n10") is None


@pytest.mark.parametrize(
    ("node", "hostlist", "named"),
    [
        ("n7", "n7", True), ("n7", "n[1-9]", True), ("n7", "n[1-3,7]", True), ("n10", "n[1-9]", False),
        ("n007", "n[001-010]", True), ("n7", "n[001-010]", False), ("r2c10", "r[1-2]c[9-11]", True), ("m5", "n[1-9],m5", True),
        ("n7", "", False), ("n7", "n", False), ("n", "n[1-9]", False), ("n7-ib", "n[1-9]-ib", True), ("n77", "n7", False),
    ],
)  # fmt: skip
def test_a_hostlist_names_its_nodes(node: str, hostlist: str, named: bool) -> None:
    assert in_hostlist(node, hostlist) is named


def test_squeue_names_jobs_whatever_they_are_called() -> None:
    text = "12|1001|alice|RUNNING|a|b \x1b name\n13|0|root|CANCELLED|x\nslurm_load_jobs error\n14|65534|nobody|COMPLETING|\n"
    jobs = jobs_text.squeue(text)
    assert jobs == [Job(id=12, uid=1001, user="alice", job_name="a|b ? name"), Job(id=14, uid=65534, user="nobody")]


def test_numbers_of_any_size_stay_within_bounds() -> None:
    assert jobs_text.numbers("0-2,5,x,-,3-1") == [0, 1, 2, 5]
    assert len(jobs_text.numbers("0-99999")) <= 4096
    tracemalloc.start()
    assert len(jobs_text.numbers("0-4096," * 30_000)) == 4096
    assert tracemalloc.get_traced_memory()[1] < 16 << 20, "a large environment does not fill the daemon's memory"
    tracemalloc.stop()
    assert jobs_text.numbers("9" * 5000) == []


GRES_CONF = """# comment Name=gpu File=/dev/nvidia9
NodeName=n[1-2] Name=gpu Type=h100 File=/dev/nvidia[0-1,3] Cores=0-7
NodeName=n[1-2] Name=gpu Type=l4 File=/dev/nvidia2
NodeName=n3 AutoDetect=nvml
NodeName=n4 Name=gpu Count=4
Name=nic File=/dev/nic0
"""


def gpu_files(text: str, node: str, gres: str = "") -> list[str]:
    """Return the GPUs of the node in Slurm's order. `gres`: of the node in slurm.conf."""
    return [file for line in in_order(gpu_lines(text, node), kinds_of(gres)) for file in line.files]


def test_gres_conf_gives_the_order_in_which_slurm_counts() -> None:
    assert gpu_files(GRES_CONF, "n1") == [f"/dev/nvidia{n}" for n in (0, 1, 3, 2)]
    assert gpu_files(GRES_CONF, "n3") == gpu_files(GRES_CONF, "n4") == gpu_files("AutoDetect=nvml\n", "n1") == []
    assert expanded("/dev/a[0-1],/dev/b") == ["/dev/a0", "/dev/a1", "/dev/b"]


@pytest.mark.parametrize(
    ("gres", "kinds"),
    [
        ("gpu:l4:1,gpu:H100:3", ("l4", "h100")), ("gpu:l4:1(S:0-1),nic:1,gpu:h100:3(S:0,2)", ("l4", "h100")),
        ("gpu:4", ()), ("gpu:2,gpu:l4:2", ()), ("gpu:l4", ()), ("(null)", ()), ("", ()), ("craynetwork:4", ()),
    ],
)  # fmt: skip
def test_the_types_of_a_node_s_gpus_are_read_from_its_gres(gres: str, kinds: tuple[str, ...]) -> None:
    assert kinds_of(gres) == kinds


def test_unknown_types_leave_the_order_of_the_lines() -> None:
    """Their order holds until the controller has answered, and where a type is in slurm.conf alone."""
    """The controller has not answered yet, or a type is in slurm.conf alone."""
    for gres in ("", "gpu:4", "gpu:x:1,gpu:l4:1,gpu:h100:3"):
        assert gpu_files(GRES_CONF, "n1", gres) == gpu_files(GRES_CONF, "n1")


def test_a_device_gives_its_own_minor_number(tmp_path: Path) -> None:
    """Its name may be another: only where there is no device the name has to do."""
    root_rights()
    os.mknod(tmp_path / "nvidia0", 0o20000 | 0o666, os.makedev(195, 5))
    conf = tmp_path / "gres.conf"
    for text, expected in (
        (f"Name=gpu File={tmp_path}/nvidia[0-1]\n", (5, 1)),
        (
            f"Name=gpu File={tmp_path}/nvidia0,{tmp_path}/x5\n",
            (),
        ),  # not one number for two GPUs: better the order of the bus
        (
            f"Name=gpu MultipleFiles={tmp_path}/nvidia0,/dev/cap1\n" * 2 + f"Name=gpu File={tmp_path}/nvidia1\n",
            (5, 5, 1),
        ),
    ):
        conf.write_text(text)
        assert minors(gpu_lines(conf_text(conf), "n1")) == expected
    assert minors(gpu_lines(conf_text(tmp_path / "none"), "n1")) == ()


def test_files_that_include_each_other_are_read_to_an_end(tmp_path: Path) -> None:
    (tmp_path / "gres.conf").write_text("Name=gpu File=/x/nvidia3\nInclude gres.conf\nInclude missing\n")
    assert minors(gpu_lines(conf_text(tmp_path / "gres.conf"), "n1")) == (3,)


CLAIMS: list[tuple[Mapping[str, str], Claim | None]] = [
    ({"SLURM_JOB_ID": "12", "SLURM_JOB_GPUS": "0,2"}, Claim(12, (0, 2))),
    ({"SLURM_JOBID": "12", "SLURM_JOB_NAME": "train"}, Claim(12, (), "train")),
    ({"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0", "SLURM_STEP_GPUS": "1", "SLURM_JOB_GPUS": "0,1"}, Claim(12, (1,))),
    ({"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_GPUS": "0"}, Claim(12)),
    ({"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_GPUS": "0"}, Claim(12, (0,))),
    ({"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "-5", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_GPUS": "0"}, Claim(12, (0,))),
    ({"SLURM_JOB_ID": "12", "ENVIRONMENT": "BATCH", "SLURM_PROCID": "3"}, Claim(12, batch=True, rank=3)),
    ({"SLURM_JOB_ID": "12", "ENVIRONMENT": "INTERACTIVE", "RANK": "9", "SLURM_PROCID": "1"}, Claim(12, rank=9)),
    ({"SLURM_JOB_ID": "12", "GPUWARDEN_STALL": " Ignore", "RANK": "-1"}, Claim(12, ignores_stall=True)),
    ({"SLURM_JOB_ID": "12", "GPUWARDEN_STALL": "watch", "RANK": "9" * 99}, Claim(12)),
    ({"ENVIRONMENT": "BATCH", "RANK": "1"}, None),
    ({"SLURM_JOB_ID": "12; rm"}, None),
    ({}, None),
]


@pytest.mark.parametrize(("variables", "claim"), CLAIMS)
def test_an_environment_names_its_job_and_what_slurm_gave_it_on_this_node(
    variables: Mapping[str, str], claim: Claim | None
) -> None:
    """SLURM_JOB_GPUS is of the batch host: steps on other nodes inherit it, and there it is wrong."""
    assert claimed(variables) == claim


def test_notes_of_prolog_and_epilog_are_read_and_rubbish_is_passed_over(tmp_path: Path) -> None:
    assert parse(7, "uid=1001 gpus=0,3 started=50 user=alice\nended=60\n") == Job(
        id=7, uid=1001, user="alice", gpus=(0, 3), started=50, ended=60
    )
    (tmp_path / "7").write_text("uid=1001 gpus=0 started=50 user=alice\n")
    (tmp_path / "8").write_bytes(b"\0\xff uid=-1 gpus=x started=\n")
    (tmp_path / "9").write_text("started=5000\n")  # after now: of another boot
    (tmp_path / "10").mkdir()
    (tmp_path / "x").write_text("uid=1")
    assert registered(tmp_path, 100.0) == {7: parse(7, (tmp_path / "7").read_text()), 8: Job(id=8)}
    assert registered(tmp_path / "none", 100.0) == {}


@pytest.mark.parametrize("written", ["", "uid=1001 gp", "uid=1001 gpus=0,3 started=50 user=alice"])
def test_a_note_whose_first_line_is_being_written_is_not_read_yet(tmp_path: Path, written: str) -> None:
    """The shell opens the file, then writes: between them a finding on the job's GPUs would not name its user."""
    (tmp_path / "7").write_text(written)
    assert registered(tmp_path, 100.0) == {}


def test_an_end_that_is_being_written_is_not_read_yet(tmp_path: Path) -> None:
    (tmp_path / "7").write_text("uid=1001 gpus=0 started=50 user=alice\nended=6")
    assert registered(tmp_path, 100.0)[7].ended is None


def test_the_first_end_of_a_note_is_that_of_the_run_that_it_is_about(tmp_path: Path) -> None:
    """Slurmd may run no prolog for the second run of a requeued job: its end is not that of the first."""
    (tmp_path / "7").write_text("uid=1001 gpus=0 started=50 user=alice\nended=60 exit=0:15\nended=70 exit=3:0\n")
    job = registered(tmp_path, 100.0)[7]
    assert (job.started, job.ended, job.exit_code, job.signal) == (50, 60, None, 15)


class Node:
    """A host with Slurm whose GPU users are real processes of the test."""

    def __init__(self, folder: Path) -> None:
        self.register = folder / "jobs"
        self.register.mkdir()
        self.conf = folder / "slurm.conf"
        self.conf.touch()
        self.users: list[int] = []
        self.answers: dict[str, str] = {}
        self.asked: list[tuple[str, ...]] = []
        self.later = 0.0
        self.reader = JobsReader(
            Path("/proc"), self.register, self.conf, node="n1", pids=lambda: self.users, ask=self._ask, clock=self.clock
        )

    def clock(self) -> Stamp:
        now = host_clock()
        return Stamp(now.boottime + self.later, now.wall + self.later)

    def _ask(self, words: tuple[str, ...]) -> str:
        self.asked.append(words)
        name = " ".join(word for word in words if not word.startswith("-"))
        answer = next((text for start, text in self.answers.items() if name.startswith(start)), None)
        if answer is None:
            raise CollectorError("slurmctld is away")
        return answer

    @contextmanager
    def process(self, *, user: int = 65534, **variables: str) -> Iterator[int]:
        """A GPU user for as long as the block lasts."""
        with subprocess.Popen(["sleep", "600"], env={"PATH": os.environ["PATH"], **variables}, user=user) as process:
            deadline = time.monotonic() + 60
            while b"sleep" not in Path(f"/proc/{process.pid}/cmdline").read_bytes() and time.monotonic() < deadline:
                time.sleep(0.005)
            self.users.append(process.pid)
            try:
                yield process.pid
            finally:
                self.users.remove(process.pid)
                process.send_signal(signal.SIGKILL)

    def note(
        self, job: int, *, uid: int = 65534, gpus: str = "0", since: float = 60.0, ended: float | None = None
    ) -> None:
        now = self.clock().boottime
        text = f"uid={uid} gpus={gpus} started={int(now - since)} user=somebody\n"
        end = "" if ended is None else f"ended={int(now - ended)}\n"
        (self.register / str(job)).write_text(text + end)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    root_rights()
    return Node(tmp_path)


def test_a_host_without_slurm_has_no_jobs_to_read(node: Node) -> None:
    node.conf.unlink()
    with pytest.raises(SourceAbsent):
        node.reader.read()


def test_an_idle_node_asks_slurm_nothing(node: Node) -> None:
    for _ in range(10):
        assert node.reader.read().jobs == ()
        node.later += 600
    assert node.asked == []


def test_the_prolog_s_note_is_enough_for_a_job_without_a_process(node: Node) -> None:
    node.note(12, gpus="1,3")
    (job,) = node.reader.read().jobs
    assert (job.id, job.uid, job.user, job.gpus, job.ended) == (12, 65534, "somebody", (1, 3), None)
    assert node.asked == []


def test_a_process_is_its_job_s_by_its_environment(node: Node) -> None:
    with node.process(SLURM_JOB_ID="12", SLURM_JOB_GPUS="2", SLURM_JOB_NAME="train") as pid:
        facts = node.reader.read()
    assert without_times(facts.processes) == (JobProcess(pid=pid, uid=65534, job=12, known_from="environ"),)
    assert facts.jobs == (Job(id=12, uid=65534, job_name="train", gpus=(2,), watched=False),)
    assert node.asked == [("scontrol", "listpids")], "slurmd was asked, the controller was not"


def without_times(processes: tuple[JobProcess, ...]) -> tuple[JobProcess, ...]:
    return tuple(replace(process, cpu_seconds=None) for process in processes)


def test_only_a_batch_job_of_which_no_process_opts_out_is_watched(node: Node) -> None:
    def watched() -> list[bool]:
        return [job.watched for job in node.reader.read().jobs]

    node.note(12)
    assert watched() == [False], "no process shows what it is"
    with node.process(SLURM_JOB_ID="12", SLURM_JOB_GPUS="0"):
        assert watched() == [False], "salloc, or srun without a script"
        with node.process(SLURM_JOB_ID="12", ENVIRONMENT="BATCH", RANK="1"):
            assert watched() == [True]
            assert {process.rank for process in node.reader.read().processes} == {None, 1}
            with node.process(SLURM_JOB_ID="12", ENVIRONMENT="BATCH", GPUWARDEN_STALL="ignore"):
                assert watched() == [False]


def test_a_job_whose_comment_opts_out_by_the_prolog_s_note_is_not_watched(node: Node) -> None:
    node.note(12)
    with node.process(SLURM_JOB_ID="12", ENVIRONMENT="BATCH"):
        assert [job.watched for job in node.reader.read().jobs] == [True]
        note = node.register / "12"
        note.write_text(note.read_text().replace("user=somebody", "user=somebody stall=ignore"))
        assert [job.watched for job in node.reader.read().jobs] == [False]
    assert node.asked == [("scontrol", "listpids")], "slurmd was asked, the controller was not"


def test_cpu_time_is_read_once_a_minute_so_that_other_passes_bring_nothing_new(node: Node) -> None:
    loop = ["sh", "-c", "while :; do :; done"]
    with subprocess.Popen(loop, env={"SLURM_JOB_ID": "12", "PATH": os.environ["PATH"]}, user=65534) as process:
        try:
            node.users.append(process.pid)
            first = node.reader.read()
            assert first.cpu_at is not None
            deadline = time.monotonic() + 60
            while (now := cpu_of(process.pid)) <= (
                first.processes[0].cpu_seconds or 0.0
            ) and time.monotonic() < deadline:
                time.sleep(0.05)
            assert node.reader.read() == first
            node.later += 61
            later = node.reader.read()
            assert later.processes[0].cpu_seconds is not None
            assert later.processes[0].cpu_seconds >= now
        finally:
            node.users.clear()
            process.kill()


def cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_slurmds_list_takes_precedence_over_the_environment(node: Node) -> None:
    with node.process(SLURM_JOB_ID="99") as pid:
        node.answers["scontrol listpids"] = f"PID JOBID STEPID LOCALID GLOBALID\n{pid} 12 0 0 0\n"
        (process,) = node.reader.read().processes
    assert (process.job, process.known_from) == (12, "listpids")


def test_numbers_of_another_pid_namespace_are_no_processes_of_this_host(tmp_path: Path) -> None:
    """A job with a PID namespace of its own is listed by its numbers in there (seen with 26.05.3, namespace/linux)."""
    steps = {70: "step_0/user/task_0", 71: "step_extern/user/task_special"}
    for pid, group in ((10, "/user.slice"), *((pid, f"/slurm/uid_65534/job_12/{step}") for pid, step in steps.items())):
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(f"{pid} (a) S 1 1 1 0 -1 4194560 1 0 0 0 1 1 0 0 20 0 1 0 500 1 1\n")
        (folder / "environ").write_bytes(b"")
        (folder / "cgroup").write_text(f"9:freezer:{group}\n")
        if os.geteuid() == 0:  # a service of root's is nobody's job
            os.chown(folder, 65534, 65534)
    (tmp_path / "slurm.conf").touch()

    def ask(command: tuple[str, ...]) -> str:
        return "PID JOBID STEPID LOCALID GLOBALID\n10 12 0 0 0\n71 12 extern - -\n" if "listpids" in command else ""

    reader = JobsReader(tmp_path, tmp_path / "jobs", tmp_path / "slurm.conf", node="n1", pids=lambda: (70, 10), ask=ask)
    assert {process.pid: process.job for process in reader.read().processes} == {10: None, 70: 12}


def test_one_process_names_the_job_of_all_in_its_control_group(tmp_path: Path) -> None:
    """Slurm 26.05 and newer have a SLUID in the tree in place of the number."""
    for pid, variables in ((70, b"SLURM_JOB_ID=12"), (71, b"HOME=/"), (72, b"HOME=/")):
        folder = tmp_path / str(pid)
        folder.mkdir()
        sluid = "s5K1P9VPN8R8C00" if pid != 72 else "s5K1P9VPN8R8C01"
        (folder / "stat").write_text(f"{pid} (a) b) S 1 1 1 0 -1 4194560 1 0 0 0 1 1 0 0 20 0 1 0 500 1 1\n")
        (folder / "environ").write_bytes(variables + b"\0")
        (folder / "cgroup").write_text(f"0::/system.slice/slurmstepd.scope/{sluid}/step_0/user/task_{pid}\n")
    (tmp_path / "slurm.conf").touch()
    reader = JobsReader(tmp_path, tmp_path / "jobs", tmp_path / "slurm.conf", node="n1", pids=lambda: (70, 71, 72))
    assert [process.job for process in reader.read().processes] == [12, 12, None]


@pytest.mark.parametrize("variables", [b"", b"SLURM_JOB_ID=13"], ids=["hidden", "another job of the user"])
def test_the_prolog_s_note_names_the_job_of_a_control_group_with_its_sluid(tmp_path: Path, variables: bytes) -> None:
    """Control groups and SLUIDs of Slurm 26.05.3: the second job has none of this Slurm's processes on a GPU."""
    register = tmp_path / "jobs"
    register.mkdir()
    for number, sluid in ((12, "sE0DM8K1GXP400"), (13, "s4BHM8K1YPPN00")):
        note = f"uid=65534 gpus=0 started=1 user=nobody nodes=1 sluid={sluid} node=n1 list=n1\n"
        (register / str(number)).write_text(note)
    folder = tmp_path / "1013"
    folder.mkdir()
    (folder / "stat").write_text("1013 (sleep) S 1 1 1 0 -1 4194560 1 0 0 0 1 1 0 0 20 0 1 0 500 1 1\n")
    (folder / "environ").write_bytes(variables + b"\0")
    (folder / "cgroup").write_text("0::/system.slice/n1_slurmstepd.scope/sE0DM8K1GXP400/step_0/user/task_0\n")
    if os.geteuid() == 0:
        os.chown(folder, 65534, 65534)
    (tmp_path / "slurm.conf").touch()
    facts = JobsReader(tmp_path, register, tmp_path / "slurm.conf", node="n1", pids=lambda: (1013,)).read()
    (process,) = facts.processes
    assert (process.job, process.known_from) == (12, "cgroup")
    assert {job.id: job.sluid for job in facts.jobs} == {12: "sE0DM8K1GXP400", 13: "s4BHM8K1YPPN00"}


def test_a_job_without_a_note_has_the_sluid_of_its_processes(tmp_path: Path) -> None:
    folder = tmp_path / "70"
    folder.mkdir()
    (folder / "stat").write_text("70 (a) S 1 1 1 0 -1 4194560 1 0 0 0 1 1 0 0 20 0 1 0 500 1 1\n")
    (folder / "environ").write_bytes(b"SLURM_JOB_ID=12\0")
    (folder / "cgroup").write_text("0::/system.slice/slurmstepd.scope/sE0DM8K1GXP400/step_batch/user/task_0\n")
    (tmp_path / "slurm.conf").touch()
    reader = JobsReader(tmp_path, tmp_path / "jobs", tmp_path / "slurm.conf", node="n1", pids=lambda: (70,))
    assert [(job.id, job.sluid) for job in reader.read().jobs] == [(12, "sE0DM8K1GXP400")]


@pytest.mark.parametrize("sluid", ["sE0D", "E0DM8K1GXP400", "s" + "0" * 30, "sE0DM8K1GX/400", ""])
def test_what_is_no_sluid_is_not_read_from_a_note(sluid: str) -> None:
    assert parse(12, f"uid=65534 gpus=0 started=1 user=nobody sluid={sluid}\n").sluid == ""


def test_nobody_takes_the_job_of_somebody_else(node: Node) -> None:
    node.note(12, uid=1001)
    with node.process(SLURM_JOB_ID="12"):
        (process,) = node.reader.read().processes
    assert process.job is None


def test_of_two_users_who_name_one_job_neither_is_believed_until_slurm_says_whose_it_is(node: Node) -> None:
    with node.process(SLURM_JOB_ID="12") as first, node.process(user=1001, SLURM_JOB_ID="12") as second:
        assert [process.job for process in node.reader.read().processes] == [None, None]
        assert node.reader.read().jobs == ()
        node.note(12)
        assert {process.pid: process.job for process in node.reader.read().processes} == {first: 12, second: None}


def test_a_process_that_names_no_job_is_that_of_its_user_s_only_job(node: Node) -> None:
    node.note(12)
    node.note(13, uid=1001)
    with node.process() as pid:
        (process,) = node.reader.read().processes
        assert (process.pid, process.job, process.known_from) == (pid, 12, "user")
        node.note(14)
        assert node.reader.read().processes[0].job is None, "two jobs of that user: it may be either's"


def test_a_service_of_root_s_is_nobody_s_job(node: Node) -> None:
    node.note(12, uid=0)
    with node.process(user=0) as pid:
        facts = node.reader.read()
    assert without_times(facts.processes) == (JobProcess(pid=pid, uid=0),)
    assert node.asked == []


def test_a_process_that_holds_a_gpu_after_its_job_is_reported_as_long_as_it_does(node: Node) -> None:
    with node.process(SLURM_JOB_ID="12"):
        node.later = 100
        node.note(12, since=200, ended=30)
        (process,) = node.reader.read().processes
        assert process.ended == pytest.approx(node.clock().boottime - 30, abs=2)
        node.later += SETTLED_AFTER
        assert node.reader.read().processes[0].ended is not None
    assert node.reader.read().jobs == ()
    assert node.reader.read().jobs == (), "though its note is still there"
    node.note(12, since=0)
    assert [job.id for job in node.reader.read().jobs] == [12], "it was requeued, and runs here again"


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir(mode=0o750)
    return folder


def ended(folder: Path, jobs: range, at: int) -> None:
    for job in jobs:
        (folder / str(job)).write_text(f"uid=1 gpus=0 started=5 user=x\nended={at}\n")


def test_notes_of_jobs_that_ended_long_ago_are_removed_but_for_the_last(notes: Path) -> None:
    ended(notes, range(KEPT + 50), 100)
    (notes / "9000").write_text("uid=1 gpus=0 started=5 user=x\n")
    (notes / "other").touch()
    now = 100 + KEPT_FOR
    assert tidy(notes, now) == 0, "they ended just now"
    assert tidy(notes, now + 1) == 50
    left = {path.name for path in notes.iterdir()}
    assert left == {*map(str, range(50, KEPT + 50)), "9000", "other"}
    assert tidy(notes, now + 1) == 0


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_nothing_is_removed_where_others_could_have_put_it(notes: Path, mode: int) -> None:
    ended(notes, range(KEPT + 1), 100)
    notes.chmod(mode)
    assert tidy(notes, 1e6) == 0
    notes.chmod(0o755)
    link = notes.with_name("link")
    link.symlink_to(notes)
    assert tidy(link, 1e6) == 0
    assert tidy(notes / "none", 1e6) == 0
    if os.geteuid() == 0:
        os.chown(notes, 65534, -1)
        assert tidy(notes, 1e6) == 0


@pytest.mark.slow
def test_of_too_many_notes_the_newest_count(notes: Path) -> None:
    for job in range(FILES_MAX + 3):
        (notes / str(job)).write_text("uid=1 gpus=0 started=5 user=x\n")
    assert set(registered(notes, 100.0)) == set(range(3, FILES_MAX + 3))


def test_a_process_that_was_started_in_the_same_second_in_which_the_job_ended_holds_it_too(node: Node) -> None:
    """The scripts note whole seconds, cut off."""
    with node.process(SLURM_JOB_ID="12"):
        (node.register / "12").write_text(f"uid=65534 gpus=0 started=5 user=x\nended={int(node.clock().boottime)}\n")
        assert node.reader.read().processes[0].ended is not None


def test_a_job_that_runs_here_a_second_time_holds_nothing_from_the_first(node: Node) -> None:
    node.note(12, since=200, ended=100)
    with node.process(SLURM_JOB_ID="12"):
        assert node.reader.read().processes[0].ended is None


def test_the_controller_is_queried_at_most_twice_in_four_hours(node: Node) -> None:
    with node.process(), node.process(user=1001):
        for _ in range(3 * 240):
            node.reader.read()
            node.later += 60
    asked = [words for words in node.asked if words != ("scontrol", "listpids")]
    assert 3 <= len(asked) <= 3 * 2


def test_the_controller_gives_what_no_local_source_has(node: Node) -> None:
    node.answers = {"squeue": "12|65534|nobody|RUNNING|train\n", "scontrol show job": SHOW_JOB}
    with node.process(SLURM_JOB_ID="12"), node.process():
        (job,) = node.reader.read().jobs
    assert job == Job(id=12, uid=65534, user="nobody", job_name="train", gpus=(0, 3), watched=False)


def test_a_job_whose_epilog_never_ran_is_forgotten_when_slurm_does_not_know_it(node: Node) -> None:
    node.note(12)
    node.note(13)
    node.answers["squeue"] = "13|65534|nobody|RUNNING|train\n"
    assert len(node.reader.read().jobs) == 2
    node.later = DOUBTED_AFTER + 60
    assert [job.id for job in node.reader.read().jobs] == [13]
    node.later += 600
    assert [job.id for job in node.reader.read().jobs] == [13]
    assert len(node.asked) == 1


@pytest.mark.parametrize(
    ("scontrol", "gpus"),
    [("echo gpu1.example.org", (1, 0)), ("true", (2, 3)), ("exit 1", (2, 3))],
    ids=["full name", "unknown", "refused"],
)
async def test_gpus_are_counted_under_the_name_that_slurm_has_for_this_host(
    tmp_path: Path, scontrol: str, gpus: tuple[int, ...]
) -> None:
    """The short name counts if Slurm does not report one."""
    (tmp_path / "scontrol").write_text(
        f'#!/bin/sh\n[ "$2" = aliases ] || exit 1\necho >>{tmp_path}/asked\n{scontrol}\n'
    )
    (tmp_path / "scontrol").chmod(0o755)
    (tmp_path / "slurm.conf").touch()
    (tmp_path / "gres.conf").write_text(
        "NodeName=gpu1.example.org Name=gpu File=/none/nvidia1,/none/nvidia0\nNodeName=gpu1 Name=gpu File=/none/nvidia[2-3]\n"
    )
    options = SlurmOptions(enabled=True, conf=tmp_path / "slurm.conf", folder=tmp_path)
    source = jobs_source(
        options, SlurmClient(conf=options.conf, folder=tmp_path, hostname="gpu1.example.org", inherited={}),
        run_dir=tmp_path, proc=Path("/proc"), users=lambda: (), clock=host_clock, environment={},
    )  # fmt: skip
    for _ in range(2):
        facts = (await source.once()).facts
        assert facts is not None
        assert facts.minors == gpus
    assert len((tmp_path / "asked").read_text().splitlines()) <= 2, "its name is asked for once"


class OnADeadServer(PosixPath):
    """A file whose file system does not answer until `answers` is set, and for some seconds at most."""

    answers = threading.Event()
    asked_by: ClassVar[list[threading.Thread]] = []

    def exists(self, **_: bool) -> bool:
        self.asked_by.append(threading.current_thread())
        self.answers.wait(5.0)
        return False


async def test_a_slurm_conf_on_a_dead_file_server_does_not_stop_the_loop(tmp_path: Path) -> None:
    conf = OnADeadServer(tmp_path / "slurm.conf")
    source = jobs_source(
        SlurmOptions(enabled=True, conf=conf), SlurmClient(conf=conf, hostname="gpu1", inherited={}),
        run_dir=tmp_path, proc=Path("/proc"), users=lambda: (), clock=host_clock, environment={},
    )  # fmt: skip
    made = asyncio.ensure_future(source.once())
    while not conf.asked_by:
        await asyncio.sleep(0.01)
    conf.answers.set()
    assert (await made).outcome is PassOutcome.ABSENT
    assert threading.current_thread() not in conf.asked_by
