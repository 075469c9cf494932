"""Which failing GPUs concern the jobs on them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from gpuwarden.features.evacuation.active_notices import active_notices
from gpuwarden.health.judge import judge
from gpuwarden.health.model import Verdict
from gpuwarden.policy.model import Notice
from gpuwarden.policy.notices import id_of
from gpuwarden.policy.state import PolicyState
from support.hosts import Host, slot
from support.quick import first_quick


def notices(
    host: Host, verdict: Verdict, *, going_on: Collection[str] = (), ignore_gpus: bool = False
) -> tuple[Notice, ...]:
    return active_notices(
        PolicyState(boot_id=host.boot_id),
        verdict,
        {},
        {},
        going_on=going_on,
        slurm=False,
        excludes=False,
        ignore_gpus=ignore_gpus,
        horizon=600.0,
        instance="",
        now=host.now,
    ).notices


def concerned(host: Host, *, ignore_gpus: bool = False) -> list[str]:
    assert host.last is not None
    return [notice.id for notice in notices(host, host.last.verdict, ignore_gpus=ignore_gpus)]


def test_jobs_on_a_gpu_that_failed_are_concerned() -> None:
    host = Host(4)
    host.run(60)
    host.change(2, remapped_rows_failure=1)
    host.run(60)
    assert concerned(host) == [slot(2)]
    assert concerned(host, ignore_gpus=True) == []


def test_a_gpu_that_goes_on_failing_has_the_same_notice_whatever_else_was_mended() -> None:
    """A job that was signalled an hour ago would be signalled again for another notice."""
    host = Host(4)
    host.run(60)
    host.change(1, remapped_rows_failure=1)
    host.run(3600, every=60)
    host.change(2, remapped_rows_failure=1)
    host.run(3600, every=60)
    host.step(host.xid(2, 95))
    host.run(60)
    assert host.last is not None
    verdict = host.last.verdict
    ids = [id_of(notice) for notice in notices(host, verdict)]
    assert len(ids) == 2
    assert len({finding.first_seen for finding in verdict.findings}) == 3
    for mended in verdict.findings:
        left = replace(verdict, findings=tuple(other for other in verdict.findings if other is not mended))
        notice_ids = [id_of(notice) for notice in notices(host, left, going_on=ids)]
        assert notice_ids
        assert set(notice_ids) <= set(ids)


def test_what_is_done_for_a_gpu_goes_on_over_a_restart_of_the_daemon_and_nothing_new_begins_by_memory_alone() -> None:
    host = Host(4)
    host.run(60)
    host.change(2, remapped_rows_failure=1)
    host.run(60)
    assert host.last is not None
    ids = [id_of(notice) for notice in notices(host, host.last.verdict)]
    host.restart_daemon()
    remembered = judge(host.state, host.view, (), host.rules, host.now).verdict
    assert [finding.confirmed for finding in remembered.findings] == [False]
    assert [id_of(notice) for notice in notices(host, remembered, going_on=ids)] == ids
    assert notices(host, remembered) == ()


@pytest.mark.parametrize("condition", first_quick(1, ["memory_degrading", "power_brake", "row_remap_overdue"]))
def test_jobs_on_a_gpu_that_works_on_are_left_alone(condition: str) -> None:
    host = Host(4)
    host.run(60)
    if condition == "row_remap_overdue":
        host.change(2, remapped_rows_pending=1)
        host.run(8 * 86_400.0, every=3600)
    for _ in range(300):
        r = host.gpus[2].readings
        if condition == "memory_degrading":
            host.change(2, ecc_corrected_volatile=(r.ecc_corrected_volatile or 0) + 88_500)
        elif condition == "power_brake":
            braked = (r.slowdown_hw_power_brake_ns or 0) + 5_000_000_000
            host.change(2, clock_event_reasons=0x80, clock_sm_mhz=495, slowdown_hw_power_brake_ns=braked)
        host.run(5)
    assert condition in host.codes
    assert host.health.value == "failure"
    assert concerned(host) == []


@pytest.mark.parametrize(("action", "gpus"), [(1, [slot(2)]), (2, [slot(2)]), (4, [])])
def test_jobs_are_left_alone_while_the_driver_asks_for_a_reset_after_they_have_ended(
    action: int, gpus: Collection[str]
) -> None:
    """Drain and reset: the running work is safe, and no new work is to start (DCGM_FR_GPU_RECOVERY_DRAIN_RESET)."""
    host = Host(4)
    host.run(60)
    host.change(2, recovery_action=action)
    host.run(60)
    assert (host.health.value, host.codes) == ("failure", ["gpu_recovery_action"])
    assert concerned(host) == gpus
