"""A vGPU that had a licence here and has none any more."""

from __future__ import annotations

from dataclasses import replace

from gpuwarden.health.inventory import accepted
from gpuwarden.health.model import Health
from gpuwarden_collectors.facts import CallError
from support.hosts import Host, slot


def licensed(*values: int | None) -> Host:
    host = Host(len(values))
    for index, value in enumerate(values):
        host.change(index, vgpu_license=value)
    host.run(300)
    return host


def test_a_lost_licence_warns_after_twenty_minutes_and_ends_with_another() -> None:
    host = licensed(1, 1)
    host.change(1, vgpu_license=0)
    host.run(1195)
    assert host.codes == []
    host.run(20)
    [finding] = host.findings
    assert (finding.key.code, finding.key.subject.slot, finding.severity) == ("vgpu_unlicensed", slot(1), "warning")
    host.change(1, vgpu_license=1)
    host.run(120)
    assert host.health is Health.HEALTHY


def test_a_licence_that_is_renewed_in_time_is_nothing() -> None:
    host = licensed(1, 1)
    for value in (0, 1, 0, 1):
        host.change(1, vgpu_license=value)
        host.run(1100, every=20)
    assert not [event for event in host.ledger if event.kind == "raised"]


def test_what_never_had_a_licence_or_has_no_reading_is_healthy() -> None:
    host = licensed(0, None)
    host.run(7200, every=20)
    host.change(0, vgpu_license=None)
    host.run(60)
    assert host.health is Health.HEALTHY


def test_a_guest_that_boots_without_the_licence_it_had_warns() -> None:
    host = licensed(1, 1)
    host.change(0, vgpu_license=0)
    host.reboot()
    host.restart_daemon()
    host.run(1300)
    assert host.codes == ["vgpu_unlicensed"]


def test_it_can_be_accepted_and_is_missed_again_after_another_licence() -> None:
    host = licensed(1, 1)
    host.change(0, vgpu_license=0)
    host.run(1300)
    before = len(host.ledger)
    host.accept()
    assert accepted(host.ledger[before:])["unlicensed"] == [slot(0)]
    host.run(120)
    assert host.health is Health.HEALTHY
    host.restart_daemon()
    host.run(1300)
    assert host.health is Health.HEALTHY
    host.change(0, vgpu_license=1)
    host.run(60)
    host.change(0, vgpu_license=0)
    host.run(1300)
    assert host.codes == ["vgpu_unlicensed"]


def test_it_ends_where_the_software_was_removed_and_not_with_a_reading_that_failed() -> None:
    host = licensed(1, 1)
    host.change(0, vgpu_license=0)
    host.run(1300)
    host.gpus[0] = replace(host.gpus[0], errors=(CallError(call="nvmlDeviceGetGridLicensableFeatures", code=999),))
    host.change(0, vgpu_license=None)
    host.run(600)
    assert host.codes == ["vgpu_unlicensed"]
    host.gpus[0] = replace(host.gpus[0], errors=())
    host.run(120)
    assert host.health is Health.HEALTHY


def test_another_board_had_no_licence_here() -> None:
    host = licensed(1, 1)
    host.gpus[0] = replace(host.gpus[0], uuid="GPU-another")
    host.change(0, vgpu_license=0)
    host.run(1300)
    assert host.health is Health.HEALTHY
