"""Parses the kernel log line of an Xid into its *sign*: a short text with the details that a rule needs.

| Xid | sign |
|---|---|
| 13 | where: `GPC 7 TPC 3` |
| 31 | where: `GPC 2 T1_3`, without the GPC for older drivers, which do not print it |
| 45 | `after 31` if the line names the Xid that caused it; else `process` if it names a process; else `unnamed` |
| 94 | `reset`, if the driver says that the GPU must be reset, though the error was contained (`RST: Yes`) |
| 160 | `reboot`, if the repair needs a reboot of the node |
| 144 to 150 | unit, severity, and the bits that the rules compare (`nvlink5.py`) |
| 154 | `to 2`: the new recovery action, as NVML numbers them |

Only the kernel log has these details. NVML and DCGM report the bare number, whose sign is "". A line of 144 to 150 or
154 in an unknown form has the sign `unreadable`; one of 13 or 31 has "", since most of their lines name no place.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gpuwarden.health.nvlink.nvlink5 import NVLINK5_XIDS, nvlink5_line
from gpuwarden_collectors.event_facts import Source, XidEvent

UNREADABLE, UNNAMED, PROCESS = "unreadable", "unnamed", "process"
RESET, REBOOT = "reset", "reboot"

_SM = re.compile(r"\(GPC (\d{1,3}), TPC (\d{1,3})\b")
_MMU = re.compile(r"\bENGINE \w{1,40} (?:GPC(\d{1,3}) )?GPCCLIENT_(\w{1,20}) faulted")
_AFTER = re.compile(r"\bcaused by previous Xid (\d{1,5})\b")
_MUST_RESET = re.compile(r"\bRST: Yes, D-RST: ")
_REPAIR = re.compile(r"\bPerform node reboot to activate repair\b")
_RECOVERY = re.compile(r"GPU recovery action changed from 0x[0-9a-fA-F]{1,8} \(.{0,60}?\) to 0x([0-9a-fA-F]{1,8}) \(")


def sign(event: XidEvent) -> str:
    read = _READERS.get(event.xid)
    if event.source is not Source.KERNEL_LOG or read is None:
        return ""
    return read(event)


def recovery_action(sign: str) -> int | None:
    """Return the recovery action that the driver now requests; None if the sign has none."""
    verb, _, number = sign.partition(" ")
    return int(number) if verb == "to" and number.isdecimal() else None


def followed(sign: str) -> str:
    """Return the number of the Xid that caused an Xid 45 according to its line, or ""."""
    verb, _, number = sign.partition(" ")
    return number if verb == "after" else ""


def _exception(event: XidEvent) -> str:
    place = _SM.search(event.text)
    return f"GPC {int(place[1])} TPC {int(place[2])}" if place else ""


def _page_fault(event: XidEvent) -> str:
    place = _MMU.search(event.text)
    return f"{f'GPC {int(place[1])} ' if place[1] else ''}{place[2]}" if place else ""


def _cleanup(event: XidEvent) -> str:
    if cause := _AFTER.search(event.text):
        return f"after {int(cause[1])}"
    return UNNAMED if event.pid is None else PROCESS


def _contained(event: XidEvent) -> str:
    return RESET if _MUST_RESET.search(event.text) else ""


def _repair(event: XidEvent) -> str:
    return REBOOT if _REPAIR.search(event.text) else ""


def _nvlink5(event: XidEvent) -> str:
    line = nvlink5_line(event.text)
    return UNREADABLE if line is None else line.sign


def _recovery(event: XidEvent) -> str:
    change = _RECOVERY.match(event.text)
    return f"to {int(change[1], 16)}" if change else UNREADABLE


_READERS: dict[int, Callable[[XidEvent], str]] = {
    13: _exception,
    31: _page_fault,
    45: _cleanup,
    94: _contained,
    160: _repair,
    154: _recovery,
    **dict.fromkeys(NVLINK5_XIDS, _nvlink5),
}
