"""Judges error counters of InfiniBand, RoCE and EFA ports: errors that persist on one port and not on the others.

A counter must grow in each third of a window. A single burst, however large, is no fault of the port: a peer that dies
causes hundreds of timeouts within half a minute, a link that trains causes thousands of symbol errors within seconds.
If more than half of the ports of one role grow together, the cause is a switch or the job. Counters only warn. A
counter at its maximum stops counting: the port is *blind* for it, which is remembered and published.

| counter | limit, in each third | of | elsewhere |
|---|---|---|---|
| `link_error_recovery` | 1 | an hour | |
| | 20 | 12 minutes | NVSentinel: 5 a minute |
| `symbol_error` | 40 | an hour | NVSentinel: 120 an hour, fatal: bit error rate 1e-12 of the IBTA |
| | 2,000 | 10 minutes | NVSentinel: 10 a second |
| `port_rcv_errors` | 2,000 | 10 minutes | NVSentinel: 10 a second |
| `local_link_integrity_errors` | 1 | an hour | NVSentinel: any, fatal |
| `excessive_buffer_overrun_errors` | 1 | an hour | NVSentinel: any, fatal; UFM: 100 in 5 minutes |
| `local_ack_timeout_err` | 200 | 10 minutes | NVSentinel: 1 a second |
| `rnr_nak_retry_err` | 200 | 10 minutes | NVSentinel: any, fatal |
| `roce_slow_restart` | 2,000 | 10 minutes | NVSentinel: 10 a second |
| `no_completion_cmds` (EFA) | any, within the hour | | NVSentinel: any, fatal |
| `rx_drops` (EFA) | 20,000 | 10 minutes | NVSentinel: 100 a second |

`link_downed` is judged by `infiniband_flapping`. The other EFA counters concern remote ends, or invalid commands of
programs. They are only published.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gpuwarden.health.host.memory import KnownPort, port_key, port_subject
from gpuwarden.health.model import Key, Sighting
from gpuwarden.health.windows import Series, Windows
from gpuwarden_collectors.host_facts import InfinibandFacts, PortFacts

TEN_MINUTES, HOUR = 600.0, 3600.0
EACH = 60.0
"""Seconds between two samples."""
SAMPLES = 64
"""Samples kept, more than the longest window holds."""


class Limit(NamedTuple):
    """Limit of a counter's growth. `thirds` is 3 if each third of the window must reach it, 1 if the window as a whole must."""

    growth: int
    window: float
    thirds: int = 3


LIMITS: Mapping[str, Limit] = {
    "link_error_recovery": Limit(1, HOUR),
    "symbol_error": Limit(40, HOUR),
    "port_rcv_errors": Limit(2_000, TEN_MINUTES),
    "local_link_integrity_errors": Limit(1, HOUR),
    "excessive_buffer_overrun_errors": Limit(1, HOUR),
    "local_ack_timeout_err": Limit(200, TEN_MINUTES),
    "rnr_nak_retry_err": Limit(200, TEN_MINUTES),
    "roce_slow_restart": Limit(2_000, TEN_MINUTES),
    "no_completion_cmds": Limit(1, HOUR, thirds=1),
    "rx_drops": Limit(20_000, TEN_MINUTES),
}
FAST: Mapping[str, Limit] = {"link_error_recovery": Limit(20, 720.0), "symbol_error": Limit(2_000, TEN_MINUTES)}
"""Additional limits for counters that may reach their maximum within an hour."""
_ALL = (*FAST.items(), *LIMITS.items())
ERROR_COUNTERS = tuple(LIMITS)
EXPORTED = ("link_downed", *ERROR_COUNTERS, "cmds_err", "unresponsive_remote_events", "impaired_remote_conn_events")
"""Counters that are published."""
MAXIMUM: Mapping[str, int] = {
    "link_downed": 255,
    "link_error_recovery": 255,
    "symbol_error": 65_535,
    "port_rcv_errors": 65_535,
    "local_link_integrity_errors": 15,
    "excessive_buffer_overrun_errors": 15,
}
"""Maxima of counters of 4, 8 and 16 bits (InfiniBand specification, PortCounters). Some devices have wider ones."""

Ports = Mapping[str, KnownPort]


def blind_counters(port: PortFacts) -> str:
    """Return the counters of a port that are at their maximum, separated by spaces."""
    return " ".join(name for name, most in MAXIMUM.items() if getattr(port, name) == most)


def infiniband_errors(
    infiniband: InfinibandFacts, known_ports: Ports, roles: Mapping[str, str], windows: Windows
) -> list[Sighting]:
    """Return a sighting for each port with errors, with the growth of each counter beyond its limit."""
    active = [port.name for port in infiniband.ports if port.state == "active" and port.name in known_ports]
    beyond = {name: dict(_beyond(name, windows)) for name in active}
    sightings = []
    for name, counters in beyond.items():
        alike = [other for other in active if (other in roles) is (name in roles)]
        evidence = {
            f"{counter}_in_{round(limit.window / 60)}_min": growth
            for counter, (growth, limit) in counters.items()
            if not _together(counter, alike, beyond)
        }
        if evidence:
            sightings.append(Sighting(Key("infiniband_errors", port_subject(name)), {**evidence}))
    return sightings


def _together(counter: str, alike: list[str], beyond: Mapping[str, Mapping[str, object]]) -> bool:
    growing = sum(counter in beyond[name] for name in alike)
    return len(alike) > 1 and 2 * growing > len(alike)


def _beyond(name: str, windows: Windows) -> Iterator[tuple[str, tuple[int, Limit]]]:
    key = port_key(name)
    for counter, limit in _ALL:
        series = windows.get((key, counter))
        if series is not None and series.grown and (growth := _growth(series, limit)):
            yield counter, (growth, limit)


def _growth(series: Series, limit: Limit) -> int:
    """Return the growth over the window if each part reaches the limit, else 0. Parts need a complete window."""
    if limit.thirds > 1 and series.followed < limit.window:
        return 0
    edges = [series.growth(limit.window * part / limit.thirds)[0] for part in range(1, limit.thirds + 1)]
    parts = [after - before for before, after in zip([0, *edges], edges, strict=False)]
    return edges[-1] if min(parts) >= limit.growth else 0
