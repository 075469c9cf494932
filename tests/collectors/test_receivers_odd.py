"""What hangs, lies, ends or is too much: in trees of files like /proc where it cannot be made, and in real processes where it can."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuwarden_collectors.base import CollectorError, SourceAbsent
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.receivers.facts import NOTHING, SIGNALS, LocalJob, Receiver, Role
from gpuwarden_collectors.receivers.reader import ReceiversReader
from gpuwarden_collectors.receivers.scan import READ_MOST
from support.stuck_processes import stuck_process
from support.waiting import PATIENCE

TERM = 1 << 14
STEP = "0::/system.slice/slurmstepd.scope/job_{}/step_{}/user/task_{}\n"


class Proc:
    """A folder like /proc. Nothing in it is younger than the scan unless given otherwise."""

    def __init__(self, root: Path, *, patience: float = PATIENCE) -> None:
        """`patience`: seconds without progress after which a read counts as hung, which one that waits for a processor must not."""
        self.root = root
        self.reader = ReceiversReader(root, patience=patience, clock=lambda: Stamp(10_000.0, 0.0))
        self.numbers = count(100)

    def add(
        self, pid: int | None = None, *, parent: int = 1, name: bytes = b"python", cgroup: str = "0::/\n", state: str = "S",
        threads: int = 1, start: int = 900, uid: int = 1001, caught: int = TERM, environ: bytes = b"", argv: tuple[str, ...] = ("python",),
        data: int = 5000,
    ) -> int:  # fmt: skip
        pid = next(self.numbers) if pid is None else pid
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        rest = (
            f"{parent} {pid} {pid} 0 -1 0 0 0 0 0 10 2 0 0 20 0 {threads} 0 {start} "
            + "1 " * 22
            + f"{data} 2 3 4 5 6 7 0"
        )
        (folder / "stat").write_bytes(b"%d (%b) %b %b\n" % (pid, name, state.encode(), rest.encode()))
        status = f"Name:\tx\nUid:\t{uid}\t0\t{uid}\t{uid}\nSigBlk:\t{TERM:016x}\nSigCgt:\t{caught:016x}\nCapInh:\t0\n"
        (folder / "status").write_text(status)
        (folder / "cgroup").write_text(cgroup)
        (folder / "cmdline").write_bytes(b"".join(argument.encode() + b"\0" for argument in argv))
        (folder / "environ").write_bytes(environ)
        return pid

    def stepd(self) -> int:
        return self.add(name=b"slurmstepd", uid=0, cgroup="0::/system.slice/slurmstepd.scope/system\n")

    def hang(self, pid: int) -> None:
        """A reader that opens it waits for a writer, as one waits for a memory lock."""
        (self.root / str(pid) / "environ").unlink()
        os.mkfifo(self.root / str(pid) / "environ")

    def let_go(self, pid: int, environ: bytes) -> None:
        fifo = self.root / str(pid) / "environ"
        with fifo.open("wb") as waiting:
            waiting.write(environ)
        fifo.unlink()
        fifo.write_bytes(environ)

    def jobs(self, *gpu: int) -> tuple[LocalJob, ...]:
        return self.reader.read(set(gpu))

    def receivers(self, *gpu: int) -> dict[int, Receiver]:
        return {receiver.pid: receiver for job in self.jobs(*gpu) for receiver in job.processes}


@pytest.fixture
def proc(tmp_path: Path) -> Iterator[Proc]:
    made = Proc(tmp_path)
    yield made
    for fifo in tmp_path.glob("*/environ"):
        if fifo.is_fifo():
            made.let_go(int(fifo.parent.name), b"")


def test_mps_and_dcgm_hold_gpus_for_others_and_are_never_signalled(proc: Proc) -> None:
    """MPS's server holds the GPU in place of its client, and DCGM's engine holds all of them."""
    engine = proc.add(name=b"nv-hostengine", uid=0, argv=("/usr/bin/nv-hostengine", "-n"))
    exporter = proc.add(
        name=b"dcgm-exporter", uid=0, cgroup=f"0::/system.slice/docker-{'d' * 64}.scope\n", argv=("dcgm-exporter",)
    )
    control = proc.add(
        name=b"nvidia-cuda-mps", argv=("nvidia-cuda-mps-control", "-d"), cgroup=STEP.format(7, "batch", 0)
    )
    server = proc.add(
        name=b"nvidia-cuda-mps", parent=control, argv=("nvidia-cuda-mps-server",), cgroup=STEP.format(7, "batch", 0)
    )
    client = proc.add(parent=proc.stepd(), cgroup=STEP.format(7, 0, 0))
    (job,) = proc.jobs(engine, exporter, server)
    assert {receiver.pid: receiver.role for receiver in job.processes} == {
        control: Role.SERVICE, server: Role.SERVICE, client: Role.RANK,
    }  # fmt: skip


@pytest.mark.parametrize("name", [b"a) R 1 (b", b"a b", b"a\nUid:\t0\nb", b"()", b"\xff\xfe", b"x" * 15, b""])
def test_a_name_may_hold_anything(proc: Proc, name: bytes) -> None:
    pid = proc.add(name=name, cgroup=STEP.format(7, 0, 0), parent=proc.stepd())
    receiver = proc.receivers()[pid]
    assert (receiver.started, receiver.uid, receiver.role, receiver.name.isprintable()) == (900, 1001, Role.RANK, True)


def test_who_is_stuck_for_a_moment_is_known_from_before(proc: Proc) -> None:
    """A rank that writes its checkpoint sleeps in D state in most scans; what it declared does not change by that."""
    declared = b"GPUWARDEN_SIGNAL=USR1\0"
    pid = proc.add(cgroup=STEP.format(7, 0, 0), environ=declared, state="D")
    assert (proc.receivers()[pid].stuck, proc.receivers()[pid].declared) == (True, "")
    proc.add(pid, cgroup=STEP.format(7, 0, 0), environ=declared)
    assert (proc.receivers()[pid].stuck, proc.receivers()[pid].declared) == (False, "USR1")
    proc.add(pid, cgroup=STEP.format(7, 0, 0), environ=b"written over", state="D")
    assert (proc.receivers()[pid].stuck, proc.receivers()[pid].declared) == (False, "USR1")
    proc.add(pid, cgroup=STEP.format(7, 0, 0), environ=b"GPUWARDEN_SIGNAL=HUP\0", data=6000)
    assert proc.receivers()[pid].declared == "HUP", (
        "it has executed another program, and that one declares something else"
    )


def test_a_process_that_cannot_be_read_holds_nobody_up(tmp_path: Path) -> None:
    """Another thread of it has its memory lock and sleeps in the kernel: its own state does not show that."""
    proc = Proc(tmp_path, patience=0.1)
    hung = proc.add(cgroup=STEP.format(7, 0, 0))
    proc.hang(hung)
    other = proc.add(cgroup=STEP.format(8, 0, 0), environ=b"GPUWARDEN_SIGNAL=USR1\0")
    for _ in range(3):
        receivers = proc.receivers(hung)
        assert (receivers[hung].stuck, receivers[hung].role, receivers[hung].gpu) == (True, Role.RANK, True)
    while receivers[other].declared != "USR1":
        receivers = proc.receivers(hung)  # on a machine so busy that it seemed to hang, too
    proc.let_go(hung, b"GPUWARDEN_SIGNAL=HUP\0")
    while receivers[hung].stuck:
        receivers = proc.receivers(hung)
    assert receivers[hung].declared == "HUP"


def test_a_number_that_changed_hands_during_the_scan_is_not_the_job_s(proc: Proc) -> None:
    """Younger than the scan, and in other groups than the one that was found under its number."""
    pid = proc.add(start=2_000_000)
    proc.reader._scanner.groups()
    assert proc.reader._scanner.process(pid) is not None
    (proc.root / str(pid) / "cgroup").write_text(STEP.format(7, 0, 0))
    assert proc.reader._scanner.process(pid) is None
    proc.add(pid, start=900, cgroup=STEP.format(7, 0, 0))
    assert proc.reader._scanner.process(pid) is not None, "it was there before"


def test_processes_that_are_each_other_s_parents_are_read(proc: Proc) -> None:
    """Two processes look so if their numbers are reused between two reads."""
    a, b = (
        proc.add(100, parent=101, cgroup=STEP.format(7, 0, 0)),
        proc.add(101, parent=100, cgroup=STEP.format(7, 0, 0)),
    )
    alone = proc.add(200, parent=200)
    assert set(proc.receivers(a, alone)) == {a, b, alone}


@pytest.mark.parametrize("file", ["stat", "status", "cgroup", "cmdline", "environ"])
def test_a_process_that_ends_in_between_is_left_out(proc: Proc, file: str) -> None:
    pid, other = proc.add(cgroup=STEP.format(7, 0, 0)), proc.add(cgroup=STEP.format(7, 0, 1))
    (proc.root / str(pid) / file).unlink()
    receivers = proc.receivers()
    assert other in receivers
    assert pid not in receivers or (file in ("cmdline", "environ") and receivers[pid].declared == "")


@pytest.mark.parametrize("state", ["Z", "X"])
def test_who_has_ended_is_nobody(proc: Proc, state: str) -> None:
    pid = proc.add(state=state, cgroup=STEP.format(7, 0, 0))
    assert proc.receivers(pid) == {}


def test_what_may_not_be_read_is_no_evidence(proc: Proc) -> None:
    """Users other than root can read the control group and the state, but not which signal the process wants."""
    pid = proc.add(cgroup=STEP.format(7, 0, 0), environ=b"GPUWARDEN_SIGNAL=USR1\0", parent=proc.stepd())
    (proc.root / str(pid) / "environ").chmod(0)
    receiver = proc.receivers()[pid]
    assert receiver.role is Role.RANK
    assert (receiver.declared, receiver.stuck) == (("USR1", False) if os.geteuid() == 0 else ("", True))


@pytest.mark.slow
def test_of_a_job_of_too_many_processes_the_first_are_asked(proc: Proc) -> None:
    """Ranks are older than what they start; who holds a GPU comes first of all."""
    step, declared = STEP.format(7, 0, 0), b"GPUWARDEN_SIGNAL=USR1\0"
    first = proc.add(parent=proc.stepd(), cgroup=step, environ=declared)
    others = [proc.add(parent=first, cgroup=step, start=901 + n, environ=declared) for n in range(READ_MOST)]
    receivers = proc.receivers(others[-1])
    assert [receivers[pid].declared for pid in (first, others[0], others[-2], others[-1])] == [
        "USR1",
        "USR1",
        "",
        "USR1",
    ]
    assert not any(receiver.stuck for receiver in receivers.values())


def test_who_fills_environments_delays_nobody_for_long(proc: Proc) -> None:
    """A job's are read up to a bound in one scan: ranks that were not reached cannot be signalled until the next one."""
    big = b"X=" + b"y" * (1 << 20) + b"\0"
    pids = [proc.add(cgroup=STEP.format(7, 0, n), parent=1, environ=big) for n in range(40)]
    small = proc.add(cgroup=STEP.format(8, 0, 0), environ=b"GPUWARDEN_SIGNAL=USR1\0")
    receivers = proc.receivers()
    assert receivers[small].declared == "USR1"
    left = sum(receivers[pid].stuck for pid in pids)
    assert 0 < left < 40
    assert (
        not any(receivers[pid].stuck for pid in pids)
        or sum(receiver.stuck for receiver in proc.receivers().values()) < left
    )


def test_a_host_without_proc_has_no_source(tmp_path: Path) -> None:
    with pytest.raises(SourceAbsent):
        ReceiversReader(tmp_path / "none").read(())


def test_more_processes_than_any_host_has_fail_the_scan(proc: Proc) -> None:
    for _ in range(3):
        proc.add()
    with pytest.raises(CollectorError, match="lists more than 2"):
        ReceiversReader(proc.root, max_processes=2).read(())


LINES = st.sampled_from(
    ["0::/\n", STEP.format(7, 0, 0), STEP.format(7, "batch", 0), STEP.format(7, "extern", "x"), STEP.format(8, 0, 1),
     f"0::/docker/{'a' * 64}\n", "0::/system.slice/slurmstepd.scope/s5K1P9VPN8R8C00/step_0\n", "::\n"]
)  # fmt: skip
PROCESSES = st.lists(
    st.tuples(
        st.integers(1, 12), LINES, st.sampled_from("SDZR"), st.integers(0, 1001), st.integers(0, 1 << 16),
        st.sampled_from([b"", b"RANK=1\0LOCAL_RANK=0\0", b"RANK=2\0", b"SLURM_JOB_ID=7\0SLURM_STEP_ID=0\0SLURM_PROCID=0\0", b"GPUWARDEN_SIGNAL=no"]),
        st.sampled_from(["python", "bash", "torchrun", "slurmstepd", "tini", "srun"]),
    ),
    max_size=12,
)  # fmt: skip


@pytest.mark.slow
@given(PROCESSES, st.sets(st.integers(1, 13)))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_each_process_is_listed_once_and_only_ranks_and_helpers_are_unknown(
    tmp_path_factory: pytest.TempPathFactory, processes: list[tuple[int, str, str, int, int, bytes, str]], gpu: set[int]
) -> None:
    proc = Proc(tmp_path_factory.mktemp("proc"))
    for pid, (parent, cgroup, state, uid, caught, environ, name) in enumerate(processes, 1):
        proc.add(
            pid,
            parent=parent,
            cgroup=cgroup,
            state=state,
            uid=uid,
            caught=caught,
            environ=environ,
            argv=(name,),
            name=name.encode(),
        )
    jobs = proc.jobs(*gpu)
    receivers = [receiver for job in jobs for receiver in job.processes]
    assert len({receiver.pid for receiver in receivers}) == len(receivers)
    assert len({(job.kind, job.id) for job in jobs}) == len(jobs)
    for receiver in receivers:
        assert receiver.catches <= set(SIGNALS)
        assert receiver.declared in ("", NOTHING, *SIGNALS)
        if receiver.role in (Role.RANK, Role.HELPER):
            assert receiver.name in ("python", "slurmstepd")


# --- real processes in no state to be asked ------------------------------------------------------------------------


def test_a_process_that_is_stuck_is_named_and_not_asked(tmp_path: Path) -> None:
    """The process is in D state, where reading its environment would hang the reader."""
    held = tmp_path / "held"
    held.touch()
    with stuck_process("main", held) as pid:
        (stuck,) = real(pid)
        assert (stuck.stuck, stuck.gpu, stuck.role) == (True, True, Role.RANK)


def test_threads_are_no_processes_and_zombies_are_nobody() -> None:
    """A process whose first thread has ended appears as a zombie, and lives."""
    code = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(300,)).start(); ctypes.CDLL(None).pthread_exit(0)"
    headless = subprocess.Popen([sys.executable, "-c", code])
    zombie = subprocess.Popen([sys.executable, "-c", ""])
    try:
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        while " Z " not in Path(f"/proc/{headless.pid}/stat").read_text():
            assert headless.poll() is None
        assert [receiver.pid for receiver in real(headless.pid, zombie.pid)] == [headless.pid]
    finally:
        headless.kill()
        headless.wait()
        zombie.wait()


def real(*gpu: int) -> list[Receiver]:
    jobs = ReceiversReader(Path("/proc")).read(set(gpu))
    return [receiver for job in jobs for receiver in job.processes if receiver.pid in gpu]
