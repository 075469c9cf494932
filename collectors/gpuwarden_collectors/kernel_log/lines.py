r"""Parses the bytes of one kernel log record into at most one event. Pure.

A record is what one read of `/dev/kmsg` returns (kernel documentation, ABI/testing/dev-kmsg): a header
`prio,sequence,microseconds,flags[,…];`, the message, and continuation lines ` KEY=value`, with every byte that is not
printable ASCII written as `\xNN`. One record can hold several lines of text (`\x0a`).

Every pattern is anchored at the start of the message: the kernel and the driver print process names inside their
lines, some even at the start (`NAME[PID]: segfault …`), and a user can choose a process name of up to 15 bytes.
Therefore each pattern is longer than 15 bytes, and neither leading space nor text before it is skipped. The formats
are those of the NVIDIA open kernel modules 515 to 595 (kernel_rc.c, osinit.c, osapi.c, nvswitch/kernel), of Linux 4 to
6 (drivers/pci/pcie/aer.c, drivers/pci/pci.c), and of Linux 5 and later for OOM kills (mm/oom_kill.c,
dump_oom_summary); `tests/data/kernel_log` has an example of each.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple, TypedDict

from gpuwarden_collectors.event_facts import (
    AerEvent,
    AerSeverity,
    GpuResetEvent,
    HostEvent,
    KernelLineEvent,
    LogOrigin,
    OomKillEvent,
    Source,
    SxidEvent,
    XidEvent,
)
from gpuwarden_collectors.facts import Stamp, slot_of
from gpuwarden_collectors.kernel_log.other_lines import OTHER_LINES
from gpuwarden_collectors.places import name_at

TEXT_MAX = 512  # characters of a message kept in an event
FALLEN_OFF_THE_BUS = 79
AER_DETAIL = "PCIe Bus Error: "

# 18 digits stay below 2^63, so that every number fits the ledger. 2048 bytes of a message are more than an event keeps.
_RECORD = re.compile(rb"(\d{1,5}),(\d{1,18}),(\d{1,18}),[^;\n]{0,256};([^\n]{0,2048})")
_ESCAPE = re.compile(rb"\\x[0-9a-f]{2}")
_ESCAPED = {rb"\x%02x" % byte: bytes([byte]) for byte in range(256)}


class Record(NamedTuple):
    """`facility` is 0 for the kernel; `microseconds` since boot by the clock of the log, which stops in suspend."""

    facility: int
    level: int
    sequence: int
    microseconds: int
    text: str


def parse_record(raw: bytes) -> Record | None:
    """Parses one record, without its continuation lines; returns None if the bytes are not a record."""
    match = _RECORD.match(raw)
    if match is None:
        return None
    priority, sequence, microseconds, text = match.groups()
    if b"\\" in text:
        text = _ESCAPE.sub(lambda escape: _ESCAPED[escape[0]], text)
    return Record(
        int(priority) >> 3, int(priority) & 7, int(sequence), int(microseconds), text.decode("utf-8", "replace")
    )


class _Seen(TypedDict):
    at: Stamp
    history: bool
    origin: LogOrigin


def event_of(record: Record, at: Stamp, boot_id: str, *, history: bool = False) -> HostEvent | None:
    """Parses a record into an event; returns None for most records. Does not check for forgery (`belief.py`)."""
    for pattern, build in _LINES:
        if match := pattern.match(record.text):
            origin = LogOrigin(boot_id=boot_id, sequence=record.sequence, facility=record.facility)
            return build(match, _Seen(at=at, history=history, origin=origin))
    for pattern, kind in OTHER_LINES:
        if match := pattern.match(record.text):
            origin = LogOrigin(boot_id=boot_id, sequence=record.sequence, facility=record.facility)
            named = match.groupdict()
            slot, part = _slot(named["slot"]) if "slot" in named else "", named.get("part") or ""
            text, pid = _printable(named.get("text", record.text)), _number(named.get("pid"))
            return KernelLineEvent(
                at=at, history=history, origin=origin, what=kind, slot=slot, part=part, pid=pid, text=text
            )
    return None


def _xid(line: re.Match[str], seen: _Seen) -> HostEvent:
    return XidEvent(
        **seen,
        source=Source.KERNEL_LOG,
        slot=_slot(line["slot"]),
        xid=int(line["xid"]),
        text=_printable(line["text"]),
        pid=_number(line["pid"]),
        gpu_instance=_number(line["gpu_instance"]),
        compute_instance=_number(line["compute_instance"]),
    )


def _fallen(line: re.Match[str], seen: _Seen) -> HostEvent:
    slot, text = _slot(line["slot"] or ""), _printable(line[0])
    return XidEvent(**seen, source=Source.KERNEL_LOG, slot=slot, xid=FALLEN_OFF_THE_BUS, text=text, inferred=True)


def _sxid(line: re.Match[str], seen: _Seen) -> HostEvent:
    return SxidEvent(
        **seen,
        slot=_slot(line["slot"]),
        sxid=int(line["sxid"]),
        fatal=None if line["word"] is None else line["word"] == "Fatal",
        link=_number(line["link"]),
        severity=_number(line["severity"]),
        text=_printable(line["text"]),
    )


def _aer_detail(line: re.Match[str], seen: _Seen) -> HostEvent:
    return AerEvent(**seen, slot=_slot(line["slot"]), severity=_severity(line), text=_printable(line["text"]))


def _aer_port(line: re.Match[str], seen: _Seen) -> HostEvent:
    """Parses the port's line; `slot` is the device that sent the error, not the port."""
    if line["source"]:
        slot = _slot(line["source"])
    else:  # Linux before 4.17: bus, device and function as one number, in the domain of the port
        number = int(line["id"], 16)
        slot = _slot(f"{line['slot'].split(':')[0]}:{number >> 8:02x}:{number >> 3 & 31:02x}.{number & 7}")
    return AerEvent(**seen, slot=slot, severity=_severity(line), text=_printable(line["text"]))


def _aer_unrecovered(line: re.Match[str], seen: _Seen) -> HostEvent:
    return AerEvent(**seen, slot=_slot(line["slot"]), severity=AerSeverity.UNRECOVERED, text=_printable(line["text"]))


def _reset(line: re.Match[str], seen: _Seen) -> HostEvent:
    return GpuResetEvent(**seen, slot=_slot(line["slot"]), ok=line["failed"] is None, text=_printable(line["text"]))


def _oom_kill(line: re.Match[str], seen: _Seen) -> HostEvent:
    """Parses an OOM kill. Takes no names from a truncated or interleaved line: part of a path is another path."""
    of_limit = line["constraint"] == "MEMCG"
    named = _OOM_NAMES.match(line["rest"])
    limit, group = (named["limit"] or "", named["group"]) if named else ("", "")
    if named is None or not (group + "/").startswith(limit.rstrip("/") + "/"):  # else a name contains the separator
        return OomKillEvent(**seen, of_limit=of_limit)
    return OomKillEvent(
        **seen,
        of_limit=of_limit,
        limit_group=_printable(limit),
        limit_job=name_at(limit),
        group=_printable(group),
        job=name_at(group),
        pid=int(named["pid"]),
        uid=int(named["uid"]),
    )


def _severity(line: re.Match[str]) -> AerSeverity:
    term = line["severity"]
    return AerSeverity.CORRECTED if term is None else AerSeverity.FATAL if term == "Fatal" else AerSeverity.NONFATAL


def _slot(address: str) -> str:
    try:
        return slot_of(address)
    except ValueError:  # an Xid without a valid address is still an Xid
        return ""


def _number(digits: str | None) -> int | None:
    return None if digits is None else int(digits)


def _printable(text: str) -> str:
    kept = text.strip()[:TEXT_MAX]
    return "".join(c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in kept)


def _pattern(*parts: str) -> re.Pattern[str]:
    return re.compile("".join(parts), re.ASCII | re.DOTALL)


_DRIVER = r"(?:NVRM: ){1,3}"
_LOOSE_SLOT = r"(?P<slot>[0-9a-fA-F]{1,8}:[0-9a-fA-F]{2}(?::[0-9a-fA-F]{2})?(?:\.[0-7])?)"
_ADDRESS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
_DEVICE = rf"[\w.-]{{1,64}} (?P<slot>{_ADDRESS}): "
_SEVERITY = r"(?:Uncorrect(?:ed|able) \((?P<severity>Fatal|Non-Fatal)\)|Correct(?:ed|able))"
_PCI_RESET = r"ready \d{1,9}ms after (?:(?:AF_)?FLR|bus reset)"

# The comma proves that the number is complete. The process name is removed from the text, because a user chooses it
# and events are published.
_XID = _pattern(
    rf"{_DRIVER}Xid \((?:PCI:)?{_LOOSE_SLOT}(?: GPU-I:(?P<gpu_instance>\d{{1,5}}))?",
    r"(?: GPU-CI:(?P<compute_instance>\d{1,5}))?\): (?P<xid>\d{1,5}),\s?",
    r"(?:pid='?(?:(?P<pid>\d{1,10})|<unknown>)'?(?:, |\Z))?(?:name=.{0,255}?(?:, |\Z))?(?P<text>.*)",
)
_FALLEN = _pattern(rf"{_DRIVER}GPU (?:at )?(?:PCI:)?{_LOOSE_SLOT}:? (?:GPU )?has fallen off the bus")
# Printed at probe, as one message of three lines; alone, the last of them names no GPU.
_FALLEN_AT_PROBE = _pattern(
    rf"{_DRIVER}(?:The NVIDIA GPU (?:at )?(?:PCI:)?{_LOOSE_SLOT}\s.{{0,200}}?)?",
    r"fallen off the bus and is not responding",
)
# "Data {" lines are the registers of the line before.
_SXID = _pattern(
    rf"nvidia-nvswitch\d{{1,3}}: SXid \(PCI:{_LOOSE_SLOT}\): (?P<sxid>\d{{1,6}}), (?!Data \{{)(?P<text>",
    r"(?:(?P<word>Fatal|Non-fatal|Correctable)\b(?:, Link (?P<link>\d{1,4})\b)?|Severity (?P<severity>\d{1,4})\b)?.*)",
)
_AER_DETAIL = _pattern(rf"{_DEVICE}(?:AER: )?(?P<text>{AER_DETAIL}severity={_SEVERITY}, type=.*)")
_AER_PORT = _pattern(
    rf"{_DEVICE}AER: (?P<text>(?:Multiple )?{_SEVERITY} error (?:message )?received(?::| from) ",
    rf"(?:(?P<source>{_ADDRESS})|id=(?P<id>[0-9a-f]{{4}})).*)",
)
# drivers/pci/pcie/err.c: a device whose driver has no error callback, as NVIDIA's (lines of other drivers' devices are
# not read); and at the end the port above it, or the device itself.
_AER_NO_CALLBACK = _pattern(
    rf"nvidia (?P<slot>{_ADDRESS}): AER: (?P<text>[Cc]an't recover \(no error_detected callback\))"
)
_AER_FAILED = _pattern(rf"{_DEVICE}AER: (?P<text>[Dd]evice recovery failed)\s*\Z")
# Printed by Linux, not by the NVIDIA driver: a reset that took over a second, or one that the driver did not request.
# The driver reports a successful reset as Xid 154, "… to 0x0 (None)".
_RESET = _pattern(
    rf"nvidia (?P<slot>{_ADDRESS}): ",
    rf"(?P<text>{_PCI_RESET}|reset done|(?P<failed>not ){_PCI_RESET}; giving up)\s*\Z",
)
# The names of cpusets and control groups may contain anything but a slash, process names anything. Only the text before
# the first slash and after the last comma is certainly the kernel's.
_OOM_KILL = _pattern(
    r"oom-kill:constraint=CONSTRAINT_(?P<constraint>NONE|CPUSET|MEMORY_POLICY|MEMCG),nodemask=(?P<rest>.*)"
)
_OOM_NAMES = _pattern(
    r"[^/]*(?:,cpuset=/,[^/]*)?(?:,oom_memcg=(?P<limit>/.*?)|,global_oom),task_memcg=(?P<group>/.*?)",
    r",task=.{0,15},pid=(?P<pid>\d{1,10}),uid=(?P<uid>\d{1,10})\Z",
)

_LINES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], _Seen], HostEvent]], ...] = (
    (_XID, _xid),
    (_FALLEN, _fallen),
    (_FALLEN_AT_PROBE, _fallen),
    (_SXID, _sxid),
    (_AER_DETAIL, _aer_detail),
    (_AER_PORT, _aer_port),
    (_AER_NO_CALLBACK, _aer_unrecovered),
    (_AER_FAILED, _aer_unrecovered),
    (_RESET, _reset),
    (_OOM_KILL, _oom_kill),
)
