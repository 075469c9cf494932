"""The Xids that DCGM saw: each is an event once, when it is new, and old ones need a sign of their GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwarden.health.model import Health, Key, gpu
from gpuwarden_collectors.base import PassOutcome
from gpuwarden_collectors.event_facts import GpuResetEvent, Source
from support.dcgm_hosts import DcgmHost
from support.hosts import WALL, slot


@pytest.fixture
def host() -> DcgmHost:
    made = DcgmHost(2)
    made.run(60)
    return made


def counted(host: DcgmHost, xid: int, index: int = 0) -> int:
    record = host.state.records.get(Key("xid", gpu(slot(index)), str(xid)))
    return 0 if record is None else record.count


def noted(host: DcgmHost, xid: int, *, ago: float = 0.0, index: int = 0) -> None:
    """Let field 230 of the engine have this Xid."""
    host.field(index, last_xid=xid, last_xid_at=WALL + host.uptime - ago)


def test_an_xid_that_only_dcgm_saw_is_a_finding(host: DcgmHost) -> None:
    noted(host, 48, ago=7)
    host.run(60)
    finding = host.finding()
    assert (str(finding.key), host.health) == (f"xid.48@gpu/{slot(0)}", Health.FAILURE)
    assert counted(host, 48) == 1
    assert "DCGM" in str(finding.evidence["text"])


def test_the_same_xid_again_counts_again(host: DcgmHost) -> None:
    noted(host, 31)
    host.run(30)
    noted(host, 31)
    host.run(30)
    assert counted(host, 31) == 2


def test_an_incident_of_an_xid_that_the_field_no_longer_shows_counts(host: DcgmHost) -> None:
    """The field has the latest alone."""
    noted(host, 43)
    host.incident(101, xid=48, latched=True)
    host.run(30)
    assert (counted(host, 43), counted(host, 48)) == (1, 1)


def test_field_and_incident_of_one_xid_are_one(host: DcgmHost) -> None:
    noted(host, 79)
    host.incident(120, xid=79, latched=True)
    host.run(60)
    assert counted(host, 79) == 1


@pytest.mark.parametrize("source", [Source.KERNEL_LOG, Source.NVML])
def test_what_was_reported_already_is_not_counted_again(host: DcgmHost, source: Source) -> None:
    host.step(host.xid(0, 79, source=source))
    host.uptime += 12
    noted(host, 79, ago=12)
    host.incident(120, xid=79, latched=True)
    host.run(300)
    assert counted(host, 79) == 1


def test_an_incident_that_dcgm_makes_half_a_minute_later_is_not_counted_again(host: DcgmHost) -> None:
    host.step(host.xid(0, 74))
    host.uptime += 40
    host.incident(101, xid=74, latched=True)
    host.run(60)
    assert counted(host, 74) == 1


def test_an_xid_from_a_long_silence_of_dcgm_counts(host: DcgmHost) -> None:
    """The Xid came while the engine was known and did not answer, so it is new and not history."""
    host.away(PassOutcome.TIMED_OUT, "no answer")
    host.run(3600, every=30)
    noted(host, 48, ago=1800)
    host.back()
    host.run(30)
    assert "xid" in host.codes


def test_what_is_reported_in_the_same_step_is_counted_once(host: DcgmHost) -> None:
    noted(host, 79, ago=1)
    host.step(host.xid(0, 79))
    host.run(60)
    assert counted(host, 79) == 1


def test_an_xid_that_the_engine_still_reports_after_a_reset_is_over(host: DcgmHost) -> None:
    """The engine keeps it until it is restarted: still reported is not still broken."""
    host.incident(101, xid=48, latched=True)
    host.run(30)
    assert host.health is Health.FAILURE
    host.uptime += 5
    host.step(GpuResetEvent(at=host.now, slot=slot(0), ok=True, text="reset"))
    host.run(600)
    assert (host.codes, counted(host, 48)) == ([], 1)


def test_after_a_restart_of_the_daemon_the_same_xid_is_no_new_one(host: DcgmHost) -> None:
    noted(host, 48)
    host.incident(101, xid=48, latched=True)
    host.run(60)
    host.restart_daemon()
    host.run(60)
    assert (counted(host, 48), host.codes) == (1, ["xid"])


@pytest.mark.parametrize("sign", [False, True])
def test_an_xid_from_before_the_first_pass_counts_only_with_corroboration_by_the_gpu(sign: bool) -> None:
    host = DcgmHost(2)
    host.incident(101, xid=48, latched=True, preexisting=True)
    if sign:
        host.change(0, recovery_action=1)
    host.run(60)
    assert ("xid" in host.codes) is sign


def test_an_old_xid_in_the_field_at_the_first_pass_is_history() -> None:
    host = DcgmHost(2)
    noted(host, 48, ago=3600)
    host.run(60)
    assert (host.codes, counted(host, 48)) == ([], 1)


def test_a_recent_xid_in_the_field_at_the_first_pass_counts() -> None:
    host = DcgmHost(2)
    noted(host, 48, ago=60)
    host.run(60)
    assert host.codes == ["xid"]


def test_an_xid_from_before_the_clock_was_set_back_is_no_new_one(host: DcgmHost) -> None:
    noted(host, 48, ago=0)
    host.run(30)
    host.step(GpuResetEvent(at=host.now, slot=slot(0), ok=True, text="reset"))
    host.run(60)
    assert host.codes == []
    host.restart_daemon()
    noted(host, 48, ago=-3600)
    host.run(60)
    assert (host.codes, counted(host, 48)) == ([], 1)


def test_an_xid_from_before_this_boot_is_nobody_s(host: DcgmHost) -> None:
    noted(host, 48, ago=host.uptime + 100)
    host.run(60)
    assert counted(host, 48) == 0


def test_an_xid_of_a_gpu_without_a_slot_is_left_to_the_other_sources(host: DcgmHost) -> None:
    host.engine_gpu(0, slot="", readings=replace(host.dcgm.gpus[0].readings, last_xid=48, last_xid_at=WALL))
    host.run(30)
    assert host.state.records == {}
