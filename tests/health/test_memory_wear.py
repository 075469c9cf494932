"""Memory that wears out: what takes a node out after its jobs, what only warns, and what is nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gpuwarden.health.gpu.remaps import KEPT
from gpuwarden.health.model import Advice, EventKind, Health, Key, Severity, gpu
from gpuwarden.health.view import CheckRule, Rules
from gpuwarden_collectors.event_facts import GpuResetEvent
from support.hosts import Host, slot
from support.quick import first_quick

DAY = 86_400.0
DEGRADING = f"memory_degrading@gpu/{slot(3)}"


def errors(host: Host, per_second: float, seconds: float, *, every: float = 15.0) -> None:
    """GPU 3 corrects so many errors for so long."""
    for _ in range(int(seconds / every)):
        counted = host.gpus[3].readings.ecc_corrected_volatile or 0
        host.change(3, ecc_corrected_volatile=counted + round(per_second * every))
        host.later(every)


def remapped(host: Host, count: int) -> None:
    host.change(3, remapped_rows_correctable=count)
    host.step()


def degrading(host: Host) -> list[str]:
    return [str(f.key) for f in host.findings if f.key.code == "memory_degrading"]


def degraded() -> Host:
    host = Host(8)
    host.step()
    errors(host, 17_700, 1500)
    assert degrading(host) == [DEGRADING]
    return host


def test_a_million_corrected_errors_an_hour_take_the_node_out_within_two_windows() -> None:
    host = Host(8)
    host.step()
    errors(host, 300, 1100)
    assert degrading(host) == []
    errors(host, 300, 300)
    finding = next(f for f in host.findings if f.key.code == "memory_degrading")
    assert (finding.severity, finding.advice) == (Severity.FAILURE, Advice.CONTACT_SUPPORT)
    assert int(str(finding.evidence["corrected"])) >= 300_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "then",
    [
        pytest.param(lambda host: None, id="idle"),
        pytest.param(lambda host: host.step(GpuResetEvent(at=host.now, slot=slot(3), ok=True)), id="reset"),
        pytest.param(Host.reboot, id="reboot"),
        pytest.param(Host.restart_daemon, id="restart"),
        pytest.param(Host.checkpointed, id="checkpoint"),
    ],
)
def test_degraded_memory_stays_so_while_it_is_idle_and_over_whatever_begins_the_counters_again(
    then: Callable[[Host], object],
) -> None:
    host = degraded()
    host.run(300)
    then(host)
    host.change(3, ecc_corrected_volatile=0)
    host.run(3 * DAY, every=600)
    assert degrading(host) == [DEGRADING]
    assert host.health is Health.FAILURE
    host.acknowledge(DEGRADING)
    host.run(3 * DAY, every=600)
    assert degrading(host) == []


def test_another_board_ends_it() -> None:
    host = degraded()
    host.gpus[3] = replace(host.gpus[3], uuid="GPU-another", serial="2")
    host.change(3, ecc_corrected_volatile=0)
    host.run(60)
    assert degrading(host) == []


@pytest.mark.slow
def test_a_site_may_have_it_as_a_warning_which_ends_by_itself() -> None:
    host = Host(8, rules=Rules(checks={"memory_degrading": CheckRule(severity=Severity.WARNING)}))
    host.step()
    errors(host, 17_700, 1500)
    assert host.health is Health.WARNING
    host.run(3 * 3600, every=15)
    assert degrading(host) == []


@pytest.mark.slow
def test_one_window_full_of_errors_is_no_wear() -> None:
    host = Host(8)
    host.step()
    errors(host, 5_000, 840)
    host.run(3 * 3600, every=15)
    assert degrading(host) == []


@pytest.mark.slow
def test_a_counter_that_jumps_is_no_wear() -> None:
    host = Host(8)
    host.step()
    for value in (9_600_000_000, 5, 2**32 - 1, 0, 2**63, 17) * 40:
        host.change(3, ecc_corrected_volatile=value)
        host.run(30, every=15)
        assert degrading(host) == []


def test_a_counter_that_is_stuck_at_its_maximum_is_no_wear() -> None:
    host = Host(8)
    host.change(3, ecc_corrected_volatile=2**64 - 1, remapped_rows_correctable=2**31)
    host.run(2 * 3600, every=15)
    assert [f.key.code for f in host.findings] == ["row_remaps_many"]


# --- remapped rows


@pytest.mark.slow
@pytest.mark.parametrize("count", [8, 12, 254])
def test_rows_that_were_remapped_before_the_upgrade_warn_and_take_no_node_out(count: int) -> None:
    host = Host(8)
    host.run(60)
    host.ledger = [
        e for e in host.ledger if e.key is None or e.key.subject.kind != "board"
    ]  # by a version that kept none
    remapped(host, count)
    host.restart_daemon()
    errors(host, 1.0, 7200)
    assert {f.key.code: f.severity for f in host.findings} == {
        "row_remaps_many": Severity.WARNING, "ecc_correctable_rate": Severity.WARNING,
    }  # fmt: skip
    host.run(8 * DAY, every=600)
    assert [f.key.code for f in host.findings] == ["row_remaps_many"]


@pytest.mark.parametrize(
    "between", first_quick(2, [lambda host: None, Host.restart_daemon, Host.checkpointed, Host.reboot])
)
def test_two_new_rows_within_a_week_while_errors_go_on_take_the_node_out(between: Callable[[Host], object]) -> None:
    host = Host(8)
    remapped(host, 1)
    host.days(2)
    remapped(host, 2)
    between(host)
    host.days(3)
    remapped(host, 3)
    errors(host, 0.4, 2000)
    assert degrading(host) == []
    errors(host, 0.4, 2000)
    assert degrading(host) == [DEGRADING]
    finding = next(f for f in host.findings if f.key.code == "memory_degrading")
    assert finding.evidence["rows_remapped_in_7_days"] == 2


@pytest.mark.slow
def test_new_rows_without_errors_and_rows_of_other_weeks_are_none() -> None:
    host = Host(8)
    remapped(host, 1)
    remapped(host, 3)
    host.run(3600, every=15)
    assert degrading(host) == []
    for count in (4, 5, 6):
        host.days(8)
        remapped(host, count)
        errors(host, 1.0, 3000)
        assert degrading(host) == []


@pytest.mark.slow
def test_a_count_that_falls_back_for_a_while_makes_no_new_rows() -> None:
    host = Host(8)
    remapped(host, 6)
    for count in (0, 6) * 5:
        remapped(host, count)
        errors(host, 1.0, 1800)
    assert degrading(host) == []


@pytest.mark.slow
def test_a_count_that_never_rests_neither_floods_the_ledger_nor_memory() -> None:
    host = Host(1)
    for n in range(3000):
        host.change(0, remapped_rows_correctable=n)
        host.later(15)
    learned = [e for e in host.ledger if e.kind == EventKind.HOST_LEARNED]
    assert 70 <= len(learned) <= 3000 * 15 / 600 + 2
    assert [len(counts) for counts in host.state.remaps.values()] == [KEPT]


def test_banks_that_run_out_of_spare_rows_warn_and_a_used_one_does_not() -> None:
    host = Host(2)
    host.change(0, remap_banks_max=511, remap_banks_high=1)
    host.run(60)
    assert host.health is Health.HEALTHY
    host.change(0, remap_banks_low=1)
    host.run(60)
    assert host.codes == ["row_remaps_many"]


# --- what waits for a repair


def pending_for(host: Host, days: int) -> None:
    host.change(2, remapped_rows_pending=1)
    host.run(days * DAY, every=3600)


def test_a_row_that_is_pending_for_a_week_takes_the_node_out_until_the_reset() -> None:
    host = Host(8)
    pending_for(host, 6)
    host.restart_daemon()
    host.run(600)
    assert host.codes == ["row_remap_pending"]
    host.run(1 * DAY, every=3600)
    assert host.health is Health.FAILURE
    assert {f.key.code: f.advice for f in host.findings}["row_remap_overdue"] is Advice.RESET_GPU
    host.change(2, remapped_rows_pending=0)
    host.run(60)
    assert not host.findings


@pytest.mark.slow
def test_a_row_that_was_pending_for_a_month_before_the_upgrade_has_a_week_more() -> None:
    host = Host(8)
    pending_for(host, 30)
    host.ledger = [e for e in host.ledger if e.key is None or e.key.code != "row_remap_overdue"]
    host.restart_daemon()
    host.run(6 * DAY, every=3600)
    assert (host.codes, host.health) == (["row_remap_pending"], Health.WARNING)


@pytest.mark.parametrize(
    ("reading", "expected", "advice"),
    [
        ({"repair_channel_pending": 1, "repair_tpc_pending": 0}, "warning gpu_repair_pending.channel", Advice.REBOOT),
        ({"repair_channel_pending": 0, "repair_tpc_pending": 1}, "warning gpu_repair_pending.tpc", Advice.REBOOT),
        ({"memory_unrepairable": 1}, "failure memory_unrepairable", Advice.CONTACT_SUPPORT),
        ({"sram_threshold_exceeded": 1}, "failure sram_threshold", Advice.CONTACT_SUPPORT),
    ],
)
def test_what_the_driver_says_of_repairs_is_judged_as_the_vendor_does(
    reading: dict[str, int], expected: str, advice: Advice
) -> None:
    host = Host(8)
    host.change(5, **dict.fromkeys(reading, 0))
    host.run(60)
    assert host.health is Health.HEALTHY
    host.change(5, **reading)
    host.run(60)
    severity, _, name = expected.partition(" ")
    code, _, detail = name.partition(".")
    assert [(f.key, f.severity, f.advice) for f in host.findings] == [
        (Key(code, gpu(slot(5)), detail), severity, advice)
    ]
