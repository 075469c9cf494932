"""Links of a GPU that never came up beside siblings with all of theirs, that all go down in use, and that recover all the time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from gpuwarden.health.conditions import CONDITIONS
from gpuwarden.health.model import Health
from gpuwarden_collectors.facts import CallError, GpuProcess, LinkFacts
from support.hosts import Host, slot
from support.quick import first_quick

INACTIVE = tuple(LinkFacts(link=n, active=False) for n in range(18))
JOB = (GpuProcess(pid=4711),)


def put(host: Host, index: int, **changes: object) -> None:
    host.gpus[index] = replace(host.gpus[index], **changes)  # type: ignore[arg-type]  # fields of GpuFacts by name


def dark(count: int = 8, *, which: Iterable[int] = (3,), links: tuple[LinkFacts, ...] = INACTIVE) -> Host:
    host = Host(count)
    for index in which:
        put(host, index, links=links)
    return host


# --- never up


@pytest.mark.parametrize("links", [INACTIVE, ()], ids=["inactive", "none listed"])
def test_a_gpu_without_a_link_among_siblings_with_all_of_theirs_warns_after_ten_minutes(
    links: tuple[LinkFacts, ...],
) -> None:
    host = dark(links=links)
    host.run(595)
    assert host.codes == []
    host.run(20)
    [finding] = host.findings
    assert (finding.key.code, finding.key.subject.slot, finding.severity) == ("nvlink_never_up", slot(3), "warning")
    assert finding.evidence == {"links_of_siblings": 18, "siblings": 7}
    put(host, 3, links=host.gpus[0].links)
    host.run(120)
    assert host.health is Health.HEALTHY


def test_four_siblings_with_all_of_their_links_are_enough() -> None:
    host = dark(5)
    host.run(615)
    [finding] = host.findings
    assert (finding.key.code, finding.evidence["siblings"]) == ("nvlink_never_up", 4)


def test_it_goes_on_over_a_restart_and_a_reboot() -> None:
    host = dark()
    host.run(700)
    host.restart_daemon()
    host.run(60)
    assert host.codes == ["nvlink_never_up"]
    host.reboot()
    host.run(700)
    assert host.codes == ["nvlink_never_up"]


def alone_among_four() -> Host:
    return dark(4)


def two_of_eight() -> Host:
    return dark(which=(3, 6))


def all_of_them() -> Host:
    return dark(which=range(8))


def with_mig() -> Host:
    host = dark()
    host.change(3, mig_mode=1)
    return host


def of_another_name() -> Host:
    host = dark()
    put(host, 3, name="NVIDIA H100 PCIe")
    return host


def bridged_pairs_and_one_alone() -> Host:
    host = dark(7)
    for index in (0, 1, 2, 4, 5, 6):
        peer = {0: 1, 1: 0, 2: 4, 4: 2, 5: 6, 6: 5}[index]
        put(host, index, links=tuple(LinkFacts(link=n, active=True, remote=slot(peer)) for n in range(12)))
    return host


def siblings_that_lost_links() -> Host:
    host = dark(5)
    host.run(60)
    put(host, 0, links=(*host.gpus[0].links[1:], LinkFacts(link=0, active=False)))
    return host


def states_unknown() -> Host:
    return dark(links=tuple(LinkFacts(link=n) for n in range(18)))


def not_answered() -> Host:
    host = dark(links=())
    put(host, 3, errors=(CallError(call="nvmlDeviceGetNvLinkState", code=999),))
    return host


@pytest.mark.parametrize(
    "made",
    first_quick(3, [
        alone_among_four, two_of_eight, all_of_them, with_mig, of_another_name, bridged_pairs_and_one_alone,
        siblings_that_lost_links, states_unknown, not_answered,
    ]),
)  # fmt: skip
def test_where_it_may_be_meant_so_or_is_not_known_nobody_is_accused(made: object) -> None:
    assert callable(made)
    host = made()
    host.run(7200, every=30)
    assert "nvlink_never_up" not in host.codes


# --- all down in use


def all_links_lost(*, processes: tuple[GpuProcess, ...], uptime: float = 10_000.0) -> Host:
    host = Host(8, uptime=uptime)
    put(host, 2, processes=processes)
    host.run(60)
    put(host, 2, links=INACTIVE)
    return host


def test_all_links_down_under_a_process_fail_after_a_minute() -> None:
    host = all_links_lost(processes=JOB)
    host.run(55)
    assert host.codes == []
    host.run(10)
    assert set(host.codes) == {"nvlink_down"}
    assert host.health is Health.FAILURE


def test_it_counts_that_a_process_had_the_gpu_when_the_links_went_down_though_it_ended_for_lack_of_them() -> None:
    host = all_links_lost(processes=JOB)
    host.run(10)
    put(host, 2, processes=())
    host.run(55)
    assert set(host.codes) == {"nvlink_down"}


def test_links_of_an_idle_gpu_may_train_for_five_minutes_as_after_a_reset() -> None:
    host = all_links_lost(processes=())
    host.run(290)
    assert host.codes == []
    host.run(20)
    assert set(host.codes) == {"nvlink_down"}


@pytest.mark.parametrize("uptime", [200.0, 400.0, 10_000.0])
def test_a_process_that_comes_while_the_links_train_shortens_nothing(uptime: float) -> None:
    """A fabric manager may come up four minutes after its driver, and a job in between."""
    host = all_links_lost(processes=(), uptime=uptime)
    host.run(120)
    put(host, 2, processes=JOB)
    host.run(150)
    assert host.codes == []
    host.run(50)
    assert set(host.codes) == {"nvlink_down"}


@pytest.mark.parametrize("uptime", [200.0, 10_000.0])
def test_links_that_are_down_when_the_driver_comes_have_their_time_under_a_process(uptime: float) -> None:
    host = Host(8, uptime=uptime)
    host.run(60)
    board = host.gpus.pop(2)
    host.run(20)
    host.gpus[2] = replace(board, links=INACTIVE, processes=JOB)
    host.run(150)
    assert "nvlink_down" not in host.codes
    host.run(160)
    assert "nvlink_down" in host.codes


def test_after_a_boot_links_have_their_time_whoever_has_the_gpu() -> None:
    host = all_links_lost(processes=JOB, uptime=60.0)
    host.run(150)
    assert host.codes == []


# --- links that the driver lists no more


def pair_or_more(count: int) -> Host:
    """A booted machine whose GPUs had all of their links before the boot."""
    host = Host(count)
    host.run(60)
    host.reboot()
    return host


@pytest.mark.parametrize("missing", [1, 18], ids=["one", "all"])
def test_links_that_the_driver_lists_no_more_after_a_boot_fail_beside_siblings_with_theirs(missing: int) -> None:
    """An H100 whose links found no partner answers "not supported" for each of them (measured)."""
    host = pair_or_more(8)
    put(host, 2, links=host.gpus[2].links[missing:])
    host.run(700)
    assert set(host.codes) == {"nvlink_down"}
    assert len(host.codes) == missing
    assert host.health is Health.FAILURE


def test_links_that_no_gpu_lists_warn_until_they_are_accepted_since_nvlink_may_be_off_on_purpose() -> None:
    host = pair_or_more(2)
    for index in (0, 1):
        put(host, index, links=())
    host.run(700)
    assert (set(host.codes), host.health) == ({"nvlink_down"}, Health.WARNING)
    host.accept()
    host.run(120)
    assert host.codes == []


def test_links_that_were_down_stay_a_failure_when_no_gpu_lists_them_after_the_next_boot() -> None:
    host = Host(2)
    host.run(60)
    for index in (0, 1):
        put(host, index, links=INACTIVE)
    host.run(400)
    assert host.health is Health.FAILURE
    host.reboot()
    for index in (0, 1):
        put(host, index, links=())
    host.run(700)
    assert host.health is Health.FAILURE


def test_links_that_are_listed_again_are_missed_no_more() -> None:
    host = pair_or_more(8)
    links = host.gpus[2].links
    put(host, 2, links=())
    host.run(700)
    put(host, 2, links=links)
    host.run(70)
    assert host.codes == []


# --- errors all the time


def with_errors(host: Host, seconds: float, *, per_second: float, every: float = 60.0) -> None:
    """The counters as NVML gives them, once a minute."""
    start = host.uptime
    while host.uptime < start + seconds:
        grown = round(per_second * every)
        value = (host.gpus[5].readings.nvlink_recovery_errors or 0) + grown
        host.change(5, nvlink_recovery_errors=value)
        host.run(every, every=min(every, 15.0))


def test_twenty_recoveries_a_second_are_a_failure_within_a_quarter_of_an_hour() -> None:
    host = Host(8)
    host.run(60)
    with_errors(host, 120, per_second=20)
    assert [(f.key.code, f.severity) for f in host.findings] == [("nvlink_errors", "warning")]
    with_errors(host, 780, per_second=20)
    assert [(f.key.code, f.severity) for f in host.findings] == [("nvlink_errors", "failure")]
    assert CONDITIONS["nvlink_errors"].jobs_go_on, "the node is taken out after its jobs"
    host.run(1500, every=30)
    assert host.health is Health.HEALTHY


@pytest.mark.parametrize(("per_second", "seconds"), first_quick(1, [(0.05, 7200), (4.0, 3600), (200.0, 240)]))
def test_fewer_or_shorter_ones_warn(per_second: float, seconds: float) -> None:
    host = Host(8)
    host.run(60)
    with_errors(host, seconds, per_second=per_second)
    with_errors(host, 1200, per_second=0.0)
    raised = [event.data["severity"] for event in host.ledger if event.kind == "raised"]
    assert raised == ["warning"]


@pytest.mark.parametrize("driver_sums", [0, None])
def test_on_hopper_the_counters_of_the_links_count_since_the_drivers_sums_stay_0(driver_sums: int | None) -> None:
    host = Host(8)
    sums = {"nvlink_replay_errors": driver_sums, "nvlink_recovery_errors": driver_sums}
    host.change(5, **sums, nvlink_dl_replay_errors=700, nvlink_dl_recovery_errors=0)
    host.run(60)
    assert host.codes == [], "what was counted before is no growth"
    for minute in range(1, 15):
        host.change(5, nvlink_dl_replay_errors=700 + 1200 * minute)
        host.run(60, every=15)
    assert [(f.key.code, f.severity) for f in host.findings] == [("nvlink_errors", "failure")]
    assert host.findings[0].evidence["replay_errors"] == 12_000


def test_errors_that_the_driver_and_the_links_count_are_counted_once() -> None:
    host = Host(8)
    host.change(5, nvlink_dl_recovery_errors=0)
    host.run(60)
    host.change(5, nvlink_recovery_errors=9, nvlink_dl_recovery_errors=9)
    host.run(300, every=15)
    assert host.codes == []


def test_one_large_step_of_a_counter_is_no_failure() -> None:
    host = Host(8)
    host.run(900, every=15)
    host.change(5, nvlink_recovery_errors=1_000_000)
    host.run(900, every=15)
    assert [event.data["severity"] for event in host.ledger if event.kind == "raised"] == ["warning"]


# --- health in the fabric


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"fabric_health_mask": 0x1A9, "fabric_health_summary": 3}, "bandwidth degraded"),
        ({"fabric_health_mask": 0x1A6}, "route recovery"),
        ({"fabric_health_mask": 0x1A5}, "bandwidth degraded, route recovery"),
        ({"fabric_health_summary": 3}, "limited capacity, for a reason that the health mask does not name"),
    ],
)
def test_what_the_driver_calls_limited_capacity_warns(changes: dict[str, int], why: str) -> None:
    host = Host(4)
    for n in host.gpus:
        host.change(n, **changes)
    host.run(3600, every=15)
    assert {(str(f.key).partition("@")[0], f.severity, f.evidence["why"]) for f in host.findings} == {
        ("fabric_unhealthy.limited_capacity", "warning", why)
    }
    for n in host.gpus:
        host.change(n, fabric_health_mask=0x1AA, fabric_health_summary=1)
    host.run(60)
    assert host.health is Health.HEALTHY


@pytest.mark.parametrize(
    ("mask", "why"),
    [
        (0x19A, "route unhealthy"),
        (0x16A, "access timeout"),
        (0x5AA, "wrong configuration: too few NVLinks"),
        (0xFAA, "wrong configuration: 15"),
        (0x21AA, "no partition is assigned"),
    ],
)
def test_what_the_driver_calls_unhealthy_fails_and_is_named(mask: int, why: str) -> None:
    host = Host(4)
    host.change(3, fabric_health_mask=mask, fabric_health_summary=2)
    host.run(70)
    [finding] = host.findings
    assert (finding.key.code, finding.severity, finding.evidence["why"]) == ("fabric_unhealthy", "failure", why)


@pytest.mark.parametrize(("mask", "codes"), [(0x81AA, {"fabric_unhealthy.no_manager"}), (0x41AA, set())])
def test_a_fabric_manager_that_stays_disconnected_warns(mask: int, codes: set[str]) -> None:
    host = Host(4)
    for n in host.gpus:
        host.change(n, fabric_health_mask=mask, fabric_health_summary=1)
    host.run(290)
    assert host.codes == [], "a restart of the manager takes minutes"
    host.run(20)
    assert {str(f.key).partition("@")[0] for f in host.findings} == codes
    assert {f.severity for f in host.findings} <= {"warning"}


def test_a_gpu_of_limited_capacity_does_not_fail_for_a_fault_of_one_pass() -> None:
    host = Host(4)
    host.change(3, fabric_health_mask=0x1A9)
    host.run(600)
    host.change(3, fabric_health_mask=0x199)
    host.run(30)
    host.change(3, fabric_health_mask=0x1A9)
    host.run(120)
    assert [event.kind for event in host.ledger if event.key and event.data.get("severity") == "failure"] == ["rising"]
    host.change(3, fabric_health_mask=0x199)
    host.run(70)
    assert {str(f.key).partition("@")[0]: f.severity for f in host.findings} == {
        "fabric_unhealthy": "failure",
        "fabric_unhealthy.limited_capacity": "warning",
    }
