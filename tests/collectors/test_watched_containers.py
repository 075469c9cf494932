"""Which containers with GPUs have opted in to be watched for stalls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.receivers.labels import Labels
from gpuwarden_collectors.receivers.watched import WatchedReader
from gpuwarden_collectors.receivers.watched_facts import ContainersFacts

FIRST, SECOND = "ab" * 32, "cd" * 32


class Proc:
    """Processes as /proc shows them, on a clock of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 1000.0
        self.pids: list[int] = []

    def add(self, pid: int, group: str, *variables: str, ticks: int = 0, state: str = "S") -> None:
        folder = self.folder / str(pid)
        folder.mkdir(exist_ok=True)
        times = f"{ticks} 0 0 0 20 0 1 0 {pid} 1 1"
        (folder / "stat").write_text(f"{pid} (python) {state} 1 1 1 0 -1 4194560 1 0 0 0 {times}\n")
        (folder / "environ").write_bytes(b"".join(f"{variable}\0".encode() for variable in variables))
        (folder / "cgroup").write_text(f"0::{group}\n")
        self.pids = sorted({*self.pids, pid})

    def reader(self, labels: Labels | None = None) -> WatchedReader:
        return WatchedReader(
            self.folder, pids=lambda: self.pids, labels=labels, clock=lambda: Stamp(self.now, self.now)
        )


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def docker(container: str) -> str:
    return f"/system.slice/docker-{container}.scope"


def pod(container: str) -> str:
    return f"/kubepods.slice/kubepods-pod12.slice/cri-containerd-{container}.scope"


def watched(facts: ContainersFacts) -> dict[str, list[int]]:
    return {container.id: [process.pid for process in container.processes] for container in facts.containers}


def test_a_variable_of_one_process_opts_its_container_in(proc: Proc) -> None:
    proc.add(1, pod(FIRST), "GPUWARDEN_STALL=watch", "RANK=0")
    proc.add(2, pod(FIRST), "RANK=1")
    proc.add(3, docker(SECOND), "GPUWARDEN_STALL=ignore")
    proc.add(4, "/user.slice", "GPUWARDEN_STALL=watch")
    proc.add(5, "/system.slice/slurmstepd.scope/job_7/step_0/user/task_0", "GPUWARDEN_STALL=watch")
    facts = proc.reader().read()
    assert watched(facts) == {FIRST[:12]: [1, 2]}
    assert [process.rank for process in facts.containers[0].processes] == [0, 1]


def test_a_host_without_a_runtime_has_no_labels(proc: Proc, tmp_path: Path) -> None:
    proc.add(1, docker(FIRST))
    assert proc.reader(Labels(tmp_path / "none.sock")).read() == ContainersFacts(cpu_at=proc.now)


def gone(proc: Proc) -> None:
    (proc.folder / "1" / "stat").unlink()


def unreadable(proc: Proc) -> None:
    (proc.folder / "1" / "environ").unlink()


def rubbish(proc: Proc) -> None:
    (proc.folder / "1" / "cgroup").write_bytes(b"\xff\0" * 4096)


@pytest.mark.parametrize("change", [gone, unreadable, rubbish])
def test_what_cannot_be_read_has_not_opted_in(proc: Proc, change: Callable[[Proc], None]) -> None:
    proc.add(1, docker(FIRST), "GPUWARDEN_STALL=watch")
    change(proc)
    assert watched(proc.reader().read()) == {}


def test_the_environment_of_a_process_that_hangs_in_the_kernel_is_read_once_it_no_longer_does(proc: Proc) -> None:
    proc.add(1, docker(FIRST), "GPUWARDEN_STALL=watch", state="D")
    reader = proc.reader()
    assert watched(reader.read()) == {}
    proc.add(1, docker(FIRST), "GPUWARDEN_STALL=watch")
    assert watched(reader.read()) == {FIRST[:12]: [1]}


def test_cpu_times_are_of_once_a_minute(proc: Proc) -> None:
    proc.add(1, docker(FIRST), "GPUWARDEN_STALL=watch", ticks=100)
    reader = proc.reader()
    first = reader.read()
    proc.add(1, docker(FIRST), "GPUWARDEN_STALL=watch", ticks=900)
    proc.now += 59
    assert reader.read() == first
    proc.now += 2
    later = reader.read()
    assert later.cpu_at == proc.now
    assert later.containers[0].processes[0].cpu_seconds == pytest.approx(9.0)
