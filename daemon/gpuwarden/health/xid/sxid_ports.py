"""When the ports of an NVSwitch had lines of one SXid: the memory behind "again at the same port".

Lines of one port up to `BURST_GAP` after the first of them are one occasion; a line after that is another one, so that a storm
that goes on is a repeat. Kept are the beginnings of the last two occasions of each port, which fits one text of the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuwarden.health.xid.bursts import BURST_GAP

DAY = 86_400.0
PORTS_KEPT = 64  # NVSwitches have 18, 36 or 64
OCCASIONS_KEPT = 2

Ports = Mapping[str, tuple[float, ...]]
"""By port ("" where the line names none): boottime of its occasions to 10 ms, oldest first; the ports in the order of their newest."""

_PORT, _PART = ";", " "


def with_line(ports: Ports, port: str, at: float) -> Ports:
    """Ports with a line of `port` that came at `at`. Beyond `PORTS_KEPT`, the port that had an occasion longest ago is forgotten."""
    times, at = ports.get(port, ()), round(at, 2)
    if times and at - times[-1] <= BURST_GAP:
        return ports
    rest = {name: occasions for name, occasions in ports.items() if name != port}
    return dict(list({**rest, port: (*times, at)[-OCCASIONS_KEPT:]}.items())[-PORTS_KEPT:])


def with_lines(ports: Ports, text: str) -> Ports:
    """Ports with the occasions that `as_text` wrote. What another version or a hand wrote there and means nothing is left out."""
    for part in text.split(_PORT)[:PORTS_KEPT]:
        port, *times = part.split(_PART)
        for time in times[:OCCASIONS_KEPT]:
            try:
                ports = with_line(ports, port, float(time))
            except ValueError:
                continue
    return ports


def as_text(ports: Ports) -> str:
    """Text of the ports for the data of an event, which holds no lists."""
    return _PORT.join(_PART.join((port, *map(repr, times))) for port, times in ports.items())


def again(ports: Ports) -> str | None:
    """A port that had a second occasion within a day; None for none."""
    return next((port for port, times in ports.items() if len(times) > 1 and times[-1] - times[-2] <= DAY), None)
