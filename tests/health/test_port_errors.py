"""Error counters of ports: what warns, and the many things that do not. Adapters on narrow PCIe links."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace

import pytest

from gpuwarden.health.detectors import COUNTERS as GPU_COUNTERS
from gpuwarden.health.host.port_errors import EACH, ERROR_COUNTERS, LIMITS, MAXIMUM, SAMPLES
from gpuwarden.health.model import Event, EventKind, Health
from gpuwarden.health.windows import KEPT, Series
from gpuwarden_collectors.host_facts import AdapterFacts, PcieLink, PortFacts
from support.quick import first_quick
from support.whole_hosts import WholeHost, port

HOUR = 3600.0
COUNTERS = [name for name in ERROR_COUNTERS if name not in ("no_completion_cmds", "rx_drops")]


def fabric(count: int = 8, **of_each: object) -> list[PortFacts]:
    return [port(f"mlx5_{n}", **{**dict.fromkeys(COUNTERS, 0), **of_each}) for n in range(count)]


def started(ports: list[PortFacts]) -> WholeHost:
    host = WholeHost()
    host.ports(*ports)
    host.run(120, every=10)
    return host


def counting(
    host: WholeHost, ports: list[PortFacts], each: Mapping[int, Mapping[str, int]], seconds: float, every: float = 60.0
) -> list[PortFacts]:
    """The ports in `each` count so much more with every step. The ports after it."""
    for _ in range(round(seconds / every)):
        for number, grown in each.items():
            ports[number] = replace(
                ports[number], **{name: getattr(ports[number], name) + by for name, by in grown.items()}
            )
        host.ports(*ports)
        host.later(every)
    return ports


def raised(host: WholeHost) -> list[str]:
    return [str(event.key) for event in host.ledger if event.kind == EventKind.RAISED]


def an_hour_of(counter: str) -> int:
    """Return a growth per minute that is just beyond the limit."""
    limit = LIMITS[counter]
    return -(-limit.growth * limit.thirds * 60 // round(limit.window)) * 2


@pytest.mark.parametrize("counter", first_quick(2, COUNTERS))
def test_each_counter_of_one_port_that_grows_for_long_warns_and_never_fails(counter: str) -> None:
    ports = fabric()
    host = started(ports)
    counting(host, ports, {3: {counter: an_hour_of(counter)}}, 2 * HOUR)
    assert set(raised(host)) == {"infiniband_errors@port/mlx5_3/1"}
    (finding,) = host.findings
    assert (finding.severity, list(finding.evidence)) == (
        "warning",
        [f"{counter}_in_{round(LIMITS[counter].window / 60)}_min"],
    )
    host.run(3 * HOUR, every=60)
    assert host.findings == ()


def test_an_eight_bit_counter_warns_before_it_is_full() -> None:
    ports = fabric(link_error_recovery=10)
    host = started(ports)
    counting(host, ports, {3: {"link_error_recovery": 6}}, 20 * 60)
    assert raised(host) == ["infiniband_errors@port/mlx5_3/1"]
    assert list(host.findings[0].evidence) == ["link_error_recovery_in_12_min"]


@pytest.mark.parametrize("counter", first_quick(1, COUNTERS))
def test_what_comes_at_once_however_much_is_no_fault(counter: str) -> None:
    ports = fabric()
    host = started(ports)
    counting(host, ports, {3: {counter: 1_000_000}}, 120)
    counting(host, ports, {}, 2 * HOUR)
    assert raised(host) == []


@pytest.mark.parametrize("counter", first_quick(1, COUNTERS))
def test_ports_that_grow_together_are_not_the_cause(counter: str) -> None:
    ports = fabric()
    host = started(ports)
    counting(host, ports, {n: {counter: an_hour_of(counter)} for n in range(8)}, 2 * HOUR)
    assert raised(host) == []


def test_two_of_eight_that_grow_are_two_findings_and_a_management_port_is_compared_with_its_like() -> None:
    ports = [*fabric(), port("mlx5_9", link_layer="Ethernet", **dict.fromkeys(COUNTERS, 0))]
    host = started(ports)
    counting(host, ports, {n: {"symbol_error": 10} for n in (1, 2, 8)}, 2 * HOUR)
    assert set(raised(host)) == {f"infiniband_errors@port/mlx5_{n}/1" for n in (1, 2, 9)}


def test_a_single_port_is_judged_by_its_own_counters() -> None:
    ports = fabric(1)
    host = started(ports)
    counting(host, ports, {0: {"symbol_error": 10}}, 2 * HOUR)
    assert raised(host) == ["infiniband_errors@port/mlx5_0/1"]


def test_a_dying_peer_is_no_fault_of_the_port() -> None:
    """700 timeouts within half a minute, as NCCL's queue pairs give, each hour."""
    ports = fabric()
    host = started(ports)
    for _ in range(6):
        counting(host, ports, {3: {"local_ack_timeout_err": 350, "rnr_nak_retry_err": 90}}, 30, every=15)
        counting(host, ports, {}, HOUR)
    assert raised(host) == []


def test_counters_that_jump_back_and_wrap_are_no_fault() -> None:
    ports = fabric()
    host = started(ports)
    for value in (2**64 - 1, 5, 60_000, 0, 65_535, 3):
        ports[3] = replace(ports[3], symbol_error=value, local_ack_timeout_err=value)
        host.ports(*ports)
        host.run(1500, every=60)
    assert raised(host) == []


def test_a_counter_that_is_not_given_any_more_changes_nothing() -> None:
    ports = fabric()
    host = started(ports)
    counting(host, ports, {3: {"symbol_error": 10}}, 40 * 60)
    ports[3] = replace(ports[3], symbol_error=None)
    host.ports(*ports)
    host.run(HOUR, every=60)
    assert raised(host) == []


def test_a_port_that_was_never_up_and_one_that_is_down_are_not_judged() -> None:
    ports = [*fabric(2), port("mlx5_7", state="down", **dict.fromkeys(COUNTERS, 0))]
    host = started(ports)
    counting(host, ports, {2: {"symbol_error": 100}}, 2 * HOUR)
    assert raised(host) == []


def test_a_restart_ends_no_warning_before_the_window_is_full_again() -> None:
    ports = fabric()
    host = started(ports)
    counting(host, ports, {3: {"symbol_error": 10}}, 2 * HOUR)
    host.restart_daemon()
    host.run(0.5 * HOUR, every=60)
    assert [finding.key.code for finding in host.findings] == ["infiniband_errors"]
    host.run(1.5 * HOUR, every=60)
    assert host.findings == ()


# --- blind counters


def learned(host: WholeHost) -> list[Event]:
    return [event for event in host.ledger if event.kind == EventKind.HOST_LEARNED and event.data.get("blind")]


@pytest.mark.parametrize(("counter", "most"), MAXIMUM.items())
def test_a_counter_at_its_maximum_is_blind_which_is_one_event_and_no_finding(counter: str, most: int) -> None:
    host = started([port("mlx5_0", **{counter: most}), port("mlx5_1", **{counter: 0})])
    host.run(HOUR, every=60)
    assert [str(event.data["blind"]) for event in learned(host)] == [counter]
    assert host.health is Health.HEALTHY
    host.ports(port("mlx5_0", **{counter: 0}), port("mlx5_1", **{counter: 0}))
    host.run(60)
    assert host.state.host.ports["mlx5_0/1"].blind == ""


def test_wide_counters_are_not_blind_beyond_the_maximum_of_narrow_ones() -> None:
    host = started([port("mlx5_0", symbol_error=70_000, link_downed=0)])
    assert learned(host) == []


# --- EFA


def efa(n: int, **more: object) -> PortFacts:
    counters = {
        "no_completion_cmds": 0,
        "rx_drops": 0,
        "cmds_err": 0,
        "unresponsive_remote_events": 0,
        "impaired_remote_conn_events": 0,
    }
    return port(
        f"rdmap{n}s0",
        **{"driver": "efa", "link_layer": "Unknown", "link_downed": None, "rate_gbps": 100.0, **counters, **more},
    )


def test_a_command_without_completion_warns_and_what_remote_ends_do_does_not() -> None:
    ports = [efa(n) for n in range(4)]
    host = started(ports)
    counting(
        host, ports, {1: {"unresponsive_remote_events": 500, "impaired_remote_conn_events": 500, "cmds_err": 100}}, HOUR
    )
    assert raised(host) == []
    counting(host, ports, {1: {"no_completion_cmds": 1}}, 60)
    assert raised(host) == ["infiniband_errors@port/rdmap1s0/1"]


def test_an_efa_port_fails_when_it_is_gone_and_its_state_proves_nothing() -> None:
    ports = [efa(n) for n in range(4)]
    host = started(ports)
    host.ports(*ports[:3], efa(3, state="down"))
    host.run(600, every=15)
    assert host.health is Health.HEALTHY
    host.ports(*ports[:3])
    host.run(300, every=15)
    assert [(f.key.code, f.severity) for f in host.findings] == [("infiniband_down", "failure")]


# --- memory


def size_of(kept: int) -> int:
    """Return the size in bytes of a series that grows with every sample."""
    series = Series.start(0.0, 0)
    for n in range(2 * KEPT):
        series = series.add(n * EACH, n * 1000, kept)
    samples = sum(sys.getsizeof(sample) + sum(map(sys.getsizeof, sample)) for sample in series.samples)
    return sys.getsizeof(series) + sys.getsizeof(series.samples) + samples


def test_the_windows_of_sixteen_gpus_and_twelve_ports_stay_below_eight_mebibytes() -> None:
    """The sum includes the marks of all links and ports, which are below one (`test_nvlink_link_errors.py`, `test_port_downs.py`)."""
    of_gpus = 16 * len(GPU_COUNTERS) * size_of(KEPT)
    of_ports = 12 * len(ERROR_COUNTERS) * size_of(SAMPLES)
    assert of_gpus + of_ports + (1 << 20) <= 8 << 20


# --- PCIe of adapters


def adapter(n: int, *, lanes: int = 16, gtps: float = 32.0, above: int = 16) -> AdapterFacts:
    slot = f"0000:{0x40 + n:02x}:00.0"
    links = (
        PcieLink(at=slot, width=lanes, width_max=16, gtps=gtps, gtps_max=32.0),
        PcieLink(at=f"0000:{0x30 + n:02x}:00.0", width=above, width_max=16, gtps=2.5, gtps_max=32.0),
    )
    return AdapterFacts(slot=slot, device=f"mlx5_{n}", upstream=(f"0000:{0x20 + n:02x}:01.0",), links=links)


def on(*adapters: AdapterFacts) -> WholeHost:
    host = WholeHost()
    host.adapters = adapters
    host.ports(*(port(each.device, slot=each.slot) for each in adapters))
    host.run(600, every=10)
    return host


@pytest.mark.parametrize("narrow", [{"lanes": 8}, {"above": 8}, {"gtps": 16.0}])
def test_one_adapter_on_a_narrow_link_warns(narrow: dict[str, int]) -> None:
    host = on(adapter(0), adapter(1, **narrow), adapter(2))
    assert [(str(f.key), f.severity) for f in host.findings] == [
        ("adapter_pcie_degraded@adapter/0000:41:00.0", "warning")
    ]
    host.accept()
    host.run(300, every=10)
    assert host.findings == ()


def test_an_accepted_adapter_that_loses_more_lanes_warns_again() -> None:
    host = on(adapter(0), adapter(1, lanes=8), adapter(2))
    host.accept()
    host.run(300, every=10)
    host.adapters = (adapter(0), adapter(1, lanes=4), adapter(2))
    host.ports(*(port(each.device, slot=each.slot) for each in host.adapters))
    host.run(600, every=10)
    assert [finding.evidence["lanes"] for finding in host.findings] == [4]


def test_an_accepted_adapter_that_becomes_slower_besides_warns_again() -> None:
    host = on(adapter(0), adapter(1, lanes=8), adapter(2))
    host.accept()
    host.run(300, every=10)
    assert host.health is Health.HEALTHY
    host.adapters = (adapter(0), adapter(1, lanes=8, gtps=16.0), adapter(2))
    host.ports(*(port(each.device, slot=each.slot) for each in host.adapters))
    host.run(600, every=10)
    assert [finding.evidence["gtps"] for finding in host.findings] == [16.0]


def test_both_functions_of_the_only_card_warn() -> None:
    first = adapter(0, lanes=8)
    second = replace(first, slot=first.slot[:-1] + "1", device="mlx5_1")
    assert [str(finding.key.subject) for finding in on(first, second).findings] == [
        "adapter/0000:40:00.0", "adapter/0000:40:00.1",
    ]  # fmt: skip


def test_adapters_that_are_alike_are_as_the_host_was_built() -> None:
    assert on(*(adapter(n, lanes=8) for n in range(4))).health is Health.HEALTHY
    assert on(*(adapter(n, gtps=16.0) for n in range(4))).health is Health.HEALTHY
    assert on(adapter(0, lanes=8)).health is Health.WARNING


def test_an_adapter_that_is_narrow_for_a_moment_and_one_that_was_never_up_are_none() -> None:
    host = on(adapter(0), adapter(1))
    host.adapters = (adapter(0), adapter(1, lanes=8))
    host.ports(*(port(each.device, slot=each.slot) for each in host.adapters))
    host.run(120, every=10)
    host.adapters = (adapter(0), adapter(1))
    host.ports(*(port(each.device, slot=each.slot) for each in host.adapters))
    host.run(600, every=10)
    assert raised(host) == []
    host.adapters = (adapter(0), adapter(1), adapter(2, lanes=1))
    host.ports(
        *(
            port(each.device, slot=each.slot, state="active" if each.device != "mlx5_2" else "down")
            for each in host.adapters
        )
    )
    host.run(600, every=10)
    assert raised(host) == []
