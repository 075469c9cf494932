"""Sightings of InfiniBand and RoCE ports, compared with the remembered ports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from gpuwarden.health.host.memory import KnownPort, port_key, port_subject
from gpuwarden.health.host.port_errors import ERROR_COUNTERS
from gpuwarden.health.model import Advice, Evidence, Key, Severity, Sighting, Subject
from gpuwarden_collectors.host_facts import InfinibandFacts, PortFacts

EFA = "efa"
"""A driver that always reports ACTIVE and LinkUp (efa_verbs.c), so its port state is ignored."""
ETHERNET, INFINIBAND = "Ethernet", "InfiniBand"

Ports = Mapping[str, KnownPort]


def port_counters(infiniband: InfinibandFacts) -> dict[tuple[str, str], int]:
    """Return the error counters by key of the port and name of the counter."""
    return {
        (port_key(port.name), name): value
        for port in infiniband.ports
        for name in ERROR_COUNTERS
        if (value := getattr(port, name)) is not None
    }


def unseen_ports(infiniband: InfinibandFacts) -> frozenset[Subject]:
    return frozenset(port_subject(port.name) for port in infiniband.ports if not port.state)


def infiniband_down(infiniband: InfinibandFacts, known_ports: Ports) -> list[Sighting]:
    """Return ports that were once active and are down or gone with their adapter.

    A port outside the job fabric warns. If all ports of the job fabric are down at once, cables are an unlikely cause.
    """
    here = {port.name: port for port in infiniband.ports}
    down = [name for name in known_ports if name not in here or _reads_down(here[name])]
    roles = other_roles(known_ports) if down else {}
    fabric = [name for name in known_ports if name not in roles]
    all_of_them = len(fabric) > 1 and set(fabric) <= set(down)
    return [
        Sighting(
            Key("infiniband_down", port_subject(name)),
            {**_how_down(here.get(name), known_ports[name]), **({"role": roles[name]} if name in roles else {})},
            severity=Severity.WARNING if name in roles else None,
            advice=Advice.RESTART_SERVICE if all_of_them and name not in roles else None,
        )
        for name in down
    ]


def _reads_down(port: PortFacts) -> bool:
    return port.state not in ("active", "") and port.driver != EFA


BESIDE, ROUTE, SLOWER = "Ethernet beside InfiniBand", "carries the default route", "slower than the others, and fewer"


def other_roles(known_ports: Ports) -> dict[str, str]:
    """Return Ethernet ports outside the job fabric (management, front end, storage), each with the reason.

    Without InfiniBand, none is returned if every port carries the default route: jobs must use these ports.
    """
    ethernet = {name for name, port in known_ports.items() if port.link_layer == ETHERNET}
    if any(port.link_layer == INFINIBAND for port in known_ports.values()):
        return dict.fromkeys(sorted(ethernet), BESIDE)
    routed = {name: ROUTE for name in known_ports if name in ethernet and known_ports[name].default_route}
    rest = {name: port.gbps for name, port in known_ports.items() if name not in routed}
    if not rest:
        return {}
    rates = Counter(rest.values())
    fastest = max(rates)
    odd = {rate for rate, alike in rates.items() if 0 < rate < fastest and (alike == 1 or alike < rates[fastest])}
    return {**routed, **{name: SLOWER for name, rate in rest.items() if name in ethernet and rate in odd}}


def _how_down(port: PortFacts | None, past: KnownPort) -> Evidence:
    if port is None:
        return {"why": "the port is gone", **({"adapter": past.slot} if past.slot else {})}
    return {"state": port.state, "physical_state": port.physical_state, "link_layer": port.link_layer}


def infiniband_rate_low(infiniband: InfinibandFacts, known_ports: Ports) -> list[Sighting]:
    """Return active ports slower than they once were: lanes lost, or trained down."""
    return [
        Sighting(
            Key("infiniband_rate_low", port_subject(port.name)),
            {"gbps": port.rate_gbps, "gbps_before": known_ports[port.name].gbps},
        )
        for port in infiniband.ports
        if port.state == "active" and port.name in known_ports
        if port.rate_gbps is not None and port.rate_gbps < known_ports[port.name].gbps
    ]
