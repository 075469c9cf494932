"""Detects network adapters whose PCIe links have fewer lanes, or are slower, than both of their ends support.

Lanes are compared on the whole path to the root port, speed only at the adapter: links further up may slow down while
idle. If all adapters of a host are alike, the host was built or configured that way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gpuwarden.health.host.memory import KnownPort
from gpuwarden.health.kernel_lines.records import adapter
from gpuwarden.health.model import Evidence, Key, Sighting, Subject
from gpuwarden_collectors.host_facts import AdapterFacts, InfinibandFacts


class Narrow(NamedTuple):
    """Deficit of a PCIe link. `lanes` and `gtps` (GT/s) are the current values, 0 if not reduced."""

    at: str
    lanes: int = 0
    lanes_possible: int = 0
    gtps: float = 0.0
    gtps_possible: float = 0.0


def narrow(facts: AdapterFacts) -> Narrow | None:
    """Return the first degraded link from the adapter upwards, or None."""
    for number, link in enumerate(facts.links):
        lanes = link.width is not None and link.width_max is not None and link.width < link.width_max
        slow = number == 0 and link.gtps is not None and link.gtps_max is not None and link.gtps < link.gtps_max
        if lanes or slow:
            return Narrow(
                link.at,
                (link.width or 0) if lanes else 0,
                link.width_max or 0,
                (link.gtps or 0.0) if slow else 0.0,
                link.gtps_max or 0.0,
            )
    return None


def adapter_pcie_degraded(infiniband: InfinibandFacts, known_ports: Mapping[str, KnownPort]) -> list[Sighting]:
    lacks = {facts: lack for facts in infiniband.adapters if (lack := narrow(facts)) is not None}
    alike = {lack._replace(at="") for lack in lacks.values()}
    cards = {facts.slot.rpartition(".")[0] for facts in infiniband.adapters}  # functions of one card share its links
    if len(cards) > 1 and len(lacks) == len(infiniband.adapters) and len(alike) == 1:
        return []
    accepted = {port.slot: port for port in known_ports.values() if port.slot}
    return [
        Sighting(Key("adapter_pcie_degraded", adapter(facts.slot)), _evidence(facts, lack))
        for facts, lack in lacks.items()
        if facts.slot in accepted and not _accepted(accepted[facts.slot], lack)
    ]


def unread_adapters(infiniband: InfinibandFacts) -> frozenset[Subject]:
    """Return the adapters with a PCIe link whose width sysfs does not give in this pass."""
    return frozenset(
        adapter(each.slot) for each in infiniband.adapters if any(link.width is None for link in each.links)
    )


def _accepted(port: KnownPort, lack: Narrow) -> bool:
    lanes = not lack.lanes or lack.lanes >= port.lanes > 0
    return lanes and (not lack.gtps or lack.gtps >= port.gtps > 0)


def _evidence(facts: AdapterFacts, lack: Narrow) -> Evidence:
    evidence: Evidence = {"adapter": facts.device, "at": lack.at}
    if lack.lanes:
        evidence = {**evidence, "lanes": lack.lanes, "lanes_possible": lack.lanes_possible}
    if lack.gtps:
        evidence = {**evidence, "gtps": lack.gtps, "gtps_possible": lack.gtps_possible}
    return evidence
