"""The processes collector on trees like /proc, and on real processes that cannot be ended."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from gpuwarden_collectors.base import CollectorError, SourceAbsent
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.host_collectors.processes import ProcessesCollector
from gpuwarden_collectors.host_facts import ProcessesFacts, StuckProcess
from support.daemons import children
from support.job_world import until
from support.needs import host_pid_namespace, needed, root_rights
from support.stuck_processes import stuck_process
from support.trees import plant

PROC = Path("/proc")
KERNEL_THREAD = 0x00200000
WAITS = "rwsem_down_write_slowpath"


def stat(pid: int, state: str, *, comm: str = "python", flags: int = 0, threads: int = 1, start: int = 900) -> str:
    return f"{pid} ({comm}) {state} 1 {pid} {pid} 0 -1 {flags} 0 0 0 0 10 2 0 0 20 0 {threads} 0 {start} 1 2 3"


def add_process(proc: Path, pid: int, state: str, *, runs: str = "1 2 30", gpu: bool = False, **more: object) -> Path:
    folder = proc / str(pid)
    text = stat(pid, state, **more)  # type: ignore[arg-type]  # the names are those of stat
    thread = f"task/{pid}/"
    plant(folder, {"stat": text, "schedstat": runs, f"{thread}stat": text, f"{thread}schedstat": runs})
    plant(folder, {f"{thread}wchan": WAITS})
    (folder / "fd").mkdir(exist_ok=True)
    if gpu and not (folder / "fd/5").is_symlink():
        (folder / "fd/5").symlink_to("/dev/nvidia-uvm")
    return folder


def add_thread(process: Path, tid: int, state: str, *, runs: str = "1 2 30", start: int = 901) -> None:
    text = stat(tid, state, start=start)
    plant(process / f"task/{tid}", {"stat": text, "schedstat": runs, "wchan": "uvm_api_lock"})


def minute_by_minute(proc: Path) -> ProcessesCollector:
    minutes = count(1)
    return ProcessesCollector(proc, clock=lambda: Stamp(60.0 * next(minutes), 0.0))


def test_a_tree_gives_exactly_who_is_stuck_and_for_how_long(tmp_path: Path) -> None:
    add_process(tmp_path, 1, "S", comm="systemd")
    add_process(tmp_path, 2, "I", comm="kworker/0:1", flags=KERNEL_THREAD)
    add_process(tmp_path, 80, "D", comm="nvidia-modeset/", flags=KERNEL_THREAD)
    add_process(tmp_path, 700, "D", comm="train", gpu=True)
    add_process(tmp_path, 800, "Z")
    add_process(tmp_path, 801, "Z")
    collector = minute_by_minute(tmp_path)
    assert collector.read() == ProcessesFacts(
        followed_for=0.0, fabric_manager=False
    )  # what is seen once may be gone in a moment
    collector.read()
    assert collector.read() == ProcessesFacts(
        stuck=(
            StuckProcess(pid=700, comm="train", seen_for=120.0, gpu=True, wait_channel=WAITS, uid=os.geteuid()),
            StuckProcess(
                pid=80, comm="nvidia-modeset/", seen_for=120.0, gpu=False, wait_channel=WAITS, uid=os.geteuid()
            ),
        ),
        followed_for=120.0,
        fabric_manager=False,
    )


def test_a_host_without_proc_has_no_source(tmp_path: Path) -> None:
    with pytest.raises(SourceAbsent, match="no processes"):
        ProcessesCollector(tmp_path / "proc").read()


def test_a_process_that_ran_in_between_is_not_stuck(tmp_path: Path) -> None:
    collector = minute_by_minute(tmp_path)
    for runs in range(10):  # it writes a checkpoint: asleep at every pass, and yet at work
        add_process(tmp_path, 700, "D", runs=f"1 2 {runs}", gpu=True)
        assert collector.read().stuck == ()


def test_another_process_with_the_same_number_restarts_the_count(tmp_path: Path) -> None:
    collector = minute_by_minute(tmp_path)
    add_process(tmp_path, 700, "D")
    collector.read()
    collector.read()
    add_process(tmp_path, 700, "D", start=5000)
    assert collector.read().stuck == ()
    assert [process.seen_for for process in collector.read().stuck] == [60.0]


def test_a_process_that_was_missed_once_restarts_its_count(tmp_path: Path) -> None:
    collector = minute_by_minute(tmp_path)
    for state in ("D", "S", "D"):
        add_process(tmp_path, 700, state)
        assert collector.read().stuck == ()


def test_a_second_thread_counts_in_a_process_that_has_a_gpu_open(tmp_path: Path) -> None:
    for pid, gpu in ((700, True), (701, False)):
        add_thread(add_process(tmp_path, pid, "S", threads=2, gpu=gpu), pid + 1000, "D")
    collector = minute_by_minute(tmp_path)
    collector.read()
    assert collector.read().stuck == (
        StuckProcess(pid=700, comm="python", seen_for=60.0, gpu=True, wait_channel="uvm_api_lock", uid=os.geteuid()),
    )


def test_the_thread_that_sleeps_for_longest_speaks_for_its_process(tmp_path: Path) -> None:
    folder = add_process(tmp_path, 700, "S", threads=3, gpu=True)
    collector = minute_by_minute(tmp_path)
    add_thread(folder, 1701, "D")
    collector.read()
    add_thread(folder, 1702, "D")
    collector.read()
    (process,) = collector.read().stuck
    assert process.seen_for == 120.0


def test_a_process_that_dies_and_cannot_still_holds_its_gpu(tmp_path: Path) -> None:
    """After SIGKILL the first thread is a zombie, the descriptors are gone, and one thread hangs in the driver."""
    collector = minute_by_minute(tmp_path)
    folder = add_process(tmp_path, 700, "S", threads=2, gpu=True)
    collector.read()
    (folder / "fd/5").unlink()
    add_process(tmp_path, 700, "Z", threads=2)
    add_thread(folder, 1701, "D")
    collector.read()
    facts = collector.read()
    assert [(process.pid, process.gpu) for process in facts.stuck] == [(700, True)]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "garbage",
        "700 (python) D",
        "700 (python) D " + "x " * 30,
        "x (python) D " + "1 " * 30,
        "700 python D " + "1 " * 30,
        "\xff" * 5000,
    ],
)
def test_a_line_of_another_form_is_no_process(tmp_path: Path, line: str) -> None:
    add_process(tmp_path, 1, "S")
    plant(tmp_path, {"700/stat": line})
    assert ProcessesCollector(tmp_path).read() == ProcessesFacts(followed_for=0.0)


@pytest.mark.parametrize(
    ("comm", "shown"),
    [("a) D 1 (b", "a) D 1 (b"), ("", ""), ("tab\there\x1b[2J", "tab?here?[2J"), ("x" * 300, "x" * 64)],
)
def test_a_name_may_hold_anything(tmp_path: Path, comm: str, shown: str) -> None:
    add_process(tmp_path, 700, "D", comm=comm)
    collector = minute_by_minute(tmp_path)
    collector.read()
    assert [process.comm for process in collector.read().stuck] == [shown]


def test_where_the_kernel_counts_no_runs_only_repeated_observation_counts(tmp_path: Path) -> None:
    (add_process(tmp_path, 700, "D") / "schedstat").unlink()
    collector = minute_by_minute(tmp_path)
    collector.read()
    assert [process.seen_for for process in collector.read().stuck] == [60.0]


def test_only_the_worst_are_reported(tmp_path: Path) -> None:
    collector = minute_by_minute(tmp_path)
    collector._max_stuck = 2
    for pid in (701, 702, 703):
        add_process(tmp_path, pid, "D", gpu=pid == 703)
        collector.read()
    assert [(process.pid, process.seen_for) for process in collector.read().stuck] == [(703, 60.0), (701, 180.0)]


def test_more_processes_than_any_host_has_fail_the_pass(tmp_path: Path) -> None:
    for pid in (1, 2, 3):
        add_process(tmp_path, pid, "S")
    with pytest.raises(CollectorError, match="lists more than 2"):
        ProcessesCollector(tmp_path, max_processes=2).read()


@pytest.mark.parametrize(
    ("comm", "state", "kernel_threads", "seen"),
    [
        ("nv-fabricmanage", "S", True, True),
        ("nv-fabricmanage", "D", False, True),
        ("nv-fabricmanage", "Z", True, False),  # it was killed, and nobody has asked for its end
        ("nv-fabricmanage", "Z", False, None),
        ("nv-fabric", "S", True, False),
        ("python", "S", False, None),  # no thread of the kernel: not all processes are visible
    ],
)
def test_fabric_manager_is_found_by_its_name_or_unknown_where_processes_are_hidden(
    tmp_path: Path, comm: str, state: str, *, kernel_threads: bool, seen: bool | None
) -> None:
    add_process(tmp_path, 900, state, comm=comm)
    if kernel_threads:
        add_process(tmp_path, 2, "S", comm="kthreadd", flags=KERNEL_THREAD)
    assert ProcessesCollector(tmp_path).read().fabric_manager is seen


# --- Real processes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["main", "thread"])
def test_a_real_process_stuck_in_the_kernel_with_a_device_open_is_seen(tmp_path: Path, where: str) -> None:
    device = tmp_path / "nvidia0"
    device.touch()
    collector = ProcessesCollector(PROC, devices=str(tmp_path))
    with stuck_process(where, device) as pid:
        collector.read()
        first = _by_pid(collector.read())[pid]
        assert (first.gpu, first.comm) == (True, "python")
        until(
            lambda: _by_pid(collector.read())[pid].wait_channel,
            "the kernel to name it; it does not of what is on a processor",
        )
        assert _by_pid(collector.read())[pid].seen_for > first.seen_for > 0
    assert pid not in _by_pid(collector.read())


def test_a_real_process_that_is_asleep_like_any_other_is_not_stuck() -> None:
    collector = ProcessesCollector(PROC)
    for _ in range(3):
        assert os.getpid() not in _by_pid(collector.read())


@pytest.mark.needs("root")
def test_a_real_process_that_pretends_to_be_the_drivers_is_known_by_its_user() -> None:
    """A process that waits for a child of vfork(2) sleeps as in a driver. If it changed its user, it is not dumpable."""
    script = (
        "import ctypes, os; os.setuid(65534)\n"
        "ctypes.CDLL(None).prctl(15, b'nvidia-smi')\n"
        "if ctypes.CDLL(None).vfork() == 0: ctypes.CDLL(None).sleep(300); os._exit(0)"
    )
    collector = ProcessesCollector(PROC)
    with subprocess.Popen([sys.executable, "-S", "-c", script]) as stranger:
        try:
            until(lambda: stranger.pid in _by_pid(collector.read()), "it is stuck")
            process = _by_pid(collector.read())[stranger.pid]
            assert (process.comm, process.uid) == ("nvidia-smi", 65534)
        finally:
            for pid in (*children(stranger.pid), stranger.pid):
                os.kill(pid, signal.SIGKILL)


def require_namespaces() -> None:
    root_rights()
    host_pid_namespace()


def test_a_real_process_in_another_pid_namespace_is_seen_by_its_name(tmp_path: Path) -> None:
    require_namespaces()
    program = tmp_path / "nv-fabricmanager"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    container = subprocess.Popen(["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", str(program), "1000"])
    try:
        until(lambda: ProcessesCollector(PROC).read().fabric_manager is True, "the process is seen")
    finally:
        container.kill()
        container.wait()
    until(lambda: ProcessesCollector(PROC).read().fabric_manager is False, "the process is gone")


READ = "from pathlib import Path; from gpuwarden_collectors.host_collectors.processes import ProcessesCollector; import os, sys; "
"""What a Python that cannot see all processes runs; printed is what it reports of the fabric manager."""


def test_a_reader_in_a_pid_namespace_of_its_own_knows_that_it_does_not_see_all() -> None:
    require_namespaces()
    code = f"{READ}print(ProcessesCollector(Path('/proc')).read().fabric_manager)"
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code]
    assert subprocess.check_output(command, text=True).strip() == "None"


@pytest.mark.parametrize("hidepid", ["1", "2"])
def test_a_reader_from_whom_processes_are_hidden_knows_that_it_does_not_see_all(tmp_path: Path, hidepid: str) -> None:
    require_namespaces()
    needed("mount")
    code = f"{READ}os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534); "
    code += f"print(ProcessesCollector(Path('{tmp_path}')).read().fabric_manager)"
    tmp_path.chmod(0o755)
    mount = f"mount -t proc -o hidepid={hidepid} proc {tmp_path} && exec {sys.executable} -c"
    command = ["unshare", "--mount", "sh", "-c", f'{mount} "$0"', code]
    assert subprocess.check_output(command, text=True).strip() == "None"


def _by_pid(facts: ProcessesFacts) -> dict[int, StuckProcess]:
    return {process.pid: process for process in facts.stuck}
