"""What the measurements share: a host whose GPUs are those of the fake library, clocks, spreads, and the table.

No time is asserted. Each script prints what it measured, with the spread, and the machine.
"""

from __future__ import annotations

import ctypes
import http.client
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1] / "tests"))  # the measured host is the one of the tests

from support.daemons import PATIENCE, FakeHost, RunningDaemon

KERNEL_LOG = Path("/dev/kmsg")
_LIBC = ctypes.CDLL(None, use_errno=True)


@contextmanager
def fake_host(
    *, gpus: int = 8, interval: float = 5.0, pci_interval: float = 10.0, device: bool = False
) -> Iterator[FakeHost]:
    """Yield a host with the production defaults except those given; its library uses the CPU time of an H100's. With `device`
    its kernel log is that of this machine, if it may be read: a file is also looked at once a second. Other programs' lines count.
    """
    with tempfile.TemporaryDirectory(prefix="gw-", ignore_cleanup_errors=True) as folder:
        host = FakeHost(Path(folder), gpus)
        host.series = "default"
        host.fake.write(gpus=gpus, prices=True)
        if device and os.access(KERNEL_LOG, os.R_OK):
            host.kmsg = KERNEL_LOG
        host.config.write_text(
            f'[paths]\nsysfs = "{host.sysfs}"\nkmsg = "{host.kmsg}"\n'
            f'[collectors.nvml]\nlibrary = "{host.fake.library}"\ninterval = "{interval * 1000:.0f}ms"\n'
            f'[collectors.pci]\ninterval = "{pci_interval * 1000:.0f}ms"\n'
            f'[publish]\nlisten = "127.0.0.1:0"\n[run]\ndir = "{host.run_dir}"\n[state]\ndir = "{host.state_dir}"\n'
        )
        yield host


@dataclass(slots=True)
class DriverHost:
    """The machine itself with its driver and GPUs; only ledger, sockets and port differ from production."""

    folder: Path
    config: Path
    run_dir: Path
    environment: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def daemon_on_driver(interval: float) -> Iterator[RunningDaemon]:
    """Yield a daemon that reads this machine. Needs no compiler."""
    with tempfile.TemporaryDirectory(prefix="gw-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        host = DriverHost(folder, folder / "gpuwarden.toml", folder / "run")
        host.config.write_text(
            f'[collectors.nvml]\ninterval = "{interval * 1000:.0f}ms"\n[publish]\nlisten = "127.0.0.1:0"\n'
            f'[run]\ndir = "{host.run_dir}"\n[state]\ndir = "{folder / "state"}"\n'
        )
        daemon = RunningDaemon(host)
        try:
            daemon.find_port()
            yield daemon
        finally:
            daemon.kill()


def wait_for_all(daemon: RunningDaemon, gpus: int, patience: float = PATIENCE) -> None:
    """Wait until every GPU was read, whatever its health, and often enough for a rate between two passes."""

    def seen() -> bool:
        now = daemon.heartbeat()
        return bool(now["sequence"] > 2 and now["gpus"]["present"] == gpus)

    daemon.wait(seen, f"{gpus} GPUs", patience=patience)


def scrape(port: int, headers: Mapping[str, str], patience: float = 10.0) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=patience)
    try:
        connection.request("GET", "/metrics", headers=dict(headers))
        return connection.getresponse().read()
    finally:
        connection.close()


def cpu_ns(pid: int) -> int:
    """Return the CPU time of a process in nanoseconds, ended threads included (clock_getcpuclockid(3))."""
    clock = ctypes.c_int()
    error = _LIBC.clock_getcpuclockid(pid, ctypes.byref(clock))
    if error:
        raise OSError(error, f"no CPU clock of process {pid}: {os.strerror(error)}")
    return time.clock_gettime_ns(clock.value)


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def spread(values: Sequence[float], decimals: int = 2) -> str:
    """Return the values as the text `median (least-most)`."""
    least, middle, most = (f"{n:.{decimals}f}" for n in (min(values), statistics.median(values), max(values)))
    return f"{middle} ({least}-{most})"


def machine() -> str:
    model = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    load = " ".join(f"{number:.2f}" for number in os.getloadavg())
    return (
        f"{os.cpu_count()} x {model.partition(': ')[2] or platform.machine()}, Linux {platform.release()}, "
        f"{platform.python_implementation()} {platform.python_version()}, load {load}"
    )


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table that is readable as text and valid Markdown."""
    cells = [list(map(str, row)) for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    print(f"{title}\nmeasured on {machine()}\n", *lines, "", sep="\n", flush=True)
