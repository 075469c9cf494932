"""The capabilities (capabilities(7)) that gpuwarden uses, and the purpose of each."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from gpuwarden_collectors.host_files import text_or_empty


class Capability(NamedTuple):
    """A capability. `bit` is that of linux/capability.h. `value`: the chart's value that gives it to a pod. `stronger`: the bit of a
    capability that permits the same and more.
    """

    name: str
    bit: int
    purpose: str
    value: str
    stronger: int | None = None

    def is_in(self, held: int) -> bool:
        return any(held >> bit & 1 for bit in (self.bit, self.stronger) if bit is not None)


SYSLOG = Capability("SYSLOG", 34, "read the kernel log where kernel.dmesg_restrict is 1", "kernelLog.enabled")
_DAC_OVERRIDE = 1
DAC_READ_SEARCH = Capability(
    "DAC_READ_SEARCH",
    2,
    "see mounts below folders of users, and the environment of their processes, which shows whether one may be signalled",
    "jobs.signal",
    _DAC_OVERRIDE,
)
SYS_PTRACE = Capability("SYS_PTRACE", 19, "see which job a process of another user belongs to", "jobs.signal")
KILL = Capability("KILL", 5, "signal the processes of jobs before the machine ends", "jobs.signal")
USED = (SYSLOG, DAC_READ_SEARCH, SYS_PTRACE, KILL)
FOR_SIGNALS = (KILL, SYS_PTRACE, DAC_READ_SEARCH)
"""/proc/PID/environ has mode 0400: to open that of another user takes DAC_READ_SEARCH, and to read it then SYS_PTRACE."""


def lacking(wanted: tuple[Capability, ...] = USED, status: Path = Path("/proc/self/status")) -> tuple[Capability, ...]:
    """Returns the capabilities that this process lacks; empty if they cannot be read."""
    for line in text_or_empty(status).splitlines():
        if line.startswith("CapEff:"):
            held = int(line.split()[1], 16)
            return tuple(each for each in wanted if not each.is_in(held))
    return ()


def names(capabilities: tuple[Capability, ...]) -> str:
    return " and ".join(f"CAP_{each.name}" for each in capabilities)
