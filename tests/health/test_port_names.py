"""What is remembered of ports follows their adapters through reboots that rename devices and number buses anew."""

from __future__ import annotations

from random import Random

import pytest

from gpuwarden.health.host.memory import KnownPort
from gpuwarden.health.host.port_names import named_as_now
from gpuwarden_collectors.host_facts import InfinibandFacts, PortFacts


def shown(adapters: list[int], first_bus: int, *, by_place: bool, guids: bool) -> list[PortFacts]:
    """Ports of these adapters, named by their place on the bus as by rdma-core, or by their order as by the driver."""
    ports = []
    for order, adapter in enumerate(adapters):
        bus = first_bus + 2 * adapter
        name, guid = (f"ibp{bus}s0" if by_place else f"mlx5_{order}"), (f"guid {adapter}" if guids else "")
        ports.append(PortFacts(device=name, port=1, slot=f"0000:{bus:02x}:00.0", guid=guid, rate_gbps=100.0 + adapter))
    return ports


@pytest.mark.parametrize("guids", [True, False])
def test_through_reboots_as_many_ports_are_missed_as_adapters_are_missing(*, guids: bool) -> None:
    for seed in range(500):
        dice = Random(seed)
        number, first_bus = dice.randint(1, 8), 0x10
        ports = shown(list(range(number)), first_bus, by_place=dice.random() < 0.5, guids=guids)
        known_ports = {
            port.name: KnownPort(port.rate_gbps or 0.0, "", slot=port.slot, guid=port.guid) for port in ports
        }
        for _ in range(dice.randint(1, 5)):
            first_bus += dice.choice((0, 0, 1, 2)) if guids else 0
            present = [adapter for adapter in range(number) if dice.random() < 0.8]
            ports = shown(present, first_bus, by_place=dice.random() < 0.5, guids=guids)
            dice.shuffle(ports)
            known_ports = dict(named_as_now(known_ports, InfinibandFacts(ports=tuple(ports))))
            here = {port.name: port.rate_gbps for port in ports}
            missed = [name for name in known_ports if name not in here]
            assert (len(missed), len(known_ports)) == (number - len(present), number), seed
            assert {name: known_ports[name].gbps for name in here} == here, seed
