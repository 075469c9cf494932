"""Processes that cannot be killed, because a thread is in uninterruptible sleep in the kernel (D state).

Every process is in D state for moments, and one that writes a checkpoint may be in every sample. A thread counts as
stuck if it never ran between two passes: the kernel counts how often a thread ran (schedstat), and this count is
unchanged. A thread is tracked from the first pass with that count, and a single sighting is not reported.

Files that need the memory lock of a process (`cmdline`, `maps`, `smaps`) are never read: reading them from a stuck
process would block. All threads are examined only in processes with an open NVIDIA device, since a host has tens of
thousands of threads; in other processes only the first thread is.

Processes of containers are included, under their kernel names. Kernel threads show whether all processes are visible:
they only exist in the first PID namespace, and `hidepid` hides them, too.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from gpuwarden_collectors.base import Clock, host_clock
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.host_facts import ProcessesFacts, StuckProcess
from gpuwarden_collectors.host_files import number, printable, text_or_empty
from gpuwarden_collectors.options import PolledOptions, bounded
from gpuwarden_collectors.process_stat import ProcessStat, process_ids, read_stat
from gpuwarden_collectors.spec import CollectorSpec

_KERNEL_THREAD = 0x00200000  # PF_KTHREAD, linux/sched.h
_FABRIC_MANAGER = b"nv-fabricmanage"  # nv-fabricmanager, cut to the 15 bytes of a name (TASK_COMM_LEN)
_MANY = 4096  # most file descriptors and threads examined per process


@dataclass(frozen=True, slots=True)
class ProcessesOptions(PolledOptions):
    """Processes that hang in the kernel, or still have a GPU open after their job has ended."""

    interval: float = bounded(60.0, 1.0, 60.0)
    deadline: float = bounded(20.0, 0.1, 60.0)


_Sleep = tuple[int, int, str]  # thread id, start time, number of times it ran


class ProcessesCollector:
    """Reads `<proc>/PID`. Reports at most `max_stuck` processes: GPU users first, then those stuck the longest.

    `devices`: the common prefix of the paths of GPU devices.
    """

    def __init__(
        self,
        proc: Path,
        *,
        devices: str = "/dev/nvidia",
        max_processes: int = 100_000,
        max_stuck: int = 64,
        clock: Clock = host_clock,
    ) -> None:
        self._proc = os.fspath(proc)
        self._devices = devices
        self._max_processes = max_processes
        self._max_stuck = max_stuck
        self._clock = clock
        self._began: float | None = None
        self._since: dict[_Sleep, float] = {}
        self._gpu_users: set[tuple[int, int]] = set()

    def read(self) -> ProcessesFacts:
        """Reads all processes once. Raises SourceAbsent without /proc, CollectorError if it cannot be listed."""
        now = self._clock().boottime
        self._began = now if self._began is None else self._began
        since: dict[_Sleep, float] = {}
        gpu_users: set[tuple[int, int]] = set()
        stuck: list[StuckProcess] = []
        all_seen = fabric_manager = False
        folders = (f"{self._proc}/{pid}" for pid in process_ids(self._proc, self._max_processes))
        for stat in filter(None, map(read_stat, folders)):
            all_seen = all_seen or bool(stat.flags & _KERNEL_THREAD)
            fabric_manager = fabric_manager or (stat.name == _FABRIC_MANAGER and not stat.over)
            gpu = self._uses_gpu(stat)
            if gpu:
                gpu_users.add((stat.pid, stat.started))
            asleep = {sleep: self._since.get(sleep, now) for sleep in self._sleeps(stat, every_thread=gpu is True)}
            since |= asleep
            if asleep and (process := self._stuck(stat, asleep, now, gpu=gpu)) is not None:
                stuck.append(process)
        self._since, self._gpu_users = since, gpu_users
        stuck.sort(key=lambda process: (not process.gpu, -process.seen_for, process.pid))
        return ProcessesFacts(
            stuck=tuple(stuck[: self._max_stuck]),
            followed_for=now - self._began,
            fabric_manager=fabric_manager if fabric_manager or all_seen else None,
        )

    def _uses_gpu(self, stat: ProcessStat) -> bool | None:
        """True if the process has or had an NVIDIA device open; None if reading its descriptors is not permitted.

        A process that is killed while stuck no longer shows descriptors.
        """
        if (stat.pid, stat.started) in self._gpu_users:
            return True
        if stat.flags & _KERNEL_THREAD:
            return False
        folder = f"{self._proc}/{stat.pid}/fd"
        try:
            with os.scandir(folder) as entries:
                return any(_target(entry.path).startswith(self._devices) for entry in islice(entries, _MANY))
        except PermissionError:
            return None
        except OSError:
            return False

    def _sleeps(self, stat: ProcessStat, *, every_thread: bool) -> Iterator[_Sleep]:
        """Yields the threads in D state. Examines all threads, too, if the first one has exited before the others."""
        folder = f"{self._proc}/{stat.pid}"
        if stat.threads <= 1 or not (every_thread or stat.state == "Z"):
            if stat.state == "D":
                yield stat.pid, stat.started, _runs(folder)
            return
        with contextlib.suppress(OSError), os.scandir(f"{folder}/task") as entries:
            for entry in islice(entries, _MANY):
                thread = read_stat(entry.path)
                if thread is not None and thread.state == "D":
                    yield thread.pid, thread.started, _runs(entry.path)

    def _stuck(
        self, stat: ProcessStat, asleep: dict[_Sleep, float], now: float, *, gpu: bool | None
    ) -> StuckProcess | None:
        """Returns the stuck process, or None if this pass is the first to see each of its sleeping threads."""
        (thread, _, _), first = min(asleep.items(), key=lambda item: item[1])
        if first >= now:
            return None
        return StuckProcess(
            pid=stat.pid,
            comm=printable(stat.name.decode("utf-8", "replace"), 64),
            seen_for=now - first,
            gpu=gpu,
            wait_channel=_wait_channel(f"{self._proc}/{stat.pid}/task/{thread}/wchan"),
            uid=_uid(f"{self._proc}/{stat.pid}"),
        )


def _runs(folder: str) -> str:
    """Returns how often the thread ran: the last number in schedstat; "" if the kernel does not count."""
    return (text_or_empty(f"{folder}/schedstat").split() or [""])[-1]


def _wait_channel(path: str) -> str:
    name = printable(text_or_empty(path), 64)
    return "" if number(name) == 0 else name


def _uid(folder: str) -> int | None:
    """The effective uid. The owner of the folder is correct even for a process that is not dumpable (proc(5))."""
    try:
        return os.stat(folder).st_uid  # noqa: PTH116 - as below
    except OSError:
        return None


def _target(link: str) -> str:
    try:
        return os.readlink(link)  # noqa: PTH115 - a Path for each descriptor of a host costs more than the call
    except OSError:
        return ""


SPEC = CollectorSpec(
    facts=ProcessesFacts,
    options=ProcessesOptions,
    reader=lambda host, _: ProcessesCollector(host.proc, clock=host.clock),
    source="`/proc`: processes that stay in uninterruptible sleep, those with an open GPU first",
    limits="a thread with a deadline; files whose read takes the process's memory lock are not read",
)
