"""A failure that the ledger remembers counts as found in this life only once its sources were read and it is still there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwarden.health.model import Health
from gpuwarden_collectors.event_facts import GpuResetEvent, LogOrigin
from gpuwarden_collectors.pci_facts import PciDevice
from support.hosts import Host, slot


def failed(*, restarted: bool = True) -> Host:
    """GPU 1 had an uncontained memory error; the daemon was away since."""
    host = Host(2)
    host.step(host.xid(1, 95))
    host.run(30)
    host.uptime += 600
    if restarted:
        host.restart_daemon()
    return host


def confirmed(host: Host) -> dict[str, bool]:
    return {str(finding.key): finding.confirmed for finding in host.findings}


def reset(host: Host) -> GpuResetEvent:
    origin = LogOrigin(boot_id=host.boot_id, sequence=900)
    return GpuResetEvent(at=host.now, slot=slot(1), ok=True, text="reset done", origin=origin)


XID = f"xid.95@gpu/{slot(1)}"
MISSING = f"gpu_missing@gpu/{slot(1)}"


def test_what_is_found_live_is_confirmed() -> None:
    host = failed(restarted=False)
    host.step()
    assert confirmed(host) == {XID: True}


def test_a_remembered_latch_keeps_the_verdict_and_is_not_confirmed_before_the_first_pass() -> None:
    host = failed()
    host.step(collect=False)
    assert (host.health, confirmed(host)) == (Health.FAILURE, {XID: False})


def test_it_is_confirmed_once_the_log_was_read_and_nvml_answered() -> None:
    host = failed()
    host.view = replace(host.view, log_read=False)
    host.step()
    assert confirmed(host) == {XID: False}
    host.view = replace(host.view, log_read=True)
    host.step()
    assert confirmed(host) == {XID: True}


def test_it_is_not_confirmed_while_lines_are_missing_however_long() -> None:
    host = failed()
    host.view = replace(host.view, log_read=False)
    host.run(3600)
    assert confirmed(host) == {XID: False}


def test_a_new_line_confirms_it_at_once() -> None:
    host = failed()
    host.view = replace(host.view, log_read=False)
    host.step(host.xid(1, 95), collect=False)
    assert confirmed(host) == {XID: True}


def test_a_reset_while_the_daemon_was_away_ends_it_and_it_was_never_confirmed() -> None:
    host = failed()
    host.step(collect=False)
    assert confirmed(host) == {XID: False}
    host.step(reset(host))
    for _ in range(3):
        assert not any(confirmed(host).values())
        host.uptime += 5
        host.step()
    assert host.health is Health.HEALTHY


def test_a_reboot_while_the_daemon_was_away_ends_it_and_it_was_never_confirmed() -> None:
    host = failed(restarted=False)
    host.reboot()
    host.restart_daemon()
    for collects in (False, True, True):
        host.step(collect=collects)
        host.uptime += 5
        assert not any(confirmed(host).values())
    assert host.health is Health.HEALTHY


def missing() -> tuple[Host, PciDevice, object]:
    host = Host(2)
    host.run(30)
    device, facts = host.devices.pop(1), host.gpus.pop(1)
    host.run(60)
    assert host.codes == ["gpu_missing"]
    return host, device, facts


@pytest.mark.parametrize("rebooted", [False, True])
def test_a_gpu_that_is_back_is_never_confirmed_missing(rebooted: bool) -> None:
    host, device, facts = missing()
    host.devices[1], host.gpus[1] = device, facts  # type: ignore[assignment]
    if rebooted:
        host.reboot()
    host.restart_daemon()
    host.step(collect=False)
    assert confirmed(host) == {MISSING: False}
    for _ in range(4):
        host.step()
        host.uptime += 5
        assert not any(confirmed(host).values())
    assert host.health is Health.HEALTHY


def test_a_gpu_that_is_still_gone_is_confirmed_by_the_first_pass() -> None:
    host, _, _ = missing()
    host.restart_daemon()
    host.step(collect=False)
    assert confirmed(host) == {MISSING: False}
    host.step()
    assert confirmed(host) == {MISSING: True}


def test_one_that_only_nvml_misses_has_the_time_of_a_driver_reload_again() -> None:
    host, device, _ = missing()
    host.devices[1] = device
    host.restart_daemon()
    host.step()
    assert confirmed(host) == {MISSING: False}
    host.run(host.rules.missing_grace)
    assert confirmed(host) == {MISSING: True}
