"""The judge's findings about a host, pass by pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from gpuwarden.health.conditions import CONDITIONS
from gpuwarden.health.detectors import DETECTORS
from gpuwarden.health.inventory import accept
from gpuwarden.health.model import Advice, EventKind, Health, Key, Severity, gpu
from gpuwarden.health.records import PROCESSES_MOST
from gpuwarden.health.state import fold
from gpuwarden.health.view import Rules, Sight
from gpuwarden_collectors.base import PassOutcome
from gpuwarden_collectors.event_facts import GpuResetEvent, LogGap, Source, SxidEvent
from gpuwarden_collectors.facts import CallError, GpuAnswer, GpuFacts, LinkFacts, NvmlFacts, NvmlProblem
from support.hosts import Host, slot
from support.quick import first_quick

TIMED_OUT = PassOutcome.TIMED_OUT


def test_every_condition_has_a_detector_and_depends_only_on_conditions_that_exist() -> None:
    assert DETECTORS.keys() == CONDITIONS.keys()
    assert {cause for row in CONDITIONS.values() for cause in row.depends_on} <= CONDITIONS.keys()


def test_a_healthy_host_is_healthy_and_its_gpus_are_learned() -> None:
    host = Host(8)
    host.step()
    assert host.health is Health.HEALTHY
    assert host.last is not None
    assert (host.last.verdict.expected, host.last.verdict.expected_from, host.last.verdict.present) == (8, "learned", 8)
    assert all(g.health is Health.HEALTHY for g in host.last.verdict.gpus)


def test_nothing_seen_yet_is_unknown_not_healthy() -> None:
    host = Host(8)
    host.step(collect=False)
    assert host.health is Health.UNKNOWN
    assert host.last is not None
    assert host.last.verdict.unknown == ("starting",)


@pytest.mark.parametrize(("silent", "seconds"), [(20, 0), (2, 20)], ids=["long deadlines", "short deadlines"])
def test_a_gpu_at_which_the_driver_hangs_fails_after_as_long_a_silence_as_the_whole_driver(
    silent: int, seconds: int
) -> None:
    host = Host(8)
    host.step()
    hung = CallError(call="nvmlDeviceGetFieldValues", code=0, text=f"no answer for {silent} s")
    host.gpus[3] = replace(host.gpus[3], answer=GpuAnswer.HUNG, silent=silent, errors=(hung,))
    begun = host.uptime
    while host.uptime - begun < seconds:
        host.uptime += 4
        host.step()
        assert host.health is not Health.FAILURE or host.uptime - begun >= seconds
    host.uptime += 4
    host.step()
    assert (host.health, host.codes) == (Health.FAILURE, ["gpu_unresponsive"])


@pytest.mark.parametrize("numbers", [(3,), (3, 5)])
def test_gpus_that_hang_before_they_tell_their_address_are_those_that_the_bus_has_and_nvml_does_not_name(
    numbers: tuple[int, ...],
) -> None:
    """The daemon started while the driver hung at the handles of these GPUs."""
    host = Host(8)
    host.step()
    hung = CallError(call="nvmlDeviceGetHandleByIndex", code=0, text="no answer for 20 s")
    for n in numbers:
        host.gpus[n] = GpuFacts(slot="", index=n, answer=GpuAnswer.HUNG, silent=20, errors=(hung,))
    host.run(120)
    assert [str(f.key) for f in host.findings] == [f"gpu_unresponsive@gpu/{slot(n)}" for n in numbers]
    assert host.last is not None
    assert host.last.verdict.unknown == ()


def test_a_gpu_that_hangs_without_an_address_hides_none_that_left_the_bus() -> None:
    host = Host(8)
    host.step()
    hung = CallError(call="nvmlDeviceGetHandleByIndex", code=0, text="no answer for 20 s")
    host.gpus[3] = GpuFacts(slot="", index=3, answer=GpuAnswer.HUNG, silent=20, errors=(hung,))
    del host.gpus[5], host.devices[5]
    host.run(120)
    assert {str(f.key) for f in host.findings} == {f"gpu_unresponsive@gpu/{slot(3)}", f"gpu_missing@gpu/{slot(5)}"}


# --- the inventory


def test_a_gpu_that_leaves_the_bus_is_a_failure_at_once() -> None:
    host = Host(8)
    host.step()
    del host.gpus[3], host.devices[3]
    host.uptime += 5
    host.step()
    assert host.health is Health.FAILURE
    assert [str(f.key) for f in host.findings] == [f"gpu_missing@gpu/{slot(3)}"]


def test_a_missing_gpu_that_nvml_lists_without_its_address_is_not_waited_for() -> None:
    """A reader that starts after the loss gets no handle of it, and so no address."""
    host = Host(8)
    host.step()
    host.devices[3] = replace(host.devices[3], responds=False)
    lost = CallError(call="nvmlDeviceGetHandleByIndex", code=15, text="GPU is lost")
    host.gpus[3] = GpuFacts(slot="", index=3, answer=GpuAnswer.LOST, errors=(lost,))
    host.run(10)
    assert host.last is not None
    assert (host.last.verdict.reasons, host.last.verdict.unknown) == (("gpu_missing",), ())
    host.gpus[5] = GpuFacts(slot="", index=5, answer=GpuAnswer.LOST, errors=(lost,))
    host.step()
    assert host.last.verdict.unknown == ("gpu_not_answering",), "another one is not judged yet"


def test_a_gpu_that_only_the_bus_has_lost_is_missing_once_nvml_has_no_answer_of_it_and_after_two_passes_at_the_latest() -> (
    None
):
    host = Host(8)
    host.step()
    device = host.devices.pop(3)
    host.run(5)
    assert host.codes == []
    host.answer(3, GpuAnswer.LOST)
    host.run(5)
    assert host.codes == ["gpu_missing"]
    other = Host(8)
    other.step()
    other.devices[3] = replace(device, responds=False)
    other.run(5)
    assert other.codes == []
    other.run(10)
    assert other.codes == ["gpu_missing"]


def test_a_bus_that_reads_wrong_once_while_nvml_answers_makes_no_gpu_missing() -> None:
    host = Host(8)
    host.step()
    host.devices[3] = replace(host.devices[3], responds=False)
    host.run(5)
    host.devices[3] = replace(host.devices[3], responds=True)
    host.run(60)
    assert EventKind.RAISED not in {event.kind for event in host.ledger}


def test_a_container_whose_sysfs_has_no_devices_does_not_make_gpus_missing() -> None:
    host = Host(8)
    host.devices.clear()
    host.run(60)
    assert host.health is Health.HEALTHY


def test_a_gpu_whose_configuration_space_reads_all_ones_is_missing_at_once() -> None:
    host = Host(8)
    host.step()
    host.answer(3, GpuAnswer.LOST)
    host.devices[3] = replace(host.devices[3], responds=False)
    host.step()
    assert host.codes == ["gpu_missing"]


def test_a_gpu_that_only_nvml_lost_is_unknown_for_30_s_and_then_missing() -> None:
    host = Host(8)
    host.step()
    del host.gpus[3]
    host.run(25)
    assert (host.health, host.codes) == (Health.UNKNOWN, [])
    host.run(10)
    assert (host.health, host.codes) == (Health.FAILURE, ["gpu_missing"])


def test_a_gpu_reset_that_takes_20_s_is_no_fault() -> None:
    host = Host(8)
    host.step()
    gone = host.gpus.pop(3)
    host.run(20)
    host.gpus[3] = gone
    host.run(60)
    assert host.health is Health.HEALTHY
    assert EventKind.RAISED not in {event.kind for event in host.ledger}


def test_xid_79_makes_the_unlisted_gpu_missing_at_once() -> None:
    host = Host(8)
    host.step()
    del host.gpus[3]
    host.step(host.xid(3, 79))
    assert set(host.codes) == {"gpu_missing", "xid"}


def test_a_gpu_absent_at_start_is_missed_because_it_was_pinned() -> None:
    host = Host(8)
    host.step()
    del host.gpus[3], host.devices[3]
    host.reboot()
    host.restart_daemon()
    host.step()
    assert host.codes == ["gpu_missing"]


def test_all_gpus_gone_from_the_bus_is_every_gpu_missing() -> None:
    host = Host(8)
    host.step()
    host.gpus.clear()
    host.devices.clear()
    host.run(10)
    assert host.codes == ["gpu_missing"] * 8


def test_a_driver_reload_of_90_s_is_unknown_and_leaves_no_finding() -> None:
    host = Host(8)
    host.step()
    gpus, host.gpus = host.gpus, {}
    host.nvml_change = lambda facts: replace(facts, problem=NvmlProblem.DRIVER_NOT_LOADED)
    host.run(90)
    assert (host.health, host.codes) == (Health.UNKNOWN, [])
    host.gpus, host.nvml_change = gpus, lambda facts: facts
    host.run(60)
    assert host.health is Health.HEALTHY


def test_a_driver_that_stays_away_is_one_failure_after_two_minutes_and_not_eight_missing_gpus() -> None:
    host = Host(8)
    host.step()
    host.gpus = {}
    host.nvml_change = lambda facts: replace(facts, problem=NvmlProblem.DRIVER_NOT_LOADED)
    host.run(130)
    assert (host.health, host.codes) == (Health.FAILURE, ["driver_not_loaded"])


def test_a_slow_boot_has_ten_minutes_to_load_the_driver() -> None:
    host = Host(8)
    host.step()
    host.reboot()
    host.uptime = 30.0
    host.gpus = {}
    host.nvml_change = lambda facts: replace(facts, problem=NvmlProblem.DRIVER_NOT_LOADED)
    host.run(560)
    assert (host.health, host.codes) == (Health.UNKNOWN, [])
    host.run(20)
    assert host.codes == ["driver_not_loaded"]


def test_an_upgraded_library_under_a_running_driver_warns_and_blames_no_gpu() -> None:
    host = Host(8)
    host.step()
    host.gpus = {}
    host.nvml_change = lambda facts: replace(facts, problem=NvmlProblem.LIBRARY_MISMATCH)
    host.run(300)
    assert host.codes == ["driver_library_mismatch"]
    assert host.health is Health.UNKNOWN  # the jobs run on, but nothing can be seen
    assert host.findings[0].severity is Severity.WARNING


MISFIT = partial(replace, gpus=(), problem=NvmlProblem.LIBRARY_MISMATCH, problem_code=18)
UNKNOWN_ERROR = partial(replace, gpus=(), problem=NvmlProblem.OTHER, problem_code=999, problem_text="Unknown Error")
NO_MEMORY = partial(replace, gpus=(), problem=NvmlProblem.OTHER, problem_code=20, problem_text="Insufficient Memory")


@pytest.mark.parametrize(("change", "code"), [(MISFIT, "driver_library_mismatch"), (UNKNOWN_ERROR, "nvml_unavailable")])
def test_a_driver_that_serves_nobody_for_ten_minutes_is_a_failure_on_a_host(
    change: Callable[[NvmlFacts], NvmlFacts], code: str
) -> None:
    host = Host(8)
    host.step()
    host.nvml_change = change
    host.run(590)
    assert [(f.key.code, f.severity) for f in host.findings] == [(code, Severity.WARNING)]
    host.run(20)
    assert [(f.key.code, f.severity, f.advice) for f in host.findings] == [(code, Severity.FAILURE, Advice.REBOOT)]
    assert host.health is Health.FAILURE
    host.nvml_change = lambda facts: facts  # the driver was loaded again
    host.run(20)
    assert (host.health, host.codes) == (Health.HEALTHY, [])


@pytest.mark.parametrize(
    ("change", "contained"), first_quick(1, [(MISFIT, True), (UNKNOWN_ERROR, True), (NO_MEMORY, False)])
)
def test_in_a_container_and_for_a_cause_that_passes_it_stays_a_warning(
    change: Callable[[NvmlFacts], NvmlFacts], contained: bool
) -> None:
    host = Host(8, rules=Rules(contained=contained))
    host.step()
    host.nvml_change = change
    host.run(3600)
    assert [f.severity for f in host.findings] == [Severity.WARNING]
    assert host.health is Health.UNKNOWN


def test_a_misfit_that_a_restarted_daemon_finds_again_has_lasted_since_it_was_first_seen() -> None:
    host = Host(8)
    host.step()
    host.nvml_change = MISFIT
    host.run(400)
    host.restart_daemon()
    host.run(220)
    assert [f.severity for f in host.findings] == [Severity.FAILURE]


def test_a_restart_is_no_change_of_health_until_a_pass_has_ended() -> None:
    host = Host(8)
    host.step()
    host.restart_daemon()
    before = len(host.ledger)

    def changes() -> list[tuple[object, object]]:
        new = [event.data for event in host.ledger[before:] if event.kind == EventKind.HEALTH]
        return [(data["from"], data["to"]) for data in new]

    assert host.step(pci=host.pci(), collect=False).verdict.health is Health.UNKNOWN
    assert host.later(3).verdict.health is Health.HEALTHY
    assert changes() == []

    host.restart_daemon()
    host.step(nvml=host.nvml(TIMED_OUT), pci=host.pci(), collect=False)
    assert changes() == [("healthy", "unknown")]
    host.later(3)
    assert changes() == [("healthy", "unknown"), ("unknown", "healthy")]


@pytest.mark.parametrize("named", [True, False])
def test_unknown_errors_of_all_gpus_in_silence_are_the_drivers_and_no_eight_failures(named: bool) -> None:
    """The slots are those of an older pass, or unknown to a new process, which cannot even name the GPUs."""
    host = Host(8)
    host.step()
    for n in range(8):
        host.answer(n, GpuAnswer.UNKNOWN)
        if not named:
            host.gpus[n] = replace(host.gpus[n], slot="", uuid="")
    host.run(300)
    assert [(str(f.key), f.severity) for f in host.findings] == [("nvml_unavailable@node", Severity.WARNING)]
    assert host.health is Health.UNKNOWN
    host.run(320)
    assert [(str(f.key), f.severity) for f in host.findings] == [("nvml_unavailable@node", Severity.FAILURE)]


def test_unknown_errors_of_all_gpus_with_a_line_or_of_all_but_one_are_the_gpus() -> None:
    with_a_line, all_but_one = Host(8), Host(8)
    for host, first in ((with_a_line, 0), (all_but_one, 1)):
        host.step()
        for n in range(first, 8):
            host.answer(n, GpuAnswer.UNKNOWN)
    with_a_line.step(with_a_line.xid(0, 119))
    for host, failing in ((with_a_line, 8), (all_but_one, 7)):
        host.run(60)
        assert host.codes.count("gpu_unresponsive") == failing
        assert host.health is Health.FAILURE


def test_another_board_in_a_pinned_slot_is_a_replacement_and_ends_its_latches() -> None:
    host = Host(8)
    host.step()
    host.step(host.xid(3, 95))
    host.reboot()
    host.gpus[3] = replace(host.gpus[3], uuid="GPU-new")
    host.run(30)
    assert EventKind.GPU_REPLACED in {event.kind for event in host.ledger}
    assert host.health is Health.HEALTHY


def test_a_dead_gpu_that_an_operator_gave_up_is_not_pinned_again() -> None:
    host = Host(8)
    host.step()
    host.answer(3, GpuAnswer.LOST)
    host.devices[3] = replace(host.devices[3], responds=False)
    host.step()
    for event in accept(host.state, Sight.of(host.view, host.rules, host.now)):
        host.state = fold(host.state, event)
    host.run(60)
    assert (host.health, host.codes) == (Health.HEALTHY, [])
    assert host.last is not None
    assert host.last.verdict.expected == 7


def test_a_gpu_given_to_a_virtual_machine_is_not_expected() -> None:
    host = Host(8)
    host.step()
    del host.gpus[3]
    host.devices[3] = replace(host.devices[3], driver="vfio-pci")
    host.run(60)
    assert host.health is Health.HEALTHY
    assert host.last is not None
    assert host.last.verdict.expected == 7


def test_no_gpu_and_none_expected_is_unknown_with_a_reason() -> None:
    host = Host(0)
    host.run(10)
    assert host.last is not None
    assert (host.health, host.last.verdict.unknown) == (Health.UNKNOWN, ("no_gpu_expected",))


def test_zero_gpus_configured_is_healthy_without_a_driver() -> None:
    host = Host(0, rules=Rules(expected_gpus=0))
    host.step(nvml=host.nvml(PassOutcome.ABSENT))
    assert host.health is Health.HEALTHY


def test_fewer_gpus_than_configured_fail_even_if_the_missing_one_was_never_seen() -> None:
    host = Host(7, rules=Rules(expected_gpus=8))
    host.run(40)
    assert [str(f.key) for f in host.findings] == ["gpu_missing@node"]


# --- the driver


def silent(host: Host, seconds: float, missed: int, **worker: object) -> None:
    since = replace(host.now)
    host.uptime += seconds
    host.step(nvml=host.nvml(TIMED_OUT, missed=missed, silent_since=since, ever_answered=True, **worker))


def test_one_missed_deadline_is_no_verdict_about_the_driver() -> None:
    host = Host(8)
    host.step()
    silent(host, 10, 1)
    assert "driver_unresponsive" not in host.codes


def test_two_missed_deadlines_and_20_s_are_a_failure() -> None:
    host = Host(8)
    host.step()
    silent(host, 20, 2)
    assert (host.health, host.codes) == (Health.FAILURE, ["driver_unresponsive"])


def test_with_a_worker_in_d_state_one_deadline_is_enough() -> None:
    host = Host(8)
    host.step()
    silent(host, 10, 1, stuck=True)
    assert host.codes == ["driver_unresponsive"]


@pytest.mark.parametrize("number", [119, 120, 175])
def test_with_an_xid_of_the_system_processor_one_deadline_is_enough(number: int) -> None:
    host = Host(8)
    host.step(host.xid(0, number))
    silent(host, 10, 1)
    assert "driver_unresponsive" in host.codes


def test_a_silent_nvml_is_unknown_before_it_is_a_failure_and_never_clears_what_was_found() -> None:
    host = Host(8)
    host.change(2, remapped_rows_failure=1)
    host.step()
    assert host.codes == ["row_remap_failed"]
    host.change(2, remapped_rows_failure=0)
    host.uptime += 60
    host.step(nvml=host.nvml(PassOutcome.FAILED))
    assert "row_remap_failed" in host.codes


def test_one_sick_gpu_does_not_hide_the_others() -> None:
    host = Host(8)
    host.step()
    host.answer(2, GpuAnswer.TIMEOUT)
    host.change(5, remapped_rows_failure=1)
    host.run(40)
    assert {str(f.key) for f in host.findings} == {f"gpu_unresponsive@gpu/{slot(2)}", f"row_remap_failed@gpu/{slot(5)}"}


# --- time: rise, fall, latch


def test_heat_must_last_two_minutes_and_ends_two_minutes_after() -> None:
    host = Host(8)
    host.step()
    host.change(1, temperature=90)
    host.run(115)
    assert host.codes == []
    host.run(10)
    assert (host.health, host.codes) == (Health.WARNING, ["thermal_limit"])
    host.change(1, temperature=60)
    host.run(110)
    assert host.codes == ["thermal_limit"]
    host.run(20)
    assert host.health is Health.HEALTHY


@pytest.mark.parametrize(
    ("name", "thresholds", "healthy", "hot"),
    [
        ("NVIDIA H100 80GB HBM3", (87, 89), -1, -2),  # measured
        ("NVIDIA B200", (85, 88), -2, -3),
        ("NVIDIA B200", (85, None), -2, -3),  # by the table of boards, as all that follow
        ("NVIDIA B200", (None, 88), -2, -3),
        ("NVIDIA B200", (None, None), -2, -3),
        ("NVIDIA GB200", (None, None), -1, -2),
        ("NVIDIA L40S", (None, None), -1, -2),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", (None, None), 0, -1),  # in no table
        ("NVIDIA GeForce RTX 5090", (93, 90), 0, -1),  # a slowdown below the maximum is none of the board's
    ],
)
def test_the_thermal_margin_counts_from_the_slowdown_offset_of_the_board_on(
    name: str, thresholds: tuple[int | None, int | None], healthy: int, hot: int
) -> None:
    """The offset is that of NVIDIA/NVSentinel ADR-042."""
    host = Host(1)
    host.gpus[0] = replace(host.gpus[0], name=name)
    host.change(0, temperature_gpu_max=thresholds[0], temperature_slowdown=thresholds[1], temperature_margin=healthy)
    host.run(600)
    assert host.health is Health.HEALTHY
    host.change(0, temperature_margin=hot)
    host.run(130)
    assert (host.health, host.codes) == (Health.WARNING, ["thermal_limit"])


@pytest.mark.parametrize(
    ("changes", "health"),
    [
        ({"temperature": 88}, Health.HEALTHY),
        ({"temperature": 89}, Health.WARNING),
        ({"temperature": 88, "temperature_slowdown": None}, Health.HEALTHY),
        ({"temperature": 89, "temperature_slowdown": None}, Health.WARNING),  # 87 and the H100's 2
        ({"temperature": 95}, Health.FAILURE),
        ({"temperature_memory": 95}, Health.WARNING),
    ],
)
def test_the_temperature_itself_counts_where_there_is_no_margin(changes: dict[str, int | None], health: Health) -> None:
    host = Host(1)
    host.change(0, temperature_margin=None, **changes)
    host.run(130)
    assert host.health is health


def test_short_peaks_never_add_up() -> None:
    host = Host(8)
    for _ in range(30):
        host.change(1, temperature=90)
        host.run(20)
        host.change(1, temperature=70)
        host.run(20)
    assert EventKind.RAISED not in {event.kind for event in host.ledger}


@pytest.mark.parametrize(
    ("changes", "code", "health"),
    [
        ({"ecc_uncorrected_volatile": 1}, "ecc_uncorrectable", Health.FAILURE),
        ({"remapped_rows_failure": 1}, "row_remap_failed", Health.FAILURE),
        ({"remapped_rows_pending": 1}, "row_remap_pending", Health.WARNING),
        ({"sram_threshold_exceeded": 1}, "sram_threshold", Health.FAILURE),
        ({"retired_pages_pending": 1}, "retired_pages", Health.WARNING),
        ({"retired_pages_double_bit": 63}, "retired_pages", Health.FAILURE),
        ({"inforom_valid": 0}, "inforom_invalid", Health.WARNING),
        ({"recovery_action": 1}, "gpu_recovery_action", Health.FAILURE),
        ({"recovery_action": 3}, "gpu_recovery_action", Health.WARNING),
        ({"recovery_action": 7}, "gpu_recovery_action", Health.FAILURE),
        ({"recovery_action": 99}, "gpu_recovery_action", Health.FAILURE),
        ({"temperature": 95}, "thermal_limit", Health.FAILURE),
    ],
)
def test_definite_reports_of_the_driver_count_within_seconds(
    changes: dict[str, int], code: str, health: Health
) -> None:
    host = Host(8)
    host.step()
    host.change(4, **changes)
    host.run(10)
    assert (host.codes, host.health) == ([code], health)


@pytest.mark.parametrize(
    ("changes", "code", "seconds"),
    [
        ({"pcie_width": 8}, "pcie_link_degraded", 240),
        ({"pcie_generation": 3}, "pcie_link_degraded", 240),
        ({"fabric_state": 2}, "fabric_unhealthy", 300),
        ({"fabric_health_mask": 0x1A9}, "fabric_unhealthy", 60),
        ({"fabric_health_mask": 0x19A}, "fabric_unhealthy", 60),
        ({"fabric_health_mask": 0x1AA, "fabric_health_summary": 2}, "fabric_unhealthy", 60),
        ({"fabric_status": 999}, "fabric_unhealthy", 0),
    ],
)
def test_what_a_retraining_or_restart_explains_must_last(changes: dict[str, int], code: str, seconds: int) -> None:
    host = Host(8)
    host.step()
    host.change(4, **changes)
    if seconds:
        host.run(seconds - 10)
        assert host.codes == []
    host.run(20)
    assert host.codes == [code]


def test_a_lower_pcie_generation_at_idle_is_power_saving() -> None:
    host = Host(8)
    host.change(4, pcie_generation=1, utilization_gpu=0, performance_state=8)
    host.run(600)
    assert host.health is Health.HEALTHY


def test_a_link_that_was_never_up_is_not_down_and_one_that_was_is() -> None:
    host = Host(8)
    links = tuple(LinkFacts(link=n, active=n < 12) for n in range(18))
    host.gpus[0] = replace(host.gpus[0], links=links)
    host.run(120)
    assert host.health is Health.HEALTHY
    host.gpus[0] = replace(host.gpus[0], links=(LinkFacts(link=0, active=False), *links[1:]))
    host.run(70)
    assert [str(f.key) for f in host.findings] == [f"nvlink_down@link/{slot(0)}/0"]


LINKS_DOWN = tuple(LinkFacts(link=n, active=False) for n in range(18))


def lost_links(gpus: int = 2) -> Host:
    """Its first GPU has lost its links."""
    host = Host(gpus)
    host.run(60)
    host.gpus[0] = replace(host.gpus[0], links=LINKS_DOWN)
    host.run(360)
    assert host.codes == ["nvlink_down"] * 18
    return host


@pytest.mark.parametrize("links", [LINKS_DOWN, ()], ids=["inactive", "not supported"])
def test_another_board_in_the_slot_has_no_links_to_miss(links: tuple[LinkFacts, ...]) -> None:
    host = lost_links()
    host.gpus[0] = replace(host.gpus[0], uuid="GPU-another", links=links)
    host.run(120)
    assert host.health is Health.HEALTHY
    host.restart_daemon()
    host.run(400)
    assert host.health is Health.HEALTHY


@pytest.mark.parametrize("links", [LINKS_DOWN, ()], ids=["inactive", "not supported"])
def test_links_that_were_taken_away_on_purpose_can_be_accepted(links: tuple[LinkFacts, ...]) -> None:
    host = lost_links()
    host.gpus[0] = replace(host.gpus[0], links=links)
    host.step()
    host.accept()
    host.run(120)
    assert host.health is Health.HEALTHY
    host.restart_daemon()
    host.run(400)
    assert host.health is Health.HEALTHY
    host.gpus[1] = replace(host.gpus[1], links=LINKS_DOWN)
    host.run(400)
    assert {finding.key.subject.slot for finding in host.findings} == {slot(1)}


def test_links_that_mig_switched_off_stay_expected() -> None:
    host = Host(2)
    host.run(60)
    host.change(0, mig_mode=1)
    host.gpus[0] = replace(host.gpus[0], links=LINKS_DOWN)
    host.run(60)
    host.accept()
    host.change(0, mig_mode=0)
    host.run(400)
    assert host.codes == ["nvlink_down"] * 18


@pytest.mark.parametrize(("uptime", "health"), [(30.0, Health.HEALTHY), (3000.0, Health.FAILURE)])
def test_one_link_may_train_for_five_minutes_after_a_boot_and_for_one_at_other_times(
    uptime: float, health: Health
) -> None:
    host = Host(2)
    host.run(60)
    host.reboot()
    host.uptime = uptime
    host.gpus[0] = replace(host.gpus[0], links=(LINKS_DOWN[0], *host.gpus[0].links[1:]))
    host.run(240)
    assert host.health is health
    host.run(120)
    assert host.health is Health.FAILURE


def test_corrected_errors_warn_by_their_rate_and_a_counter_reset_is_no_burst() -> None:
    host = Host(8)
    host.change(0, ecc_corrected_volatile=5_000_000)
    host.run(60)
    host.change(0, ecc_corrected_volatile=10)
    host.run(60)
    assert host.codes == []
    host.change(0, ecc_corrected_volatile=1_200)
    host.run(10)
    assert host.codes == ["ecc_correctable_rate"]


def test_thermal_slowdown_counts_the_time_the_driver_measured() -> None:
    host = Host(8)
    host.step()
    for second in range(0, 700, 5):
        host.change(0, slowdown_hw_thermal_ns=second * 700_000_000)
        host.run(5)
    assert host.codes == ["thermal_slowdown"]


@pytest.mark.slow
def test_a_restart_does_not_end_a_rate_that_goes_on() -> None:
    host = Host(8)
    host.step()
    for second in range(0, 2000, 5):
        if second == 900:
            assert host.codes == ["thermal_slowdown"]
            host.restart_daemon()
        host.change(0, slowdown_hw_thermal_ns=second * 700_000_000)
        host.run(5)
        assert second < 900 or host.codes == ["thermal_slowdown"], second


# --- Xids


@pytest.mark.slow
def test_an_xid_of_the_failure_class_latches_until_a_reset_that_a_pass_confirms() -> None:
    host = Host(8)
    host.step()
    host.step(host.xid(3, 95))
    host.run(7200)
    assert (host.health, host.findings[0].latched) == (Health.FAILURE, True)
    host.step(GpuResetEvent(at=host.now, slot=slot(3), ok=False), collect=False)
    host.run(10)
    assert host.codes == ["xid"]
    host.step(GpuResetEvent(at=host.now, slot=slot(3), ok=True), collect=False)
    assert host.codes == ["xid"]  # nothing was read since
    host.run(10)
    assert host.health is Health.HEALTHY


def test_a_driver_report_that_no_recovery_is_needed_counts_as_a_reset() -> None:
    host = Host(8)
    host.step(host.xid(3, 95))
    host.run(20)
    text = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
    host.step(replace(host.xid(3, 154), text=text))
    host.run(10)
    assert host.health is Health.HEALTHY


def test_a_line_that_is_read_late_still_counts() -> None:
    host = Host(8)
    host.step()
    late = host.xid(3, 95)
    host.uptime += 3000  # the daemon was away
    host.step(late)
    host.run(20)
    assert host.codes == ["xid"]


def test_a_line_that_is_read_late_does_not_count_if_the_gpu_was_reset_since() -> None:
    host = Host(8)
    host.step()
    late, reset = (
        host.xid(3, 95),
        GpuResetEvent(at=replace(host.now, boottime=host.now.boottime + 60), slot=slot(3), ok=True),
    )
    host.uptime += 3000
    host.step(late, reset)
    host.run(20)
    assert host.health is Health.HEALTHY


def test_a_reset_of_one_gpu_does_not_clear_another() -> None:
    host = Host(8)
    host.step(host.xid(3, 95), host.xid(4, 95))
    host.run(10)
    host.step(GpuResetEvent(at=host.now, slot=slot(3), ok=True))
    host.run(10)
    assert [f.key.subject for f in host.findings] == [gpu(slot(4))]


def test_a_reboot_ends_a_latch() -> None:
    host = Host(8)
    host.step(host.xid(3, 95))
    host.reboot()
    host.run(20)
    assert host.health is Health.HEALTHY


def test_a_restart_of_the_daemon_changes_nothing() -> None:
    host = Host(8)
    host.step(host.xid(3, 95))
    host.change(5, pcie_width=8)
    host.run(300)
    before = [(str(f.key), f.severity, f.first_seen, f.latched) for f in host.findings]
    assert len(before) == 2
    host.restart_daemon()
    host.run(5)
    assert [(str(f.key), f.severity, f.first_seen, f.latched) for f in host.findings] == before


def test_a_rising_condition_goes_on_rising_over_a_restart() -> None:
    host = Host(8)
    host.step()
    host.change(5, pcie_width=8)
    host.run(200)
    host.restart_daemon()
    host.run(50)
    assert host.codes == ["pcie_link_degraded"]


def test_an_acknowledgement_ends_a_latched_finding_for_good() -> None:
    host = Host(8)
    host.step(host.xid(3, 95))
    host.run(20)
    host.acknowledge(f"xid.95@gpu/{slot(3)}")
    host.run(20)
    host.restart_daemon()
    host.run(20)
    assert host.health is Health.HEALTHY


def test_what_is_still_seen_cannot_be_acknowledged_away() -> None:
    host = Host(8)
    host.change(5, remapped_rows_failure=1)
    host.run(20)
    with pytest.raises(ValueError, match="still seen"):
        host.acknowledge(f"row_remap_failed@gpu/{slot(5)}")


def test_user_errors_leave_the_node_healthy_and_are_counted() -> None:
    host = Host(8)
    for number in (13, 31, 43):
        host.step(host.xid(0, number))
    host.run(10)
    assert host.health is Health.HEALTHY
    assert host.state.records[Key("xid", gpu(slot(0)), "31")].count == 1


def test_an_unknown_xid_is_a_warning() -> None:
    host = Host(8)
    host.step(host.xid(0, 1234))
    assert (host.health, host.codes) == (Health.WARNING, ["xid"])


@pytest.mark.slow
def test_a_warning_xid_ends_after_an_hour() -> None:
    host = Host(8)
    host.step(host.xid(0, 94))
    host.run(3500)
    assert host.codes == ["xid"]
    host.run(200)
    assert host.health is Health.HEALTHY


@pytest.mark.parametrize("first", list(Source))
def test_one_xid_from_two_sources_is_one(first: Source) -> None:
    second = Source.NVML if first is Source.KERNEL_LOG else Source.KERNEL_LOG
    host = Host(8)
    host.step(host.xid(0, 48, source=first))
    host.uptime += 2
    host.step(host.xid(0, 48, source=second))
    assert host.state.records[Key("xid", gpu(slot(0)), "48")].count == 1


def test_two_xids_from_two_sources_each_are_two() -> None:
    host = Host(8)
    batch = [host.xid(0, 48, source=source) for source in (*Source, *Source)]
    host.step(*batch)
    assert host.state.records[Key("xid", gpu(slot(0)), "48")].count == 2


def test_a_storm_of_ten_thousand_lines_is_one_finding_with_a_count() -> None:
    host = Host(8)
    host.step()
    for _ in range(100):
        host.step(*[host.xid(0, 95)] * 100, collect=False)
    host.run(10)
    assert [f.count for f in host.findings] == [10_000]
    assert sum(event.kind == EventKind.XID for event in host.ledger) == 100


def test_a_storm_of_any_number_of_processes_is_a_few_events_in_each_step() -> None:
    host = Host(8)
    host.step()
    for _ in range(10):
        host.step(*[replace(host.xid(0, 31), pid=pid) for pid in range(1_000, 1_100)], collect=False)
    assert host.state.records[Key("xid", gpu(slot(0)), "31")].count == 1_000
    assert sum(event.kind == EventKind.XID for event in host.ledger) == 10 * PROCESSES_MOST


def test_garbage_slots_cannot_fill_the_memory_and_hide_no_gpu_of_this_node() -> None:
    host = Host(1)
    host.devices, host.switches = {}, []  # no witness of the slots
    event = host.xid(0, 31)
    host.step(*[replace(event, slot=f"{n:04x}:00:00.0", xid=31) for n in range(10_000)])
    assert len(host.state.records) <= 4096
    host.step(host.xid(0, 95), *[host.xid(0, number) for number in range(10_000, 20_000)])
    assert (host.health, host.codes) == (Health.FAILURE, ["xid"])
    assert len(host.state.records) == 4097


def test_an_old_line_on_the_first_start_needs_a_present_sign() -> None:
    host = Host(8)
    host.step(host.xid(3, 95, history=True))
    host.run(20)
    assert host.health is Health.HEALTHY
    sick = Host(8)
    sick.change(3, ecc_uncorrected_volatile=1)
    sick.step(sick.xid(3, 95, history=True))
    sick.run(20)
    assert set(sick.codes) == {"ecc_uncorrectable", "xid"}


def test_a_contained_memory_error_warns_and_an_uncontained_one_fails() -> None:
    host = Host(8)
    host.change(3, ecc_uncorrected_volatile=1, remapped_rows_pending=1)
    host.step(host.xid(3, 94))
    assert (host.health, set(host.codes)) == (Health.WARNING, {"xid", "ecc_uncorrectable", "row_remap_pending"})
    host.step(host.xid(3, 95))
    assert host.health is Health.FAILURE


def test_a_contained_error_after_which_the_driver_asks_for_a_reset_is_a_failure() -> None:
    """Errors in the processors of a Blackwell GPU are contained, and need a reset (kern_gpu_error_cont_gb100.c)."""
    host = Host(8)
    host.change(3, ecc_uncorrected_volatile=1, remapped_rows_pending=0)
    line = replace(host.xid(3, 94), text="Contained: GSP (0x0, 0x0). RST: Yes, D-RST: No")
    host.step(line)
    assert {f.key.code: (f.severity, f.advice) for f in host.findings} == {
        "xid": (Severity.FAILURE, Advice.RESET_GPU),
        "ecc_uncorrectable": (Severity.FAILURE, Advice.RESET_GPU),
    }
    host.run(7200, every=60)
    assert "xid" in host.codes, "it stays until the reset"


@pytest.mark.parametrize(("does", "advice"), [("node reboot", Advice.REBOOT), ("GPU reset", Advice.RESET_GPU)])
def test_a_channel_to_be_repaired_asks_for_what_its_line_names(does: str, advice: Advice) -> None:
    host = Host(8)
    text = f"Marking Channel 3 in FBPA 2 along with its pair for repair. Perform {does} to activate repair."
    host.step(replace(host.xid(3, 160), text=text))
    assert [(f.severity, f.advice) for f in host.findings] == [(Severity.WARNING, advice)]


def test_a_contained_error_whose_counter_is_seen_before_its_line_is_never_a_failure() -> None:
    host = Host(8)
    host.change(3, ecc_uncorrected_volatile=1, remapped_rows_pending=1)
    host.step()
    assert host.health is not Health.FAILURE
    host.step(host.xid(3, 94))
    host.run(60)
    assert host.health is Health.WARNING


def test_an_uncorrected_error_without_any_line_fails_with_the_second_pass() -> None:
    host = Host(8)
    host.change(3, ecc_uncorrected_volatile=1, remapped_rows_pending=1)
    host.run(10)
    assert (host.health, "ecc_uncorrectable" in host.codes) == (Health.FAILURE, True)


def test_a_fatal_switch_error_fails_the_node_until_reboot() -> None:
    host = Host(8)
    host.step(SxidEvent(at=host.now, slot="0000:05:00.0", sxid=20034, fatal=True))
    host.run(60)
    assert host.codes == ["sxid"]
    host.reboot()
    host.run(20)
    assert host.health is Health.HEALTHY


def test_a_switch_error_that_its_line_calls_fatal_is_fatal_whatever_the_table_has() -> None:
    host = Host(8)
    host.step(SxidEvent(at=host.now, slot="0000:05:00.0", sxid=99999, fatal=True))
    assert host.health is Health.FAILURE


def test_a_gap_in_the_kernel_log_is_an_event() -> None:
    host = Host(1)
    host.step(LogGap(at=host.now, lost=17))
    assert [e.data["count"] for e in host.ledger if e.kind == EventKind.LOG_GAP] == [17]


def test_a_width_that_was_accepted_is_this_slot_s_normal_also_after_a_restart() -> None:
    host = Host(2)
    for n in host.gpus:
        host.change(n, pcie_width=8)
    host.run(300)
    assert host.codes == ["pcie_link_degraded"] * 2
    assert host.findings[0].evidence["as_wide"] == "2 of 2 GPUs"
    host.accept()
    host.run(120)
    assert host.health is Health.HEALTHY
    host.restart_daemon()
    host.checkpointed()
    host.run(600)
    assert host.health is Health.HEALTHY
    host.change(1, pcie_width=4)
    host.run(300)
    assert [(f.key.code, f.evidence["width_possible"]) for f in host.findings] == [("pcie_link_degraded", 8)]


def test_a_new_board_in_a_slot_of_eight_lanes_has_no_more_and_a_slot_that_got_more_is_held_to_them() -> None:
    host = Host(2)
    host.change(1, pcie_width=8)
    host.run(300)
    host.accept()
    host.gpus[1] = replace(host.gpus[1], uuid="GPU-new")
    host.run(600)
    assert host.health is Health.HEALTHY
    host.change(1, pcie_width=16)
    host.run(60)
    host.accept()
    host.change(1, pcie_width=8)
    host.run(300)
    assert host.codes == ["pcie_link_degraded"]


# --- consequences


def test_the_consequences_of_a_lost_gpu_are_quiet() -> None:
    host = Host(8)
    host.change(3, pcie_width=8, remapped_rows_pending=1)
    host.run(300)
    assert set(host.codes) == {"pcie_link_degraded", "row_remap_pending"}
    del host.gpus[3], host.devices[3]
    host.step()
    assert host.codes == ["gpu_missing"]
    assert host.last is not None
    assert len(host.last.verdict.silenced) == 2
