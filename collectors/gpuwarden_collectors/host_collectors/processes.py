"""Processes that cannot be ended: threads asleep in the kernel where no signal reaches them (D state).

Every process is in D state for moments; one that writes a checkpoint is in every sample. The mark of a stuck thread
is that it never ran between two passes: the kernel counts how often a thread was given a processor (schedstat), and that
count does not change. So a thread is followed from the first pass that found it asleep with the same count, and what is
seen once is not reported.

Files that need the memory lock of a process (`cmdline`, `maps`, `smaps`) are never read: the reader of a stuck process
would be stuck with it. Threads are examined one by one only in processes that have an NVIDIA device open, since a
host has tens of thousands; of the others only the first thread is.

The processes of containers are seen with the host's own, under the names that the kernel has for them. Whether all are seen shows
in the kernel's threads: they are in the first PID namespace alone, and hidden from whom `hidepid` hides others.
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
_MANY = 4096  # descriptors of a process and threads of a process that are examined


@dataclass(frozen=True, slots=True)
class ProcessesOptions(PolledOptions):
    """Processes that hang in the kernel, or still have a GPU open after their job has ended."""

    interval: float = bounded(60.0, 1.0, 60.0)
    deadline: float = bounded(20.0, 0.1, 60.0)


_Sleep = tuple[int, int, str]  # thread, its start, and how often it ran


class ProcessesCollector:
    """Reads `<proc>/PID`. At most `max_stuck` are reported, GPU users first, then those stuck for longest.

    `devices`: how the paths of GPU devices begin.
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
        """True if the process has or had an NVIDIA device open; None where that may not be read.

        A process that dies while stuck shows no descriptors any more.
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
        """Yields the threads in D state; all threads count if the first one has ended before the others."""
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
        """Returns the stuck process, or None if all its sleeps are seen for the first time."""
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
    """Returns how often the thread got a processor: the last number of schedstat; "" if the kernel does not count."""
    return (text_or_empty(f"{folder}/schedstat").split() or [""])[-1]


def _wait_channel(path: str) -> str:
    name = printable(text_or_empty(path), 64)
    return "" if number(name) == 0 else name


def _uid(folder: str) -> int | None:
    """The effective user: also a process that is not dumpable leaves it to its folder (proc(5), task_dump_owner in the kernel)."""
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
