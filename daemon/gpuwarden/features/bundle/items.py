"""The programs whose output is in an archive, and the size limits of its files.

Their sum is below `TOTAL_MOST`: vendors' portals refuse larger files, and a full disk would be one more failure.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from gpuwarden.features.bundle.order import Order
from gpuwarden_collectors.dataclass import dataclass

KIB, MIB = 1 << 10, 1 << 20
TOTAL_MOST = 64 * MIB
_NVVS = "/var/log/nvidia-dcgm/nvvs.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program: a row of the table."""

    name: str
    """Name in the archive."""
    about: str
    """What it is, for people."""
    command: Callable[[Order, Path], tuple[str, ...]]
    """Its command line. The path is that of the file that it writes, if it writes one."""
    deadline: float
    """Seconds."""
    most: int
    """Bytes."""
    writes: bool = False
    """It writes a file instead of its standard output; `.gz` may be appended to the name."""
    fine: frozenset[int] = frozenset({0})
    """Exit codes of a successful run."""
    anonymous: bool = True
    """Its output may be in an archive with replaced names. False: it may hold any text of the host."""
    read: bool = False
    """Other files are made from its output, so that it also runs with --anonymise."""


def _doctor(order: Order, _: Path) -> tuple[str, ...]:
    folders = ("--run-dir", str(order.run_dir), "--state-dir", str(order.state_dir))
    config = ("--config", str(order.config_file)) if order.config_file else ()
    return (sys.executable, "-P", "-m", "gpuwarden", "doctor", "--json", *folders, *config)


PROGRAMS = (
    Program(name="nvidia-smi-q.txt", about="nvidia-smi -q: all that the driver reports of each GPU",
            command=lambda _, __: ("nvidia-smi", "-q"), deadline=60.0, most=4 * MIB),
    Program(name="nvidia-bug-report.log.gz", about="NVIDIA's own report, which each vendor asks for first",
            command=lambda _, file: ("nvidia-bug-report.sh", "--safe-mode", "--output-file", str(file)), deadline=300.0, most=12 * MIB, writes=True, anonymous=False),
    Program(name="dmesg.txt", about="the kernel log, its last 4 MiB",
            command=lambda _, __: ("sh", "-c", f"dmesg --time-format=iso | tail -c {4 * MIB}"), deadline=20.0, most=4 * MIB, anonymous=False, read=True),
    Program(name="dcgm-health.json", about="DCGM's last health results",
            command=lambda _, __: ("dcgmi", "health", "--check", "--json"), deadline=30.0, most=1 * MIB),
    Program(name="dcgm-diagnostics.log", about="the end of the log of DCGM's diagnostics (dcgmi diag), which are not run for this",
            command=lambda _, __: ("tail", "-c", str(MIB), _NVVS), deadline=10.0, most=1 * MIB, anonymous=False),
    Program(name="doctor.json", about="gpuwarden doctor: what works on this host, and what does not",
            command=_doctor, deadline=120.0, most=1 * MIB, fine=frozenset({0, 1, 2}), anonymous=False),
)  # fmt: skip
"""`--safe-mode` leaves out the parts of nvidia-bug-report.sh that may hang the system, as its help says. NVIDIA's page on Xids
(docs.nvidia.com/deploy/xid-errors) also advises `--extra-system-data` for a run that hangs. That is not used: it writes
the stacks of all tasks into the kernel log, in which the lines of the failure would be lost.
"""
DMESG, SMI = "dmesg.txt", "nvidia-smi-q.txt"
"""Programs of the table from whose output other files are made."""
STATUS_MOST, INVENTORY_MOST, HOST_MOST = 4 * MIB, 1 * MIB, 64 * KIB
EVENTS_MOST, TESTS_MOST = 8 * MIB, 1 * MIB
KERNEL_MOST, XIDS_MOST = 2 * MIB, 1 * MIB
CONFIGURATION_MOST = 1 * MIB
BOX_MOST = 14 * MIB
PAGES_MOST = 4 * MIB
"""Most bytes of index page, RMA text, boards and manifest together."""
