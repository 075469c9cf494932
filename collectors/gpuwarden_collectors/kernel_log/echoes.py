"""Detects lines that repeat the previous one: driver and kernel report some errors in two lines. Pure.

| first line | its echo |
|---|---|
| Xid 79 | `GPU … has fallen off the bus.` without a number |
| SXid with the keyword Fatal, Non-fatal or Correctable | the same SXid with `Severity s Engine instance …` |
| AER line of the port: an error was received from a device | `PCIe Bus Error: …` of that device |

An echo without its first line is a normal event. One function prints both lines, within microseconds.
"""

from __future__ import annotations

from collections.abc import Hashable

from gpuwarden_collectors.event_facts import AerEvent, HostEvent, SxidEvent, XidEvent
from gpuwarden_collectors.kernel_log.lines import AER_DETAIL, FALLEN_OFF_THE_BUS

WITHIN = 1_000_000  # microseconds
REMEMBERED = 256  # first lines; more than all GPUs and switches of a host


class Echoes:
    def __init__(self) -> None:
        self._first: dict[Hashable, int] = {}

    def is_echo(self, event: HostEvent, microseconds: int) -> bool:
        """True if this event repeats one that was passed within the last second. `microseconds` is the log's time."""
        key, echo = _key(event)
        if key is None:
            return False
        if echo:
            return microseconds - self._first.get(key, float("-inf")) <= WITHIN
        self._first.pop(key, None)
        self._first[key] = microseconds
        if len(self._first) > REMEMBERED:
            del self._first[next(iter(self._first))]
        return False


def _key(event: HostEvent) -> tuple[Hashable, bool]:
    """Returns a key that a line and its echo share (None for other events), and whether this is the echo's form."""
    match event:
        case XidEvent(xid=xid, slot=slot, inferred=inferred) if xid == FALLEN_OFF_THE_BUS:
            return ("bus", slot), inferred
        case SxidEvent(sxid=sxid, slot=slot, fatal=fatal, severity=severity):
            return ("sxid", slot, sxid), fatal is None and severity is not None
        case AerEvent(slot=slot, severity=severity, text=text):
            return ("aer", slot, severity), text.startswith(AER_DETAIL)
    return None, False
