"""Lines that only repeat the line before: the driver and the kernel report one error in two lines; it counts once. Pure.

| first line | its echo |
|---|---|
| Xid 79 | `GPU … has fallen off the bus.` without a number |
| SXid with the keyword Fatal, Non-fatal or Correctable | the same SXid with `Severity s Engine instance …` |
| AER line of the port: an error was received from a device | `PCIe Bus Error: …` of that device |

An echo that comes alone is an event like any other. Both lines are printed by one function, within microseconds.
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
        """True if this event, `microseconds` by the log's clock, repeats one asked about within the second before."""
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
    """Returns what the event is about (None if it has no echo), and whether it has the form of an echo."""
    match event:
        case XidEvent(xid=xid, slot=slot, inferred=inferred) if xid == FALLEN_OFF_THE_BUS:
            return ("bus", slot), inferred
        case SxidEvent(sxid=sxid, slot=slot, fatal=fatal, severity=severity):
            return ("sxid", slot, sxid), fatal is None and severity is not None
        case AerEvent(slot=slot, severity=severity, text=text):
            return ("aer", slot, severity), text.startswith(AER_DETAIL)
    return None, False
