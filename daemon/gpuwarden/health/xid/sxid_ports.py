"""Times of the lines of one SXid at each port of an NVSwitch, for the rule "again at the same port".

Lines of one port within `BURST_GAP` of the first are one occasion. A later line begins the next, so a storm that lasts
longer is a repeat. The start times of the last two occasions of each port are kept, which fit one text of the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuwarden.health.xid.bursts import BURST_GAP

DAY = 86_400.0
PORTS_KEPT = 64  # NVSwitches have 18, 36 or 64
OCCASIONS_KEPT = 2

Ports = Mapping[str, tuple[float, ...]]
"""By port ("" if unnamed): boottime of its occasions to 10 ms, oldest first. Ports are ordered by newest occasion."""

_PORT, _PART = ";", " "


def with_line(ports: Ports, port: str, at: float) -> Ports:
    """Return the ports with a line of `port` at `at`. Beyond `PORTS_KEPT`, drop the port least recently affected."""
    times, at = ports.get(port, ()), round(at, 2)
    if times and at - times[-1] <= BURST_GAP:
        return ports
    rest = {name: occasions for name, occasions in ports.items() if name != port}
    return dict(list({**rest, port: (*times, at)[-OCCASIONS_KEPT:]}.items())[-PORTS_KEPT:])


def with_lines(ports: Ports, text: str) -> Ports:
    """Return the ports with the occasions of a text that `as_text` wrote. Skip parts that cannot be parsed."""
    for part in text.split(_PORT)[:PORTS_KEPT]:
        port, *times = part.split(_PART)
        for time in times[:OCCASIONS_KEPT]:
            try:
                ports = with_line(ports, port, float(time))
            except ValueError:
                continue
    return ports


def as_text(ports: Ports) -> str:
    """Return the ports as text, because the data of an event holds no lists."""
    return _PORT.join(_PART.join((port, *map(repr, times))) for port, times in ports.items())


def again(ports: Ports) -> str | None:
    """Return a port whose last two occasions are within a day, or None."""
    return next((port for port, times in ports.items() if len(times) > 1 and times[-1] - times[-2] <= DAY), None)
