"""Samples of InfiniBand, RoCE and EFA ports."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwarden.health.host.port_errors import EXPORTED, blind_counters
from gpuwarden.publish.metrics.lines import Number
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden_collectors.host_facts import PortFacts

PORTS_MOST = 32
"""Maximum number of ports; no host has as many."""

Sample = tuple[tuple[str, ...], Number]


def _shown(snapshot: Snapshot) -> list[PortFacts]:
    ports = () if snapshot.infiniband is None else snapshot.infiniband.ports
    return [port for port in ports if port.state == "active" or any(getattr(port, name) for name in EXPORTED)][
        :PORTS_MOST
    ]


def errors(snapshot: Snapshot) -> Iterator[Sample]:
    for port in _shown(snapshot):
        for name in EXPORTED:
            if (value := getattr(port, name)) is not None:
                yield (port.device, str(port.port), name), value


def blind(snapshot: Snapshot) -> Iterator[Sample]:
    for port in _shown(snapshot):
        for name in blind_counters(port).split():
            yield (port.device, str(port.port), name), 1
