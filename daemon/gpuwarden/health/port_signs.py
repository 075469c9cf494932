"""Signs of InfiniBand and RoCE ports. Their past is an argument: what is remembered of them, the windows of counters."""

from __future__ import annotations

from collections.abc import Mapping

from gpuwarden.health.host_memory import KnownPort, port_key, port_subject
from gpuwarden.health.model import Advice, Evidence, Key, Severity, Sighting, Subject
from gpuwarden.health.windows import Windows
from gpuwarden_collectors.host_facts import InfinibandFacts, PortFacts

DOWN_COUNTERS = ("link_downed", "carrier_down")
FLAPS, FLAPS_WINDOW = 3, 3 * 3600.0
"""Three times down within three hours: what Azure's health agent takes for a flapping link."""
ETHERNET, INFINIBAND = "Ethernet", "InfiniBand"

Ports = Mapping[str, KnownPort]


def port_counters(infiniband: InfinibandFacts) -> dict[tuple[str, str], int]:
    """The counters whose growth is asked for below, by the port as a subject and the name of the counter."""
    return {
        (port_key(port.name), name): value
        for port in infiniband.ports
        for name in DOWN_COUNTERS
        if (value := getattr(port, name)) is not None
    }


def unseen_ports(infiniband: InfinibandFacts) -> frozenset[Subject]:
    return frozenset(port_subject(port.name) for port in infiniband.ports if not port.state)


def infiniband_down(infiniband: InfinibandFacts, known: Ports) -> list[Sighting]:
    """Ports that were once active and are not, or are not there at all: an adapter that is gone takes them along.

    Beside InfiniBand an Ethernet port carries no job, and warns. All of several ports at once are hardly the cables.
    """
    here = {port.name: port for port in infiniband.ports}
    down = [name for name in known if name not in here or here[name].state not in ("active", "")]
    layers = {port.link_layer for port in known.values()}
    all_of_them = len(down) == len(known) > 1
    return [
        Sighting(
            Key("infiniband_down", port_subject(name)),
            _how_down(here.get(name)),
            severity=Severity.WARNING if known[name].link_layer == ETHERNET and INFINIBAND in layers else None,
            advice=Advice.RESTART_SERVICE if all_of_them else None,
        )
        for name in down
    ]


def _how_down(port: PortFacts | None) -> Evidence:
    if port is None:
        return {"why": "the port is gone"}
    return {"state": port.state, "physical_state": port.physical_state, "link_layer": port.link_layer}


def infiniband_flapping(infiniband: InfinibandFacts, windows: Windows) -> list[Sighting]:
    """By counters, so that an interruption between two passes counts. A counter that stands at its maximum is blind."""
    sightings = []
    for port in infiniband.ports:
        series = [windows.get((port_key(port.name), name)) for name in DOWN_COUNTERS]
        downs = sum([one.growth(FLAPS_WINDOW)[0] for one in series if one is not None])
        if downs >= FLAPS:
            evidence: Evidence = {"downs": downs, "hours": round(FLAPS_WINDOW / 3600)}
            sightings.append(Sighting(Key("infiniband_flapping", port_subject(port.name)), evidence))
    return sightings


def infiniband_rate_low(infiniband: InfinibandFacts, known: Ports) -> list[Sighting]:
    """Slower than this port itself once was: lanes lost, or trained down."""
    return [
        Sighting(
            Key("infiniband_rate_low", port_subject(port.name)),
            {"gbps": port.rate_gbps, "gbps_before": known[port.name].gbps},
        )
        for port in infiniband.ports
        if port.state == "active" and port.name in known
        if port.rate_gbps is not None and port.rate_gbps < known[port.name].gbps
    ]
