"""Nodes of a real Slurm on which jobs die: a whole daemon on each, real control groups, the prolog and the epilog, a kernel log of its own.

    with dying(folder, nodes=4) as rig:
        node = rig.nodes[0]
        job = rig.job(node, gpus=1)      # waits until it runs
        node.xid_of(job, 31)
        job.does("exit 1")
        node.ended(job.name)             # the document of `gpuwarden why`, once there is one

Lines that this host's kernel writes when it ends a process of a job for its memory reach the log of the job's node.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuwarden.cli.client import Daemon as Client
from gpuwarden.cli.ledger_events import ledger_path
from gpuwarden.cli.parser import CommandError
from gpuwarden.features.why.document import of_record
from gpuwarden.features.why.history import ended_of
from gpuwarden.features.why.model import job_subject
from gpuwarden.health.model import EventKind
from gpuwarden.ledger.reader import read_only
from support.daemons import OTHERS, FakeHost, RunningDaemon, slots
from support.ranks import NOBODY
from support.slurm import Slurm, running
from support.slurm_rig_hooks import Rig

GPUS = 16
WAITS = 300.0
"""Seconds after which a death is given up that does not come."""
PREFIX = f"dying{os.getpid()}x"
"""Of control groups, which all Slurms of this host share: each run has names of its own."""
CGROUPS = Path("/sys/fs/cgroup")
UNIFIED = (CGROUPS / "cgroup.controllers").exists()
"""This host has control groups of version 2 alone, with which Slurm here has no swap to constrain and no systemd to ask."""
CGROUP = "CgroupPlugin=cgroup/" + (
    "v2\nIgnoreSystemd=yes\nConstrainRAMSpace=yes" if UNIFIED else "v1\nConstrainRAMSpace=yes\nConstrainSwapSpace=yes"
)
MORE = """ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
SelectTypeParameters=CR_Core_Memory
DefMemPerNode=60
UnkillableStepTimeout=600
MinJobAge=900
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
"""
JOB = """
place=$1/$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}
mkdir -p -m 0777 "$place"
for gpu in $(echo "$SLURM_JOB_GPUS" | tr , ' '); do : >"$2/$SLURMD_NODENAME/contexts/$gpu.$$"; done
mkfifo -m 0666 "$place/$SLURMD_NODENAME.orders"
exec 3<>"$place/$SLURMD_NODENAME.orders"
echo "$$ $SLURM_JOB_GPUS" >"$place/$SLURMD_NODENAME.new"
mv "$place/$SLURMD_NODENAME.new" "$place/$SLURMD_NODENAME"
while read -r order <&3; do eval "$order"; done
"""
"""What every job does: it opens its GPUs and does what it is told, a line at a time."""
OOM = ("invoked oom-killer", "oom-kill:", "Killed process", "out of memory")


@dataclass(slots=True)
class Job:
    """A job of Slurm, or one task of an array, that waits for what it is told. `run`: how often it was started before."""

    rig: DyingNodes
    id: int
    nodes: tuple[DyingNode, ...]
    run: int = 0

    @property
    def name(self) -> str:
        return f"slurm/{self.id}"

    def _place(self, node: str) -> Path:
        return self.rig.jobs / f"{self.id}.{self.run}" / node

    def runs(self) -> bool:
        return all(self._place(node.name).exists() for node in self.nodes)

    def pid(self, node: DyingNode | None = None) -> int:
        return int(self._place((node or self.nodes[0]).name).read_text().split()[0])

    def group(self, node: DyingNode | None = None) -> str:
        """Return the control group of its process on the node, which from Slurm 26.05 on does not have the job's number."""
        lines = Path(f"/proc/{self.pid(node)}/cgroup").read_text().splitlines()
        return max((line.split(":", 2)[2] for line in lines if "/step_" in line), key=len)

    def gpus(self, node: DyingNode | None = None) -> list[int]:
        return [int(n) for n in self._place((node or self.nodes[0]).name).read_text().split()[1].split(",")]

    def does(self, order: str, node: DyingNode | None = None) -> None:
        """Have its process on the node do this."""
        place = self._place((node or self.nodes[0]).name).with_suffix(".orders")
        orders = os.open(place, os.O_WRONLY | os.O_NONBLOCK)
        os.write(orders, f"{order}\n".encode())
        os.close(orders)

    def state(self) -> str:
        return self.rig.states.get(self.id, "")

    @contextmanager
    def kept_from_its_end(self) -> Iterator[None]:
        """Within the block its epilog waits: the job has not ended, though none of its processes may be left."""
        gate = self.rig.folder / f"gate.{self.id}"
        gate.touch()
        try:
            yield
        finally:
            gate.unlink()

    def has_ended(self) -> bool:
        return self.state() not in ("", "PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED")


class DyingNode(FakeHost):
    """A node with its daemon, which only observes unless the node is made with another mode."""

    def __init__(self, rig: DyingNodes, name: str, *, more: str = "", reads: str = "", mode: str = "observe") -> None:
        """`more`: of the configuration; `reads`: tables of collectors beside those of GPUs, bus, kernel log and jobs."""
        folder = rig.folder / "hosts" / name
        (folder / "contexts").mkdir(parents=True)
        (folder / "contexts").chmod(0o777)
        super().__init__(folder, GPUS)
        self.rig, self.name, self.mode = rig, name, mode
        self.more, self.reads = more, reads
        self.deadline = "60s"  # on a busy machine a pass is late, which is no driver that hangs
        self.run_dir = rig.folder / f"run-{name}"
        self.prefix: tuple[str, ...] = ()
        self.running: RunningDaemon | None = None
        self.containers: set[str] = set()
        self._writes = threading.Lock()

    @property
    def environment(self) -> Mapping[str, str]:
        return self.fake.environment

    def set_up(self) -> None:
        quiet = "".join(
            f"[collectors.{name}]\nenabled = false\n"
            for name in OTHERS
            if f"[collectors.{name}]" not in self.reads and name != "workloads"
        )
        slurm = f'[slurm]\nenabled = true\nnode = "{self.name}"\nconf = "{self.rig.slurm.conf}"\njobs_interval = "2s"\n'
        self.configure(self.reads + slurm + self.more, interval="2s", deadline=self.deadline, init="120s", beside=quiet)
        self.fake.add(f"contexts {self.folder}/contexts")

    # --- its daemon

    @property
    def its_daemon(self) -> RunningDaemon:
        assert self.running is not None
        return self.running

    def starts(self) -> None:
        assert self.mode == "observe" or self.proc != Path("/proc"), "it would signal all jobs of this machine"
        self.running = RunningDaemon(self, more={"GPUWARDEN_MODE": self.mode}, prefix=self.prefix)

    def serves(self) -> None:
        self.its_daemon.find_port()
        self.its_daemon.wait(lambda: self.its_daemon.heartbeat()["sequence"] > 1, "passes")

    def ends(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End the daemon, if there is one."""
        if self.running is not None:
            if how is signal.SIGTERM and self.running.process.poll() is None:
                self.running.stop()
            self.running.kill()
            self.running = None

    def ask(self, verb: str, **words: Any) -> Any:
        return Client(self.run_dir, self.run_dir).call(verb, **words)

    # --- what happens to it

    def kernel_line(self, text: str, *, age: float = 0.0) -> None:
        with self._writes:
            super().kernel_line(text, age=age)

    def changes(self, change: Callable[[], object]) -> None:
        """Change the library's node: several deaths do so at once."""
        with self._writes:
            change()

    def xid_at(self, gpu: int, number: int, pid: int | None, *, detail: str = "something broke") -> None:
        bus = slots(gpu + 1)[gpu].removesuffix(".0")
        who = "pid='<unknown>', name=<unknown>" if pid is None else f"pid={pid}, name=python3"
        self.kernel_line(f"NVRM: Xid (PCI:{bus}): {number}, {who}, {detail}")

    def kills_for_memory(self, job: Job) -> None:
        """The kernel ends the process of the job, since the memory of the node is full, and writes what it writes then."""
        pid = job.pid(self)
        group = job.group(self)
        self.kernel_line(
            "python3 invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), order=0, oom_score_adj=0"
        )
        self.kernel_line(
            f"oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg={group},task=bash,pid={pid},uid={NOBODY}"
        )
        self.kernel_line(
            f"Out of memory: Killed process {pid} (bash) total-vm:3940kB, anon-rss:292kB, file-rss:2700kB, shmem-rss:0kB, UID:{NOBODY} "
            "pgtables:44kB oom_score_adj:0"
        )
        os.kill(pid, signal.SIGKILL)

    def has_kill(self, group: str) -> bool:
        """Return True once its kernel log has that the kernel ended a process of this control group for its memory."""
        return "Killed process" in self.kmsg.read_text().partition(group)[2]

    def finds(self, code: str, slot: str = "") -> bool:
        """True if the daemon has a finding of this code, on that GPU."""
        findings = json.loads(self.its_daemon.get("/v1/findings")[1])["findings"]
        return any(finding["check"].startswith(code) and slot in json.dumps(finding) for finding in findings)

    @contextmanager
    def process(self, gpu: int, instance: tuple[int, int] | None = None) -> Iterator[int]:
        """A user's process in a session of its own on this GPU, or on this instance of it."""
        process = subprocess.Popen(["sleep", "600"], start_new_session=True, user=NOBODY)
        if instance is None:
            (self.folder / f"contexts/{gpu}.{process.pid}").touch()
        else:
            self.changes(lambda: self.fake.process(gpu, process.pid, 1 << 30, instance))
        try:
            yield process.pid
        finally:
            process.kill()
            process.wait()

    @contextmanager
    def container(self, gpu: int, limit: int) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
        """A process on this GPU in the control group of a container with `limit` bytes of memory, which does what it is told."""
        name = secrets.token_hex(32)
        group = CGROUPS / ("" if UNIFIED else "memory") / f"docker/{name}"
        group.mkdir(parents=True)
        if UNIFIED:
            (group.parent / "cgroup.subtree_control").write_text("+memory")
        (group / ("memory.max" if UNIFIED else "memory.limit_in_bytes")).write_text(f"{limit}\n")
        self.containers.add(name)
        words = f"echo $$ >{group}/cgroup.procs; exec setpriv --reuid={NOBODY} --clear-groups bash -c 'read -r order; eval \"$order\"'"
        process = subprocess.Popen(["bash", "-c", words], start_new_session=True, stdin=subprocess.PIPE)
        (self.folder / f"contexts/{gpu}.{process.pid}").touch()
        try:
            yield name, process
        finally:
            process.kill()
            process.wait()
            for folder in (group, group.parent):
                with contextlib.suppress(OSError):
                    folder.rmdir()

    # --- what it says of a job

    def why(self, name: str) -> dict[str, Any] | None:
        """Return what `gpuwarden why --json` prints of a job; None if it knows none."""
        try:
            document: dict[str, Any] = self.ask("why", job=name)
        except CommandError:
            return None
        return document

    def tells(self, name: str) -> bool:
        return self.why(name) is not None

    def has_process(self, name: str) -> bool:
        """Return True once a pass has found a process of this job on a GPU: before, a line about the process may be of another job's."""
        document = self.why(name)
        return document is not None and document["use"]["observed_gpu_seconds"] > document["use"]["idle_gpu_seconds"]

    def has_touch(self, name: str, kind: str) -> bool:
        """Return True once it knows that this happened to the job."""
        document = self.why(name)
        return document is not None and any(touch["what"] == kind for touch in document["touches"])

    def runs_before(self, name: str) -> int:
        """Return how often it knows that a job of this name has ended before the newest one."""
        document = self.why(name)
        return 0 if document is None else int(document["older"])

    def remembers(self, name: str) -> bool:
        """True if its ledger has the begin of the job."""
        with read_only(ledger_path(self.state_dir)) as reader:
            return bool(reader.events(kinds=(EventKind.JOB_BEGUN,), subjects=[str(job_subject(name))]))

    def ended(self, name: str, run: int | None = None) -> dict[str, Any]:
        """Wait until it tells why the job ended, and return that. `run`: which of its runs, counted from 0; None: the newest."""
        documents: list[dict[str, Any]] = []

        def known() -> bool:
            document = self.why(name) if run is None else self._in_ledger(name, run)
            documents[:] = [document] if document is not None and document["final"] else []
            return bool(documents)

        self.its_daemon.wait(known, f"it to tell why {name} ended: {self.why(name)}", every=1.0, patience=WAITS)
        return documents[0]

    def _in_ledger(self, name: str, run: int) -> dict[str, Any] | None:
        records = ended_of(ledger_path(self.state_dir), {name})
        return of_record(records[run], {}) if len(records) > run else None


@dataclass(slots=True)
class DyingNodes:
    folder: Path
    slurm: Slurm
    nodes: list[DyingNode] = field(default_factory=list)
    states: Mapping[int, str] = field(default_factory=dict)

    @property
    def jobs(self) -> Path:
        return self.folder / "jobs"

    def job(self, *nodes: DyingNode, gpus: int = 1, user: str = "nobody", options: tuple[str, ...] = ()) -> Job:
        """Submit a job, and return it when it waits for orders on each node."""
        job = Job(self, self.submit(*nodes, gpus=gpus, user=user, options=options), nodes)
        self.wait(job.runs, lambda: f"job {job.id} to run on {self._shown(nodes)}: {self.slurm.job(job.id)}")
        return job

    def _shown(self, nodes: tuple[DyingNode, ...]) -> str:
        """Return the state and the reason of each node: Slurm itself may have drained one."""
        shown = ((node.name, self.slurm.state(node.name), self.slurm.reason(node.name)) for node in nodes)
        return "; ".join(f"{name} ({' '.join(sorted(state))}, {reason!r})" for name, state, reason in shown)

    def submit(
        self, *nodes: DyingNode, gpus: int = 1, user: str = "nobody", options: tuple[str, ...] = (), step: bool = False
    ) -> int:
        """`step`: it runs as a step of the job, as one of several nodes always does."""
        words = f"bash {self.folder}/job.sh {self.jobs} {self.folder}/hosts"
        script = f"exec {words}" if len(nodes) == 1 and not step else f"srun --input none --kill-on-bad-exit=1 {words}"
        where = f"--nodelist={','.join(node.name for node in nodes)}"
        spread = (f"--nodes={len(nodes)}", "--ntasks-per-node=1")
        return self.slurm.submit(script, where, *spread, f"--gres=gpu:{gpus}", *options, user=user)

    def tasks(self, array: int, node: DyingNode) -> list[Job]:
        """Return the jobs of an array, when they run."""

        def numbers() -> list[int]:
            lines = self.slurm.command("squeue", "-h", "-r", "--job", str(array), "--format=%A %T").splitlines()
            return sorted(int(line.split()[0]) for line in lines if line.endswith("RUNNING"))

        self.wait(lambda: len(numbers()) == 2, f"array {array} to run")
        tasks = [Job(self, number, (node,)) for number in numbers()]
        self.wait(lambda: all(task.runs() for task in tasks), f"array {array} to run")
        return tasks

    def wait(self, condition: Callable[[], object], awaited: str | Callable[[], str], patience: float = WAITS) -> None:
        end = time.monotonic() + patience
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(
                    f"waited {patience:g} s in vain for {awaited if isinstance(awaited, str) else awaited()}"
                )
            time.sleep(0.2)

    def read_states(self) -> None:
        """Read the states of all jobs: one question, however many wait."""
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):  # the controller is away
            states = {}
            for line in self.slurm.command("scontrol", "show", "job", "--oneliner", timeout=15.0).splitlines():
                words = dict(word.split("=", 1) for word in line.split() if "=" in word)
                if words.get("JobId", "").isdecimal():
                    states[int(words["JobId"])] = words.get("JobState", "")
            self.states = states


class KernelRelay:
    """Copies the lines of this host's kernel about processes that it ended for their memory to the log of the node that they name."""

    def __init__(self, nodes: list[DyingNode]) -> None:
        self._nodes = nodes
        self._file = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        os.lseek(self._file, 0, os.SEEK_END)
        self._block: list[str] = []

    def read(self) -> None:
        while True:
            try:
                record = os.read(self._file, 8192).decode(errors="replace")
            except BlockingIOError:
                return
            except BrokenPipeError:  # it was overtaken
                continue
            text = record.partition(";")[2].partition("\n")[0]
            if any(word in text for word in OOM):
                self._take(text)

    def _take(self, text: str) -> None:
        self._block = [text] if "invoked oom-killer" in text else [*self._block, text]
        if "Killed process" in text:
            about = next((line for line in self._block if line.startswith("oom-kill:")), "")
            for node in self._nodes:
                if any(
                    place in about
                    for place in (f"/slurm_{node.name}/", f"/{node.name}_slurmstepd.scope/", *node.containers)
                ):
                    for line in self._block:
                        node.kernel_line(line)
            self._block = []

    def close(self) -> None:
        os.close(self._file)


@contextmanager
def dying(folder: Path, nodes: int) -> Iterator[DyingNodes]:
    """`nodes` of them, without daemons yet: their configuration may be changed. All is gone at the end."""
    names = [f"{PREFIX}{n}" for n in range(1, nodes + 1)]
    all_of_them = ",".join(names)
    partitions = (
        f"PartitionName=gpu Nodes={all_of_them} Default=YES MaxTime=INFINITE PriorityTier=1 PreemptMode=CANCEL",
        f"PartitionName=first Nodes={all_of_them} MaxTime=INFINITE PriorityTier=9 PreemptMode=OFF",
    )
    slurm = Slurm(
        folder, nodes, partitions=partitions, gpus=GPUS, cpus=GPUS, prefix=PREFIX, cgroup=CGROUP, slurmd_timeout=300
    )  # a busy machine must not lose a node
    hooks = [line for line in Rig(slurm).prepare().splitlines() if not line.startswith("HealthCheck")]
    slurm.more = "\n".join([MORE, *hooks])
    (folder / "job.sh").write_text(JOB)
    rig = DyingNodes(folder, slurm)
    rig.nodes = [DyingNode(rig, name) for name in names]
    ended = threading.Event()

    def follow(read: Callable[[], None], every: float) -> None:
        while not ended.wait(every):
            read()

    with running(slurm):
        relay = KernelRelay(rig.nodes)
        threads = [threading.Thread(target=follow, args=args) for args in ((rig.read_states, 0.7), (relay.read, 0.1))]
        for thread in threads:
            thread.start()
        try:
            yield rig
        finally:
            ended.set()
            for thread in threads:
                thread.join()
            relay.close()
            for node in rig.nodes:
                node.ends(signal.SIGKILL)
    for name in names:
        _forget_groups(name)


def _forget_groups(node: str) -> None:
    """Remove the control groups that the node's Slurm leaves."""
    for top in (*CGROUPS.glob(f"*/slurm_{node}"), *CGROUPS.glob(f"system.slice/{node}_slurmstepd.scope")):
        for place, _, _ in sorted(os.walk(top), reverse=True):
            with contextlib.suppress(OSError):
                Path(place).rmdir()
