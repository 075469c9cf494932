"""Ports whose RDMA device has another name than before, though their adapter is where it was on the PCI bus.

Names change when rdma-core or another package of drivers names devices anew (mlx5_0 becomes ibp24s0), when ports of an adapter
become a bond (mlx5_bond_0 has the PCI function of the first, and the others have no device any more), and when an adapter is
missing at boot: those behind it move up, so that mlx5_8 is missing where mlx5_3 died. What is remembered of a port follows its adapter.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuwarden.health.host.memory import KnownPort
from gpuwarden_collectors.host_facts import InfinibandFacts

Ports = Mapping[str, KnownPort]
Place = tuple[str, str]
"""PCI address of the adapter, and number of the port on it."""


def named_as_now(known: Ports, infiniband: InfinibandFacts) -> Ports:
    """Return the known ports under the names that they have now; the same mapping if no name changed.

    A port whose adapter is missing keeps its name. If another port has that name now, it is known by one that is free.
    """
    here = {port.name: (port.slot, str(port.port)) for port in infiniband.ports if port.slot}
    before = {name: _place(name, port) for name, port in known.items() if port.slot}
    if all(here.get(name) == place for name, place in before.items()):
        return known
    merged = {(slot, str(port.port)) for port in infiniband.ports for slot in port.merged}
    present = merged.union(here.values())
    missing = [name for name, place in before.items() if place not in present]
    free = [name for name in before if name not in here and name not in missing]
    result = {name: port for name, port in known.items() if name not in before} | _present(known, before, here)
    for name in missing:
        if name not in result:
            result[name] = known[name]
        elif free:
            result[free.pop()] = known[name]
    return known if result == known else result


def _present(known: Ports, before: Mapping[str, Place], here: Mapping[str, Place]) -> dict[str, KnownPort]:
    """The known ports that are here, by name. Devices of one PCI function (mlx5 subfunctions) keep what is known by their own names."""
    owners = {place: name for name, place in before.items() if here.get(name) != place}
    names = {name: name if before.get(name) == place else owners.get(place, "") for name, place in here.items()}
    return {name: known[owner] for name, owner in names.items() if owner}


def _place(name: str, port: KnownPort) -> Place:
    return port.slot, name.rpartition("/")[2]
