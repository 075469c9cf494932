"""What is advised when a failure comes back after it was treated: reset, then reboot, then a person. For each board by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gpuwarden.health.model import Advice, Severity
from gpuwarden_collectors.event_facts import GpuResetEvent, Source
from gpuwarden_collectors.facts import GpuAnswer
from support.hosts import Host, slot
from support.quick import first_quick


def reset(host: Host, index: int) -> None:
    host.step(GpuResetEvent(at=host.now, slot=slot(index), ok=True), collect=False)
    host.uptime += 5
    host.run(10)


def reboot(host: Host) -> None:
    host.reboot()
    host.run(20)


def fails(host: Host, index: int, number: int = 95) -> Advice:
    """Xid `number` on that GPU; what is advised for it."""
    host.run(60)
    host.step(host.xid(index, number))
    host.run(70)
    (finding,) = (f for f in host.findings if f.key.subject.slot == slot(index))
    return finding.advice


def failed(host: Host) -> Host:
    host.step()
    assert fails(host, 3) is Advice.RESET_GPU
    return host


def restarts(host: Host) -> None:
    host.restart_daemon()
    host.run(5)


def restarts_from_a_checkpoint(host: Host) -> None:
    host.checkpointed()
    host.run(5)


@pytest.mark.parametrize("between", [lambda _: None, restarts, restarts_from_a_checkpoint])
def test_what_comes_back_after_a_reset_needs_a_reboot_and_after_that_a_person(between: Callable[[Host], None]) -> None:
    host = failed(Host(8))
    between(host)
    reset(host, 3)
    between(host)
    assert host.codes == []
    assert fails(host, 3) is Advice.REBOOT
    assert host.findings[0].evidence["came_back_after"] == "a GPU reset"
    between(host)
    reboot(host)
    between(host)
    assert host.codes == []
    assert fails(host, 3) is Advice.INSPECT_HARDWARE
    assert host.findings[0].evidence["came_back_after"] == "a reboot"


def test_the_repair_of_one_gpu_is_independent_of_another_gpu_and_another_failure() -> None:
    host = failed(Host(8))
    reboot(host)
    assert fails(host, 5) is Advice.RESET_GPU
    reset(host, 5)
    assert fails(host, 3, 62) is Advice.RESET_GPU


def test_a_reset_of_another_gpu_is_no_treatment_of_the_one_that_fails() -> None:
    host = failed(Host(8))
    reset(host, 7)
    host.acknowledge(f"xid.95@gpu/{slot(3)}")
    assert fails(host, 3) is Advice.RESET_GPU


def test_a_reset_that_did_not_help_is_followed_by_the_advice_to_reboot() -> None:
    host = Host(8)
    host.change(3, ecc_uncorrected_volatile=1)
    host.run(20)
    host.step(GpuResetEvent(at=host.now, slot=slot(3), ok=True), collect=False)
    assert host.findings[0].advice is Advice.RESET_GPU  # nothing was read yet
    host.uptime += 5
    host.run(90)
    assert [(f.key.code, f.advice) for f in host.findings] == [("ecc_uncorrectable", Advice.REBOOT)]


def test_resets_and_reboots_while_nothing_is_wrong_treat_nothing() -> None:
    host = Host(8)
    for _ in range(5):
        for index in range(8):  # an epilog
            reset(host, index)
        reboot(host)
    assert fails(host, 3) is Advice.RESET_GPU


def test_a_repair_of_last_week_is_forgotten_for_a_new_failure_but_not_for_one_in_force() -> None:
    host = failed(Host(8))
    reset(host, 3)
    host.days(8)
    assert fails(host, 3) is Advice.RESET_GPU
    reset(host, 3)
    assert fails(host, 3) is Advice.REBOOT
    host.days(8)
    host.run(60)
    host.step(host.xid(3, 95))
    assert host.findings[0].advice is Advice.REBOOT


def test_a_replaced_board_has_no_repair_history() -> None:
    host = failed(Host(8))
    reset(host, 3)
    assert fails(host, 3) is Advice.REBOOT
    host.reboot()
    host.gpus[3] = replace(host.gpus[3], uuid="GPU-new")
    host.run(30)
    assert fails(host, 3) is Advice.RESET_GPU


def test_a_board_that_was_pinned_before_it_gave_its_uuid_keeps_what_was_done_to_it() -> None:
    host = Host(8)
    uuid = host.gpus[3].uuid
    host.gpus[3] = replace(host.gpus[3], uuid="")
    failed(host)
    reset(host, 3)
    host.gpus[3] = replace(host.gpus[3], uuid=uuid)
    host.run(5)
    assert host.last is not None
    assert {row.what: row.days for row in host.last.verdict.lemons if row.slot}["resets"] == 1
    assert fails(host, 3) is Advice.REBOOT


def test_what_needs_a_person_from_the_start_stays_so() -> None:
    host = Host(8)
    host.change(3, remapped_rows_failure=1)
    host.run(20)
    reboot(host)
    host.run(120)
    assert [f.advice for f in host.findings] == [Advice.CONTACT_SUPPORT]


# --- resets that no line reports

WORN = {"energy_mj": 9_000_000, "pcie_replays": 3, "violation_power_ns": 700}
FRESH = {"energy_mj": 40_000, "pcie_replays": 0, "violation_power_ns": 0}


def latched(host: Host) -> Host:
    host.change(3, **WORN)
    return failed(host)


def away(host: Host, seconds: float = 10) -> None:
    gone = host.gpus.pop(3)
    host.run(seconds)
    host.gpus[3] = gone


@pytest.mark.parametrize("cut", [False, True])
def test_a_gpu_that_was_away_and_whose_counters_all_restarted_was_reset(*, cut: bool) -> None:
    host = latched(Host(8))
    away(host)
    if cut:
        host.checkpointed()
    host.change(3, **FRESH)
    host.run(20)
    assert host.codes == []
    assert fails(host, 3) is Advice.REBOOT


def test_counters_that_restart_without_the_gpu_having_been_away_are_no_reset() -> None:
    host = latched(Host(8))
    host.change(3, **FRESH)
    host.run(60)
    assert host.codes == ["xid"]


def test_a_gpu_that_was_away_and_went_on_counting_was_not_reset() -> None:
    host = latched(Host(8))
    away(host)
    host.change(3, **{**FRESH, "energy_mj": WORN["energy_mj"] + 5})
    host.run(60)
    assert host.codes == ["xid"]


def test_a_driver_reload_is_no_reset_of_one_gpu() -> None:
    host = latched(Host(8))
    gpus, host.gpus = host.gpus, {}
    host.run(60)
    host.gpus = gpus
    host.change(3, **FRESH)
    host.run(60)
    assert host.codes == ["xid"]


@pytest.mark.parametrize("how", ["answer", "recovery_action"])
def test_a_reset_that_the_driver_asked_for_and_asks_for_no_more_was_made(how: str) -> None:
    host = failed(Host(8))
    if how == "answer":
        host.answer(3, GpuAnswer.RESET_REQUIRED)
    else:
        host.change(3, recovery_action=1)
    host.run(20)
    assert len(host.codes) == 2
    host.answer(3, GpuAnswer.OK)
    host.change(3, recovery_action=0)
    host.run(30)
    assert host.codes == []


def test_an_xid_after_the_first_pass_without_a_demand_for_a_reset_stays() -> None:
    host = failed(Host(8))
    host.change(3, recovery_action=1)
    host.run(20)
    host.change(3, recovery_action=0)
    host.run(5)
    host.uptime += 2
    host.step(host.xid(3, 95), collect=False)
    host.restart_daemon()
    host.run(60)
    assert host.codes == ["xid"]


def test_an_xid_right_after_a_reset_that_only_the_counters_show_stays() -> None:
    host = latched(Host(8))
    gone = host.gpus.pop(3)
    host.run(10)
    host.gpus[3] = gone
    host.uptime += 2
    host.step(host.xid(3, 95), collect=False)
    host.change(3, **FRESH)
    host.run(60)
    assert host.codes == ["xid"]


def test_a_demand_that_a_reboot_ended_is_no_reset_after_it() -> None:
    host = failed(Host(8))
    host.change(3, recovery_action=1)
    host.run(20)
    host.change(3, recovery_action=0)
    host.reboot()
    host.run(30)
    assert "reset" not in {event.kind for event in host.ledger}
    assert host.codes == []


# --- whatever was done in between: the third of one kind within a day


@pytest.mark.parametrize("between", first_quick(1, [lambda _: None, restarts, restarts_from_a_checkpoint]))
def test_the_third_like_failure_of_a_board_within_a_day_needs_a_person_though_each_reset_ended_it(
    between: Callable[[Host], None],
) -> None:
    host = Host(8)
    host.step()
    advice = []
    for _ in range(4):
        advice.append(fails(host, 3, 48))
        evidence = host.findings[0].evidence
        between(host)
        reset(host, 3)
        assert host.codes == []
        host.uptime += 3 * 3_600.0
        between(host)
    assert advice[2:] == [Advice.INSPECT_HARDWARE] * 2
    assert Advice.INSPECT_HARDWARE not in advice[:2]
    assert evidence["failures_within_a_day"] == 3


RECOVERY = "Xid (PCI:0000:13:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"


def four_lines(host: Host) -> None:
    """The sequence of a memory that fails: a double-bit error, its channel, the contained error, what the board says of it."""
    for number in (48, 63, 94):
        host.step(host.xid(3, number))
        host.uptime += 1
    host.step(replace(host.xid(3, 154), text=RECOVERY))
    host.run(70)


def failures(host: Host) -> dict[str, Advice]:
    return {str(finding.key): finding.advice for finding in host.findings if finding.severity is Severity.FAILURE}


@pytest.mark.parametrize("between", [lambda _: None, restarts, restarts_from_a_checkpoint])
def test_48_63_94_and_154_four_times_in_twelve_hours_need_a_person_from_the_third_on(
    between: Callable[[Host], None],
) -> None:
    host = Host(8)
    host.run(60)
    persons = []
    for _ in range(4):
        four_lines(host)
        assert f"xid.48@gpu/{slot(3)}" in failures(host)
        persons.append(Advice.INSPECT_HARDWARE in failures(host).values())
        between(host)
        reset(host, 3)
        assert failures(host) == {}
        host.uptime += 3 * 3_600.0
        host.run(60)
    assert persons == [False, False, True, True]


@pytest.mark.parametrize("start", first_quick(2, [lambda _: None, Host.restart_daemon, Host.checkpointed]))
@pytest.mark.parametrize("source", [Source.NVML, Source.KERNEL_LOG])
def test_79_four_times_a_day_with_a_boot_after_each_needs_a_person(
    source: Source, start: Callable[[Host], None]
) -> None:
    """The GPU that is lost needs one anyway; the Xid does by itself, too, from the second on."""
    host = Host(8)
    host.run(60)
    advice = []
    for _ in range(4):
        host.answer(3, GpuAnswer.LOST)
        host.step(host.xid(3, 79, source=source))
        host.run(120)
        advice += [finding.advice for finding in host.findings if finding.key.code == "xid"]
        host.answer(3, GpuAnswer.OK)
        host.reboot()
        start(host)
        host.run(60)
        assert host.codes == []
        host.uptime += 6 * 3_600.0
        host.run(60)
    assert advice == [Advice.REBOOT, *[Advice.INSPECT_HARDWARE] * 3]


@pytest.mark.parametrize("cure", [lambda host: reset(host, 3), reboot])
def test_one_failure_that_a_reset_or_a_reboot_cured_stays_cured(cure: Callable[[Host], None]) -> None:
    host = failed(Host(8))
    cure(host)
    for _ in range(3):
        assert host.codes == []
        restarts_from_a_checkpoint(host)
        host.uptime += 8 * 3_600.0
        host.run(60)
    assert host.codes == []


def test_the_third_of_one_kind_counts_after_resets_alone_and_one_of_another_kind_or_board_does_not() -> None:
    host = Host(8)
    host.step()
    assert [fails(host, 3, 95)] == [Advice.RESET_GPU]
    reset(host, 3)
    assert fails(host, 3, 62) is not Advice.INSPECT_HARDWARE
    reset(host, 3)
    assert fails(host, 5, 95) is Advice.RESET_GPU
    reset(host, 5)
    assert fails(host, 3, 95) is Advice.REBOOT
    reset(host, 3)
    assert fails(host, 3, 95) is Advice.INSPECT_HARDWARE


def test_failures_of_yesterday_do_not_count() -> None:
    host = Host(8)
    host.step()
    for _ in range(4):
        assert fails(host, 3) is not Advice.INSPECT_HARDWARE
        reset(host, 3)
        host.days(1)


def test_one_failure_that_lasts_over_restarts_is_one() -> None:
    host = failed(Host(8))
    for _ in range(4):
        restarts(host)
        host.run(30)
    assert host.findings[0].advice is Advice.RESET_GPU
