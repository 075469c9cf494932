"""Jobs of Slurm that hold GPUs for nothing are found after half an hour, in shadow, and no other job is."""

from __future__ import annotations

from gpuwarden.features.why.idle import IDLE_AFTER, JOB_IDLE
from gpuwarden.health.model import Finding, Health, Key, Subject
from gpuwarden_collectors.facts import GpuAnswer
from support.job_hosts import JOB, UID
from support.why_hosts import WhyHost

MINUTES = IDLE_AFTER / 60
KEY = Key(JOB_IDLE, Subject("job", part=str(JOB)))


def idle_host(*, utilization: int = 0) -> WhyHost:
    """Return a host whose job has GPUs and no process."""
    host = WhyHost(2)
    host.processes()
    host.free()
    host.all(utilization_gpu=utilization, gpm_graphics_active=float(utilization))
    return host


def found(host: WhyHost) -> list[Finding]:
    return [finding for finding in host.findings if finding.key == KEY]


def test_a_job_without_a_process_for_half_an_hour_is_found_in_shadow_and_ends_with_its_first_process() -> None:
    host = idle_host()
    host.minutes(MINUTES - 1)
    assert not found(host)
    host.minutes(2)
    (finding,) = found(host)
    assert finding.shadow
    assert host.health is Health.HEALTHY
    assert {name: finding.evidence[name] for name in ("job", "uid", "gpus")} == {
        "job": str(JOB),
        "uid": str(UID),
        "gpus": 2,
    }
    busy = WhyHost(2)
    host.gpus, host.job_facts = busy.gpus, busy.job_facts
    host.minutes(2)
    assert not found(host)


def test_a_job_at_work_is_not_found_nor_one_whose_processes_the_driver_does_not_show() -> None:
    for host in (WhyHost(2), idle_host(utilization=60)):
        host.minutes(2 * MINUTES)
        assert not found(host)


def test_it_ends_with_its_job() -> None:
    host = idle_host()
    host.minutes(MINUTES + 1)
    assert found(host)
    host.ends()
    host.minutes(3)
    assert not found(host)


def test_a_restart_of_the_daemon_clears_nothing_until_the_job_has_a_process() -> None:
    host = idle_host()
    host.minutes(MINUTES + 1)
    host.restart_daemon()
    host.minutes(MINUTES - 1)
    assert found(host)
    busy = WhyHost(2)
    host.gpus, host.job_facts = busy.gpus, busy.job_facts
    host.minutes(2)
    assert not found(host)


def test_a_job_whose_gpus_do_not_answer_is_not_found() -> None:
    """Its processes may hang on them, and nobody can list them."""
    for lost in ((0, 1), (0,)):
        host = WhyHost(2)
        host.minutes(5)
        host.all(utilization_gpu=0, gpm_graphics_active=0.0)
        host.free()
        for n in lost:
            host.answer(n, GpuAnswer.LOST)
        host.minutes(2 * MINUTES)
        assert not found(host)
