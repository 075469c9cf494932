"""The recovery action that the driver asks for: Xid 154 is its edge, NVML's reading its level, and both are one finding."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwarden.health.model import Advice, EventKind, Health, Key, Severity, gpu
from gpuwarden.health.view import Rules, XidRule
from gpuwarden_collectors.base import PassOutcome
from gpuwarden_collectors.event_facts import Source, XidEvent
from support.hosts import Host, slot
from support.quick import first_quick

W, F = Severity.WARNING, Severity.FAILURE
NAMES = {0: "None", 1: "GPU Reset Required", 2: "Node Reboot Required", 3: "Drain P2P", 4: "Drain and Reset"}


def changed(host: Host, to: int, index: int = 3, *, old: int = 0) -> XidEvent:
    names = (NAMES.get(old, "?"), NAMES.get(to, "New"))
    text = f"GPU recovery action changed from {old:#x} ({names[0]}) to {to:#x} ({names[1]})"
    return replace(host.xid(index, 154), text=text)


def reported(host: Host) -> list[tuple[str, Severity, Advice]]:
    return [(str(f.key).partition("@")[0], f.severity, f.advice) for f in host.findings]


@pytest.mark.parametrize(
    ("action", "severity", "advice"),
    first_quick(
        2,
        [
            (1, F, Advice.RESET_GPU),
            (2, F, Advice.REBOOT),
            (3, W, Advice.RESTART_APP),  # drain peer-to-peer: a reset is not asked for
            (4, F, Advice.RESET_GPU),
            (9, F, Advice.CONTACT_SUPPORT),
        ],
    ),
)
def test_the_line_counts_at_once_and_the_reading_goes_on_with_the_same_finding(
    action: int, severity: Severity, advice: Advice
) -> None:
    host = Host(8)
    host.step()
    host.uptime += 1
    host.step(changed(host, action), collect=False)
    assert reported(host) == [("gpu_recovery_action", severity, advice)]
    host.change(3, recovery_action=action)
    host.uptime += 4
    host.run(600)
    assert reported(host) == [("gpu_recovery_action", severity, advice)]
    raised = [event.data.get("reported_by") for event in host.ledger if event.kind == EventKind.RAISED]
    assert raised == ["Xid 154", None]  # by the line, and once more when the reading confirms it


def test_a_pass_that_began_before_the_line_does_not_take_it_back() -> None:
    host = Host(8)
    before = host.nvml()
    host.uptime += 2
    host.step(changed(host, 1), nvml=before)
    host.uptime += 8
    host.step(nvml=host.nvml(PassOutcome.TIMED_OUT))
    host.uptime += 20
    host.step(nvml=host.nvml(PassOutcome.TIMED_OUT))
    assert reported(host) == [("gpu_recovery_action", F, Advice.RESET_GPU)]


@pytest.mark.parametrize("outcome", [PassOutcome.FAILED, PassOutcome.TIMED_OUT])
def test_a_pass_that_began_after_the_line_and_failed_does_not_take_it_back(outcome: PassOutcome) -> None:
    host = Host(8)
    host.step()
    host.uptime += 1
    host.step(changed(host, 1), collect=False)
    for _ in range(13):
        host.uptime += 1
        host.step(nvml=host.nvml(outcome))
    assert reported(host) == [("gpu_recovery_action", F, Advice.RESET_GPU)]


def test_the_gpus_own_answer_decides_from_the_next_pass_on() -> None:
    host = Host(8)
    host.step(changed(host, 1), collect=False)
    assert reported(host) == [("gpu_recovery_action", F, Advice.RESET_GPU)]
    host.uptime += 5
    host.run(20)
    assert host.health is Health.HEALTHY


def test_none_takes_it_back_and_ends_what_a_reset_ends() -> None:
    host = Host(8)
    host.change(3, recovery_action=1)
    host.step(host.xid(3, 95), changed(host, 1))
    host.run(60)
    assert {code for code, *_ in reported(host)} == {"xid.95", "gpu_recovery_action"}
    host.change(3, recovery_action=0)
    host.uptime += 1
    host.step(changed(host, 0, old=1))
    host.run(30)
    assert host.health is Health.HEALTHY


def test_with_the_line_and_no_reading_the_finding_stays_until_the_line_reports_none() -> None:
    host = Host(8)
    host.change(3, recovery_action=None)
    host.step(changed(host, 2))
    host.run(600)
    host.restart_daemon()
    host.run(60)
    assert reported(host) == [("gpu_recovery_action", F, Advice.REBOOT)]
    host.step(changed(host, 0, old=2))
    host.run(30)
    assert host.health is Health.HEALTHY


def test_a_finding_of_the_reading_stays_while_it_cannot_be_read() -> None:
    host = Host(8)
    host.change(3, recovery_action=1)
    host.step()
    host.change(3, recovery_action=None)
    host.run(120)
    assert reported(host) == [("gpu_recovery_action", F, Advice.RESET_GPU)]


def test_an_old_line_is_for_the_reading_to_confirm() -> None:
    host = Host(8)
    host.step(replace(changed(host, 1), history=True), collect=False)
    assert host.findings == ()
    host.change(3, recovery_action=1)
    host.run(10)
    assert ("gpu_recovery_action", F, Advice.RESET_GPU) in reported(host)


@pytest.mark.parametrize("source", [Source.NVML, Source.DCGM])
def test_a_bare_154_is_no_finding_and_leaves_it_to_the_reading(source: Source) -> None:
    host = Host(8)
    host.step(host.xid(3, 154, source=source), collect=False)
    assert host.findings == ()


def test_a_154_in_a_form_that_nobody_described_is_a_warning() -> None:
    host = Host(8)
    host.step(replace(host.xid(3, 154), text="GPU recovery has a new form"))
    assert [code for code, *_ in reported(host)] == ["xid.154"]
    assert host.health is Health.WARNING


def test_a_site_can_have_the_line_recorded_only_or_reported_besides() -> None:
    quiet = Host(8, rules=Rules(xids={"154": XidRule(severity="record")}))
    quiet.step(changed(quiet, 1), collect=False)
    assert quiet.findings == ()
    loud = Host(8, rules=Rules(xids={"154": XidRule(severity="warning")}))
    loud.step(changed(loud, 1), collect=False)
    assert {code for code, *_ in reported(loud)} == {"gpu_recovery_action", "xid.154"}
    loud.uptime += 10
    loud.step(changed(loud, 0, index=4, old=1))
    assert Key("xid", gpu(slot(4)), "154") not in loud.state.tracks
