"""What the facts of InfiniBand and RoCE ports mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from gpuwarden.health.host import ports as port_detectors
from gpuwarden.health.host.memory import KnownPort
from gpuwarden.health.model import Advice, Severity, Sighting, Subject
from gpuwarden_collectors.host_facts import InfinibandFacts, PortFacts

HOUR = 3600.0


def parts(sightings: Iterable[Sighting]) -> list[str]:
    return [sighting.key.subject.part for sighting in sightings]


def ports(**states: str) -> InfinibandFacts:
    return InfinibandFacts(
        ports=tuple(PortFacts(device=device, port=1, state=state, rate_gbps=400.0) for device, state in states.items())
    )


KNOWN = {"mlx5_0/1": KnownPort(400.0, "InfiniBand"), "mlx5_1/1": KnownPort(400.0, "InfiniBand")}


@pytest.mark.parametrize(
    ("now", "down"),
    [
        (ports(mlx5_0="active", mlx5_1="active"), []),
        (ports(mlx5_0="down", mlx5_1="active"), ["mlx5_0/1"]),
        (ports(mlx5_0="init", mlx5_1="armed"), ["mlx5_0/1", "mlx5_1/1"]),
        (ports(mlx5_0="active"), ["mlx5_1/1"]),  # the adapter is gone
        (InfinibandFacts(), ["mlx5_0/1", "mlx5_1/1"]),
        (ports(mlx5_0="", mlx5_1="active"), []),  # nobody knows
        (ports(mlx5_0="active", mlx5_1="active", mlx5_9="down"), []),  # never was up: no cable, by design
    ],
)
def test_a_port_that_was_once_active_and_is_not_is_down(now: InfinibandFacts, down: list[str]) -> None:
    sightings = port_detectors.infiniband_down(now, KNOWN)
    assert parts(sightings) == down
    assert all(sighting.key.subject.kind == "port" for sighting in sightings)


def test_beside_infiniband_an_ethernet_port_only_warns() -> None:
    roce = {"mlx5_0/1": KnownPort(400.0, "Ethernet"), "mlx5_1/1": KnownPort(400.0, "Ethernet")}
    down = ports(mlx5_0="active", mlx5_1="down")
    assert [s.severity for s in port_detectors.infiniband_down(down, roce)] == [None]  # as the table has it: a failure
    both = {**roce, "mlx5_2/1": KnownPort(400.0, "InfiniBand")}
    worst = {s.key.subject.part: s.severity for s in port_detectors.infiniband_down(down, both)}
    assert worst == {"mlx5_1/1": Severity.WARNING, "mlx5_2/1": None}


def roce(*rates: float, route: Iterable[int] = ()) -> dict[str, KnownPort]:
    """RoCE ports of these rates; those in `route` carry the default route."""
    return {f"mlx5_{n}/1": KnownPort(rate, "Ethernet", n in route) for n, rate in enumerate(rates)}


COMPUTE = (400.0,) * 8


@pytest.mark.parametrize(
    ("known_ports", "others"),
    [
        (roce(*COMPUTE), []),
        (roce(100.0, *COMPUTE, route=[0]), [0]),
        (roce(100.0, *COMPUTE), [0]),  # the route goes elsewhere, or is another network's
        (roce(400.0, *COMPUTE, route=[0]), [0]),  # as fast as the others
        (roce(100.0, 100.0, *COMPUTE), [0, 1]),
        (roce(100.0, 100.0, *COMPUTE, route=[0, 1]), [0, 1]),  # a bond over both
        (roce(200.0, 200.0, 400.0, 400.0), []),  # as many of each: which of them jobs use is unknown
        (roce(100.0, 400.0), [0]),
        (roce(400.0, route=[0]), []),  # the only port there is
        (roce(400.0, 100.0, route=[0]), [0]),
        (roce(100.0, 100.0, route=[0, 1]), []),  # all carry it
        (roce(0.0, *COMPUTE), []),  # it never reported its speed
        (roce(800.0, 400.0, 400.0, route=[0]), [0]),
    ],
)
def test_management_and_front_end_ports_warn_and_those_of_the_job_fabric_fail(
    known_ports: Mapping[str, KnownPort], others: list[int]
) -> None:
    sightings = {s.key.subject.part: s for s in port_detectors.infiniband_down(InfinibandFacts(), known_ports)}
    warned = {name for name, sighting in sightings.items() if sighting.severity is Severity.WARNING}
    assert warned == {f"mlx5_{n}/1" for n in others}
    assert all(sightings[name].evidence["role"] for name in warned)


def test_infiniband_ports_are_of_the_job_fabric_whatever_their_rate_and_route() -> None:
    ports_before = {
        "mlx5_0/1": KnownPort(200.0, "InfiniBand", default_route=True),
        "mlx5_1/1": KnownPort(400.0, "InfiniBand"),
    }
    assert [s.severity for s in port_detectors.infiniband_down(InfinibandFacts(), ports_before)] == [None, None]


def test_all_ports_of_the_fabric_down_at_once_are_no_cables_whatever_a_management_port_does() -> None:
    ports_before = roce(100.0, *COMPUTE, route=[0])
    up = InfinibandFacts(ports=(PortFacts(device="mlx5_0", port=1, state="active"),))
    assert {s.advice for s in port_detectors.infiniband_down(up, ports_before)} == {Advice.RESTART_SERVICE}
    some = InfinibandFacts(ports=(PortFacts(device="mlx5_3", port=1, state="active"),))
    assert {s.advice for s in port_detectors.infiniband_down(some, ports_before)} == {None}


def test_all_ports_down_at_once_are_not_a_matter_of_cables() -> None:
    single_down, both = ports(mlx5_0="active", mlx5_1="down"), ports(mlx5_0="down", mlx5_1="down")
    assert [s.advice for s in port_detectors.infiniband_down(single_down, KNOWN)] == [None]
    assert {s.advice for s in port_detectors.infiniband_down(both, KNOWN)} == {Advice.RESTART_SERVICE}


def at_rate(rate: float | None, state: str = "active") -> InfinibandFacts:
    return InfinibandFacts(ports=(PortFacts(device="mlx5_0", port=1, state=state, rate_gbps=rate),))


def test_a_port_is_slow_when_it_is_slower_than_itself() -> None:
    for fine in (at_rate(400.0), at_rate(800.0), at_rate(None), at_rate(10.0, "down"), ports(mlx5_9="active")):
        assert port_detectors.infiniband_rate_low(fine, KNOWN) == []
    (low,) = port_detectors.infiniband_rate_low(at_rate(200.0), KNOWN)
    assert low.evidence == {"gbps": 200.0, "gbps_before": 400.0}


def test_a_port_whose_state_cannot_be_read_is_unseen() -> None:
    assert port_detectors.unseen_ports(ports(mlx5_0="", mlx5_1="down")) == {Subject("port", part="mlx5_0/1")}


def test_the_counters_of_a_port_are_those_that_it_has() -> None:
    port = PortFacts(device="mlx5_0", port=1, link_downed=3, symbol_error=2)
    assert port_detectors.port_counters(InfinibandFacts(ports=(port,))) == {("port/mlx5_0/1", "symbol_error"): 2}
