"""The judge's findings about GPUs that it cannot see, or that hide: never healthy by silence, never cleared by it."""

from __future__ import annotations

from dataclasses import replace

from gpuwarden.health.model import Health
from gpuwarden.health.unknown_reasons import UNKNOWN_REASONS
from gpuwarden.health.view import Rules
from gpuwarden_collectors.base import Observation, PassOutcome
from gpuwarden_collectors.facts import GpuAnswer, NvmlProblem
from gpuwarden_collectors.pci_facts import PciFacts
from support.hosts import Host, slot


def no_bus(host: Host, outcome: PassOutcome = PassOutcome.ABSENT) -> Observation[PciFacts]:
    return Observation(collector="pci", outcome=outcome, started=host.now, finished=host.now, error="no bus")


def test_a_gpu_that_answers_now_and_then_is_missing_after_30_s() -> None:
    host = Host(8)
    host.step()
    for number in range(10):
        host.answer(3, GpuAnswer.LOST if number % 2 else GpuAnswer.OK)
        host.uptime += 5
        host.step()
    assert host.codes == ["gpu_missing"]


def test_a_node_that_is_unknown_because_of_one_gpu_gives_the_reason() -> None:
    host = Host(8)
    host.step()
    host.answer(3, GpuAnswer.TIMEOUT)
    host.run(20)
    assert host.last is not None
    assert (host.health, host.last.verdict.reasons) == (Health.UNKNOWN, ("gpu_not_answering",))


def test_a_gpu_that_does_not_report_its_slot_keeps_the_node_from_being_healthy() -> None:
    host = Host(8)
    host.gpus[3] = replace(host.gpus[3], slot="", answer=GpuAnswer.UNKNOWN)
    for _ in range(20):
        host.uptime += 5
        host.step(pci=no_bus(host))
    assert host.health is Health.UNKNOWN


def test_the_only_gpu_lost_at_start_is_missing_and_the_driver_is_not_blamed() -> None:
    host = Host(1)
    host.gpus[0] = replace(host.gpus[0], slot="", answer=GpuAnswer.LOST)
    host.run(150)
    assert host.codes == ["gpu_missing"]


def test_too_few_gpus_are_still_too_few_while_nothing_can_be_seen() -> None:
    host = Host(7, rules=Rules(expected_gpus=8))
    host.run(60)
    for _ in range(20):
        host.uptime += 5
        host.step(nvml=host.nvml(PassOutcome.FAILED), pci=no_bus(host, PassOutcome.FAILED))
    assert (host.health, host.codes[0]) == (Health.FAILURE, "gpu_missing")


def test_too_few_gpus_silence_no_fault_of_those_that_are_here() -> None:
    host = Host(7, rules=Rules(expected_gpus=8))
    host.change(2, remapped_rows_failure=1)
    host.run(60)
    assert set(host.codes) == {"gpu_missing", "row_remap_failed"}
    assert host.last is not None
    assert {g.slot for g in host.last.verdict.gpus if g.health is Health.FAILURE} == {slot(2)}


def test_configured_gpus_are_not_counted_before_nvml_had_its_turn() -> None:
    host = Host(8, rules=Rules(expected_gpus=8))
    for _ in range(12):  # a library that takes a minute, under a long deadline
        host.uptime += 5
        host.view = host.view.after(host.pci())
        host.step(collect=False)
    assert (host.health, host.codes) == (Health.UNKNOWN, [])


def test_a_slow_boot_without_a_readable_bus_has_its_ten_minutes_too() -> None:
    host = Host(0, uptime=30.0, rules=Rules(expected_gpus=8))
    host.nvml_change = lambda facts: replace(facts, problem=NvmlProblem.DRIVER_NOT_LOADED)
    while host.uptime < 590:
        host.uptime += 5
        host.step(pci=no_bus(host))
    assert (host.health, host.codes) == (Health.UNKNOWN, [])
    while host.uptime < 610:
        host.uptime += 5
        host.step(pci=no_bus(host))
    assert host.codes == ["driver_not_loaded"]


def test_a_card_on_a_node_that_expects_none_is_nobody_s_to_miss() -> None:
    host = Host(1, rules=Rules(expected_gpus=0))
    for _ in range(60):
        host.uptime += 5
        host.step(nvml=host.nvml(PassOutcome.ABSENT))
    assert host.health is Health.HEALTHY


def test_a_driver_that_was_removed_after_it_hung_hangs_no_more() -> None:
    host = Host(8)
    host.step()
    since = host.now
    host.uptime += 25
    host.step(nvml=host.nvml(PassOutcome.TIMED_OUT, missed=2, silent_since=since, ever_answered=True))
    assert host.codes == ["driver_unresponsive"]
    for _ in range(30):
        host.uptime += 5
        host.step(nvml=host.nvml(PassOutcome.ABSENT, ever_answered=True))
    assert host.codes == ["driver_not_loaded"]


def test_a_node_whose_gpus_are_all_given_to_virtual_machines_has_nothing_to_judge() -> None:
    host = Host(2)
    host.step()
    host.gpus.clear()
    host.devices = {n: replace(device, driver="vfio-pci", responds=None) for n, device in host.devices.items()}
    host.run(60)
    assert host.last is not None
    assert (host.health, host.last.verdict.reasons) == (Health.UNKNOWN, ("no_gpu_expected",))


def test_a_gpu_that_is_unknown_gives_the_reason_and_the_others_are_what_they_were() -> None:
    host = Host(3)
    host.step()
    host.answer(1, GpuAnswer.TIMEOUT)
    host.run(10)
    assert host.last is not None
    assert [(g.health, g.reasons) for g in host.last.verdict.gpus] == [
        (Health.HEALTHY, ()),
        (Health.UNKNOWN, ("gpu_not_answering",)),
        (Health.HEALTHY, ()),
    ]


def test_every_reason_for_which_a_node_is_unknown_can_be_explained() -> None:
    for problem in NvmlProblem:
        host = Host(0)
        host.devices = Host(2).devices
        host.nvml_change = lambda facts, problem=problem: replace(facts, problem=problem)  # type: ignore[misc]  # bound per round
        host.step()
        assert host.last is not None
        assert set(host.last.verdict.unknown) <= UNKNOWN_REASONS.keys()
