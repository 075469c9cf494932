"""Lines of the kernel log that bus and NVML can deny: about slots that hold nothing, and Xid 79."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwarden.health.model import EventKind, Health
from gpuwarden.health.xid.witnesses import ANSWERED_WITHIN, CONTRADICTED
from gpuwarden_collectors.base import Observation, PassOutcome
from gpuwarden_collectors.event_facts import (
    AerEvent,
    AerSeverity,
    GpuResetEvent,
    HostEvent,
    Source,
    SxidEvent,
    XidEvent,
)
from gpuwarden_collectors.facts import GpuAnswer, NvmlProblem
from gpuwarden_collectors.pci_facts import PciFacts
from support.hosts import Host, slot

NOWHERE = "0000:99:00.0"
SWITCH = "0000:05:00.0"


def lines(host: Host, where: str) -> list[HostEvent]:
    return [
        replace(host.xid(0, 95), slot=where),
        replace(host.xid(0, 79), slot=where),
        SxidEvent(at=host.now, slot=where, sxid=20034, fatal=True),
        GpuResetEvent(at=host.now, slot=where, ok=True),
    ]


# --- slots


def test_a_line_about_a_slot_that_holds_nothing_is_counted_and_makes_no_finding() -> None:
    host = Host(8)
    step = host.step(*lines(host, NOWHERE))
    host.run(20)
    assert (host.health, host.codes, host.state.records) == (Health.HEALTHY, [], {})
    assert step.disbelieved == 4


@pytest.mark.parametrize("where", [slot(3), SWITCH])
def test_gpus_and_switches_on_the_bus_are_believed(where: str) -> None:
    host = Host(8)
    *faults, reset = lines(host, where)
    assert host.step(*faults).disbelieved == 0
    assert host.health is Health.FAILURE
    assert host.step(reset).disbelieved == 0


def test_a_slot_that_was_seen_on_the_bus_in_this_boot_is_believed_for_as_long_as_it_lasts() -> None:
    host = Host(8)
    host.step()
    host.switches.clear()
    host.run(600, every=60)
    host.step(SxidEvent(at=host.now, slot=SWITCH, sxid=20034, fatal=True))
    assert host.codes == ["sxid"]
    host.reboot()
    host.run(20)
    assert host.step(SxidEvent(at=host.now, slot="0000:06:00.0", sxid=20034, fatal=True)).disbelieved == 1


def test_a_pinned_gpu_that_is_gone_since_before_the_boot_is_believed() -> None:
    host = Host(8)
    host.step()
    del host.gpus[3], host.devices[3]
    host.reboot()
    host.restart_daemon()
    host.step()
    host.step(host.xid(3, 95))
    assert set(host.codes) == {"gpu_missing", "xid"}


def test_a_slot_with_a_record_of_this_boot_is_believed_after_a_restart() -> None:
    host = Host(8)
    host.step(SxidEvent(at=host.now, slot=SWITCH, sxid=11012, fatal=False))
    host.switches.clear()
    host.restart_daemon()
    assert host.step(SxidEvent(at=host.now, slot=SWITCH, sxid=20034, fatal=True)).disbelieved == 0


def test_without_a_witness_every_line_counts() -> None:
    """The bus was not read yet, or shows nothing at all, as in some containers."""
    host = Host(8)
    assert host.step(*lines(host, NOWHERE), collect=False).disbelieved == 0
    contained = Host(8)
    contained.devices, contained.switches = {}, []
    assert contained.step(*lines(contained, SWITCH)[:3]).disbelieved == 0
    assert "sxid" in contained.codes


def test_lines_without_a_slot_and_pcie_errors_of_other_devices_count() -> None:
    host = Host(8)
    port = AerEvent(at=host.now, slot="0000:00:01.0", severity=AerSeverity.FATAL)
    assert host.step(replace(host.xid(0, 95), slot=""), port).disbelieved == 0
    assert set(host.codes) == {"xid", "pcie_aer_fatal"}


def test_nvml_and_dcgm_are_believed_whatever_slot_they_name() -> None:
    host = Host(8)
    reports = [replace(host.xid(0, 95, source=source), slot=NOWHERE) for source in (Source.NVML, Source.DCGM)]
    assert host.step(*reports).disbelieved == 0


# --- Xid 79


def fallen(host: Host) -> XidEvent:
    host.step()
    host.uptime += 1
    return host.xid(3, 79)


def bus(host: Host, outcome: PassOutcome) -> Observation[PciFacts]:
    return replace(host.pci(), outcome=outcome, facts=None)


@pytest.mark.slow
def test_an_xid_79_of_a_gpu_that_bus_and_nvml_have_is_a_contradicted_warning() -> None:
    host = Host(8)
    host.step(fallen(host), collect=False)
    assert (host.health, host.codes) == (Health.HEALTHY, [])
    host.uptime += 0.5
    host.step()
    [finding] = host.findings
    assert (finding.severity, finding.key.detail, "contradicted" in finding.evidence) == ("warning", "79", True)
    host.run(4000)
    assert host.health is Health.HEALTHY


@pytest.mark.parametrize("gone", ["bus", "nvml", "lost"])
def test_an_xid_79_that_a_witness_confirms_is_a_failure_at_once(gone: str) -> None:
    host = Host(8)
    line = fallen(host)
    if gone == "bus":
        host.devices[3] = replace(host.devices[3], responds=False)
    elif gone == "nvml":
        del host.gpus[3]
    else:
        host.answer(3, GpuAnswer.LOST)
    host.step(line, collect=False)
    host.uptime += 0.2
    host.step()
    assert "failure" in {f.severity for f in host.findings if f.key.code == "xid"}


def test_it_is_a_failure_at_once_if_the_gpu_was_gone_before_the_line() -> None:
    host = Host(8)
    line = fallen(host)
    host.answer(3, GpuAnswer.LOST)
    host.step()
    host.uptime += 1
    host.step(replace(line, at=host.now), collect=False)
    assert [f.severity for f in host.findings if f.key.code == "xid"] == ["failure"]


def test_a_witness_that_denies_within_the_minute_makes_the_warning_a_failure() -> None:
    host = Host(8)
    host.step(fallen(host), collect=False)
    host.uptime += 0.5
    host.run(50)
    assert [f.severity for f in host.findings] == ["warning"]
    host.answer(3, GpuAnswer.LOST)
    host.uptime += 5
    host.step()
    assert [f.severity for f in host.findings if f.key.code == "xid"] == ["failure"]
    host.answer(3, GpuAnswer.OK)
    host.run(300)
    assert [(f.severity, f.latched) for f in host.findings] == [("failure", True)], "a failure is never made milder"


@pytest.mark.parametrize("outcome", [PassOutcome.TIMED_OUT, PassOutcome.FAILED, PassOutcome.ABSENT])
def test_a_bus_that_cannot_be_read_acquits_nothing(outcome: PassOutcome) -> None:
    host = Host(8)
    host.step(fallen(host), collect=False)
    host.uptime += 0.5
    host.step(nvml=host.nvml(), pci=bus(host, outcome), collect=False)
    assert [f.severity for f in host.findings] == ["failure"]


@pytest.mark.parametrize("outcome", [PassOutcome.TIMED_OUT, PassOutcome.FAILED])
def test_an_nvml_that_does_not_answer_acquits_nothing(outcome: PassOutcome) -> None:
    host = Host(8)
    host.step(fallen(host), collect=False)
    host.uptime += 0.5
    host.step(nvml=host.nvml(outcome), pci=host.pci(), collect=False)
    assert [f.severity for f in host.findings] == ["failure"]


@pytest.mark.parametrize("answer", [GpuAnswer.TIMEOUT, GpuAnswer.UNKNOWN, GpuAnswer.RESET_REQUIRED])
def test_a_gpu_that_nvml_lists_but_that_does_not_answer_is_not_acquitted(answer: GpuAnswer) -> None:
    host = Host(8)
    host.step(fallen(host), collect=False)
    host.answer(3, answer)
    host.uptime += 0.5
    host.step()
    assert "failure" in {f.severity for f in host.findings if f.key.code == "xid"}


def test_a_driver_that_is_not_loaded_acquits_nothing() -> None:
    host = Host(8)
    host.step(fallen(host), collect=False)
    host.gpus.clear()
    host.nvml_change = lambda facts: replace(facts, problem=NvmlProblem.DRIVER_NOT_LOADED)
    host.uptime += 0.5
    host.step()
    assert "xid" in host.codes
    assert host.health is Health.FAILURE


def test_a_configuration_space_that_could_not_be_read_acquits_nothing() -> None:
    host = Host(8)
    host.devices[3] = replace(host.devices[3], responds=None)
    host.step(fallen(host), collect=False)
    host.uptime += 0.5
    host.step()
    assert [f.severity for f in host.findings] == ["failure"]


def test_a_witness_without_a_pass_acquits_nothing() -> None:
    host = Host(8)
    host.step(fallen(host), collect=False)
    host.uptime += ANSWERED_WITHIN - 0.5
    host.step(collect=False)
    assert host.codes == []
    host.uptime += 1
    host.step(collect=False)
    assert [f.severity for f in host.findings] == ["failure"]


@pytest.mark.parametrize("later", [5.0, ANSWERED_WITHIN + 5.0])
def test_a_restart_makes_no_failure_of_a_line_that_was_contradicted(later: float) -> None:
    host = Host(8)
    host.step(fallen(host), collect=False)
    host.uptime += 0.5
    host.step()
    host.uptime += later
    host.restart_daemon()
    host.step(collect=False)
    assert [f.severity for f in host.findings] == ["warning"]
    host.uptime += 1
    host.step(host.xid(3, 79), collect=False)
    host.uptime += ANSWERED_WITHIN + 1
    host.step(collect=False)
    assert [f.severity for f in host.findings] == ["failure"], "a line that this daemon took in has its time"


@pytest.mark.parametrize("seconds", [0.1, 1.9, 2.1, 9.0, 19.0])
def test_how_long_a_witness_takes_decides_nothing(seconds: float) -> None:
    """The bus is read again for two seconds while a function does not respond, as beside another lost GPU."""
    host = Host(8)
    host.step(fallen(host), collect=False)
    host.uptime += 0.05
    bus = host.pci()
    host.step(nvml=host.nvml(), collect=False)
    host.uptime += seconds
    host.step(nvml=host.nvml(), collect=False)
    assert host.codes == []
    host.step(pci=replace(bus, finished=host.now), collect=False)
    assert [(f.severity, CONTRADICTED in f.evidence) for f in host.findings] == [("warning", True)]


def test_an_event_of_nvml_itself_is_a_failure_at_once_whatever_the_witnesses_say() -> None:
    host = Host(8)
    host.step()
    host.uptime += 1
    host.step(host.xid(3, 79, source=Source.NVML), collect=False)
    assert [(f.key.detail, f.severity) for f in host.findings] == [("79", "failure")]
    host.run(120)
    assert [(f.key.detail, f.severity, f.latched) for f in host.findings] == [("79", "failure", True)]


@pytest.mark.parametrize("first", [Source.KERNEL_LOG, Source.NVML, Source.DCGM])
def test_the_event_counts_whoever_reported_first(first: Source) -> None:
    host = Host(8)
    host.step()
    others = [source for source in (Source.KERNEL_LOG, Source.NVML, Source.DCGM) if source is not first]
    for source in (first, *others):
        host.uptime += 0.5
        host.step(host.xid(3, 79, source=source), collect=False)
        host.step()
    [finding] = host.findings
    assert (finding.severity, finding.count) == ("failure", 1)


def test_a_contradicted_line_is_a_failure_once_nvml_reports_it_too() -> None:
    host = Host(8)
    host.step(fallen(host), collect=False)
    host.uptime += 0.5
    host.step()
    assert [f.severity for f in host.findings] == ["warning"]
    host.uptime += 1
    host.step(host.xid(3, 79, source=Source.NVML), collect=False)
    assert [f.severity for f in host.findings] == ["failure"]


def test_a_forged_line_after_the_cure_is_not_believed_for_an_event_of_long_ago() -> None:
    host = Host(8)
    host.step(host.xid(3, 79, source=Source.NVML))
    host.run(600)
    host.acknowledge("xid.79@gpu/" + slot(3))
    host.uptime += 60
    host.step(host.xid(3, 79), collect=False)
    host.uptime += 0.5
    host.step()
    assert [f.severity for f in host.findings] == ["warning"]


def test_dcgm_alone_proves_nothing() -> None:
    """Whoever reaches its engine can put a value into it."""
    host = Host(8)
    host.step()
    host.step(host.xid(3, 79, source=Source.DCGM), collect=False)
    host.uptime += 0.5
    host.step()
    assert [f.severity for f in host.findings] == ["warning"]


def test_a_pass_that_began_before_the_line_acquits_nothing() -> None:
    host = Host(8)
    began = host.nvml()
    host.uptime += 1
    host.step(host.xid(3, 79), collect=False)
    host.step(nvml=replace(began, finished=host.now), pci=host.pci(), collect=False)
    assert host.codes == []
    host.uptime += ANSWERED_WITHIN + 0.5
    host.step(pci=host.pci(), collect=False)
    assert [f.severity for f in host.findings] == ["failure"]


def test_a_hang_after_the_gpu_was_found_there_takes_nothing_back() -> None:
    host = Host(8)
    host.step(fallen(host), collect=False)
    host.uptime += 0.5
    host.step()
    host.uptime += 5
    host.step(nvml=host.nvml(PassOutcome.TIMED_OUT), pci=bus(host, PassOutcome.TIMED_OUT), collect=False)
    assert [f.severity for f in host.findings] == ["warning"]


def test_a_line_read_long_after_it_was_printed_is_asked_about_all_the_same() -> None:
    host = Host(8)
    line = fallen(host)
    host.step()
    host.restart_daemon()
    host.uptime += 300
    host.step(line, collect=False)
    assert host.codes == []
    host.uptime += 0.5
    host.step()
    assert [f.severity for f in host.findings] == ["warning"]


@pytest.mark.parametrize("number", [48, 95, 119])
def test_nothing_acquits_another_xid(number: int) -> None:
    host = Host(8)
    host.step()
    host.uptime += 1
    host.step(host.xid(3, number))
    host.uptime += 1
    host.run(30)
    assert host.health is Health.FAILURE


def test_without_a_slot_there_is_no_witness() -> None:
    host = Host(8)
    host.step(replace(fallen(host), slot=""))
    assert host.health is Health.FAILURE


def test_a_contradicted_line_gives_a_driver_reload_its_grace() -> None:
    host = Host(8)
    host.step(fallen(host), collect=False)
    host.uptime += 0.5
    host.run(120)
    del host.gpus[3]
    host.run(10)
    assert "gpu_missing" not in host.codes
    host.run(40)
    assert "gpu_missing" in host.codes


def test_it_goes_on_over_a_restart() -> None:
    host = Host(8)
    host.step(fallen(host), collect=False)
    host.uptime += 0.5
    host.run(10)
    host.restart_daemon()
    host.run(10)
    assert [f.severity for f in host.findings] == ["warning"]
    host.answer(3, GpuAnswer.LOST)
    host.uptime += 5
    host.step()
    assert "failure" in {f.severity for f in host.findings if f.key.code == "xid"}
    assert [e.kind for e in host.ledger if e.key and e.key.code == "xid"].count(EventKind.RAISED) == 2
