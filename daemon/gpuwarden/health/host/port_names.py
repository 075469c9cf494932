"""Follows ports whose RDMA device has changed its name or its PCI slot.

Names change when rdma-core or another driver package renames devices (mlx5_0 becomes ibp24s0), when ports of an adapter
become a bond (mlx5_bond_0 has the PCI function of the first; the others no longer have a device), and when an adapter
is missing at boot: the following ones move up, so that mlx5_8 is missing although mlx5_3 died. Slots change when
firmware or a new card renumbers the buses. The memory of a port follows the GUID of its adapter, or the slot if there
is no GUID or the adapter was replaced.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuwarden.health.host.memory import KnownPort
from gpuwarden_collectors.dataclass import replace
from gpuwarden_collectors.host_facts import InfinibandFacts, PortFacts

Ports = Mapping[str, KnownPort]


def named_as_now(known_ports: Ports, infiniband: InfinibandFacts) -> Ports:
    """Return the known ports under their present names and slots; the same mapping if none changed.

    A port whose adapter is missing keeps its name and slot. If another port now has the name, it gets a free one; if
    another has the slot, it gets none.
    """
    here = {port.name: port for port in infiniband.ports}
    if all(name in here and _is_that(here[name], port) for name, port in known_ports.items()):
        return known_ports
    names = _names_now(known_ports, here)
    merged = {(slot, str(port.port)) for port in infiniband.ports for slot in port.merged}
    unmoved = {
        (known_ports[name].slot, _number(name))
        for name, now in names.items()
        if here[now].slot == known_ports[name].slot
    }
    there = merged | unmoved  # a removed subfunction leaves its adapter in place, so it is not missing
    missing = {name: port for name, port in known_ports.items() if name not in names}
    result = {now: _placed(known_ports[name], here[now]) for name, now in names.items()}
    free = iter([name for name in names if name not in here])
    slots = {port.slot for port in infiniband.ports}
    for name, port in missing.items():
        if (port.slot, _number(name)) in there:
            continue
        now = name if name not in result else next(free, None)
        if now is not None:
            result[now] = replace(port, slot="") if port.slot in slots else port
    return known_ports if result == known_ports else result


def _placed(past: KnownPort, port: PortFacts) -> KnownPort:
    return replace(past, slot=port.slot or past.slot, guid=port.guid or past.guid)


def _is_that(port: PortFacts, past: KnownPort) -> bool:
    return (port.guid, port.slot) == (past.guid, past.slot)


def _names_now(known_ports: Ports, here: Mapping[str, PortFacts]) -> dict[str, str]:
    """Return the present name of each known port by its previous name, without missing ports.

    Devices of one PCI function (subfunctions of mlx5) have separate GUIDs, or else keep their names.
    """
    guids = {(port.guid, str(port.port)): name for name, port in here.items() if port.guid}
    names = {
        name: guids[port.guid, _number(name)]
        for name, port in known_ports.items()
        if (port.guid, _number(name)) in guids
    }
    taken = set(names.values())
    left = {name: port for name, port in known_ports.items() if name not in names and port.slot}
    for name, port in left.items():
        if name in here and here[name].slot == port.slot and name not in taken:
            names[name] = name
            taken.add(name)
    places = {(port.slot, str(port.port)): name for name, port in here.items() if name not in taken}
    for name, port in left.items():
        if name not in names and (now := places.pop((port.slot, _number(name)), "")):
            names[name] = now
    return names


def _number(name: str) -> str:
    """Return the number of a port on its adapter."""
    return name.rpartition("/")[2]
