"""Metric rows about the daemon's own process and the driver's response times."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpuwarden.base.process_usage import ProcessUsage
from gpuwarden.publish.metrics.lines import COUNTER, GAUGE, HISTOGRAM, Number
from gpuwarden.publish.metrics.row import Metric, Sample
from gpuwarden.publish.snapshot import Snapshot


def _of(value: Callable[[ProcessUsage], Number]) -> Callable[[Snapshot], Iterator[Sample]]:
    def samples(snapshot: Snapshot) -> Iterator[Sample]:
        if snapshot.process is not None:
            yield (), value(snapshot.process)

    return samples


def _started(snapshot: Snapshot) -> Iterator[Sample]:
    """Yield the start as Unix time. Both clocks were read at the start, so later clock changes do not move it."""
    if snapshot.process is not None:
        at = snapshot.service.started
        yield (), at.wall - at.boottime + snapshot.process.started


PROCESS: tuple[Metric, ...] = (
    Metric("process_cpu_seconds_total", COUNTER, (), _of(lambda p: p.cpu_seconds),
           "CPU time of the daemon in user and system mode, in seconds. Its worker processes are not in it."),
    Metric("process_resident_memory_bytes", GAUGE, (), _of(lambda p: p.resident_bytes),
           "Resident memory of the daemon, without its worker processes."),
    Metric("process_virtual_memory_bytes", GAUGE, (), _of(lambda p: p.virtual_bytes), "Virtual memory of the daemon.", default=False),
    Metric("process_start_time_seconds", GAUGE, (), _started, "Start of the daemon, Unix time.", default=False),
    Metric("process_open_fds", GAUGE, (), _of(lambda p: p.open_fds), "Open file descriptors of the daemon.", default=False),
    Metric("process_max_fds", GAUGE, (), _of(lambda p: p.max_fds), "Most file descriptors that the daemon may open.", default=False),
    Metric("gpuwarden_nvml_pass_seconds", HISTOGRAM, ("le",), lambda s: s.nvml_passes.samples(),
           "Duration of each pass over the GPUs, not of each call of the driver; a pass that misses its deadline counts with it."),
)  # fmt: skip
