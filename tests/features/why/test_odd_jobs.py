"""A job whose facts raise is named, and costs no other job its record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuwarden.features.why.model import Cause
from gpuwarden_collectors.slurm.jobs_facts import Job, JobsFacts
from support.hosts import slot
from support.job_hosts import JOB, UID
from support.why_hosts import WhyHost, workload

ODD: Any = None
"""Where facts have a text."""


def fault(host: WhyHost) -> str:
    return " ".join(str(finding.evidence["why"]) for finding in host.findings if finding.key.code == "collector_failed")


def odd_of_slurm(host: WhyHost) -> None:
    """Let a job be here that cannot be made out."""
    assert host.job_facts is not None
    odd = Job(id=7, uid=UID, user=ODD, gpus=(0,), started=host.uptime, ended=host.uptime)
    host.job_facts = replace(host.job_facts, jobs=(odd, *host.job_facts.jobs))


def odd_container(host: WhyHost) -> None:
    """Let a container be here that cannot be written down."""
    host.runs(workload(host, slots=(slot(0), ODD)))


@pytest.mark.parametrize(
    ("odd", "name"), [(odd_of_slurm, "slurm/7"), (odd_container, "container/0123456789ab")], ids=["made", "written"]
)
def test_a_job_whose_facts_raise_is_named_and_all_others_have_their_record(odd: Any, name: str) -> None:
    host = WhyHost(2)
    host.run(10)
    odd(host)
    host.run(65)
    host.step(host.xid(1, 119))
    host.run(120)
    assert f"why: {name} is no longer followed: TypeError" in fault(host)
    assert host.job_facts is not None
    host.job_facts = replace(host.job_facts, jobs=(replace(host.job_facts.jobs[-1], ended=host.uptime),), processes=())
    host.free()
    record = host.settles()
    assert (record.epoch.id, record.answer.cause) == (str(JOB), Cause.HARDWARE)
    assert [job_record.epoch.name for job_record in host.records] == [f"slurm/{JOB}"]


def test_a_later_job_of_its_number_is_followed() -> None:
    host = WhyHost(2)
    host.run(10)
    odd_of_slurm(host)
    host.run(10)
    host.job_facts = JobsFacts()
    host.free()
    host.run(30)
    host.job_facts = JobsFacts(jobs=(Job(id=7, uid=UID, gpus=(0,), started=host.uptime, ended=host.uptime + 5),))
    host.settles()
    host.run(10)
    assert "slurm/7" in [record.epoch.name for record in host.records]


def test_a_pod_is_named_by_its_uid_alone() -> None:
    host = WhyHost(2)
    host.without_slurm()
    host.runs(workload(host, "pod/default/train-0", also=("pod/0-1",), slots=(slot(0), ODD)))
    host.run(180)
    assert "why: pod/0-1 is no longer followed" in fault(host)
    assert "train-0" not in fault(host)
