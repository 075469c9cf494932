"""Slurm's numbers of GPUs become slots, and jobs are named where they belong: in findings, metrics and the verdict."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwarden.health.gpu.job_detectors import gpu_held_after_job
from gpuwarden.health.gpu.jobs import GpuJob, on_gpus, order, under
from gpuwarden.health.model import NODE, GpuVerdict, Health, Severity, Subject, gpu
from gpuwarden.health.state import State
from gpuwarden.health.view import Rules, Sight, View
from gpuwarden.publish.files.verdict import verdict_text
from gpuwarden.publish.metrics.table import METRICS
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden_collectors.base import Observation, PassOutcome
from gpuwarden_collectors.facts import GpuFacts, GpuProcess, MigInstance, NvmlFacts
from gpuwarden_collectors.slurm.jobs_facts import Job, JobProcess, JobsFacts
from support.snapshots import UPTIME, at, finding, missing, slot, snapshot

SLOTS = [slot(n) for n in range(4)]


def gpus(*minors: int | None, processes: tuple[int, ...] = ()) -> dict[str, GpuFacts]:
    """Return GPUs in the first slots with these minor numbers; the processes are on the first one."""
    return {
        slot(n): GpuFacts(
            slot=slot(n), index=n, minor=minor,
            processes=tuple(GpuProcess(pid=pid) for pid in processes) if n == 0 else (),
        )
        for n, minor in enumerate(minors)
    }  # fmt: skip


def test_without_files_slurm_counts_along_the_pci_addresses_the_lost_ones_too() -> None:
    assert order(SLOTS[::-1], gpus(0, 1)) == tuple(SLOTS)


def test_files_are_found_by_their_minor_numbers_wherever_they_are() -> None:
    assert order(SLOTS, gpus(3, 2, 1, 0), (0, 1, 2, 3)) == tuple(SLOTS[::-1])
    assert order(SLOTS, gpus(0, 1, 2, 3), (2, 3)) == (SLOTS[2], SLOTS[3])


def test_a_lost_gpu_keeps_its_number_and_no_other_gets_it() -> None:
    listed = {key: value for key, value in gpus(0, 1, 2, 3).items() if key != SLOTS[1]}
    assert order(SLOTS, listed, (0, 1, 2, 3)) == tuple(SLOTS)
    moved = gpus(3, None, 1, 0)  # a lost GPU cannot be identified by its position
    assert order(SLOTS, moved, (2,)) == ("",)


def test_each_mig_instance_counts() -> None:
    listed = gpus(0, 1)
    two = (MigInstance(gpu_instance=1, compute_instance=0), MigInstance(gpu_instance=2, compute_instance=0))
    listed[SLOTS[0]] = replace(listed[SLOTS[0]], mig=two)
    assert order(SLOTS[:2], listed) == (SLOTS[0], SLOTS[0], SLOTS[1])


FACTS = JobsFacts(
    jobs=(
        Job(id=11, uid=1001, user="alice", job_name="train", gpus=(0, 1), started=5.0),
        Job(id=12, uid=1002, gpus=(1, 99), started=5.0, ended=50.0),
        Job(id=13, uid=1003),
    ),
    processes=(
        JobProcess(pid=71, uid=1001, job=11, known_from="cgroup"),
        JobProcess(pid=72, uid=1002, job=12, known_from="environ", ended=50.0),
        JobProcess(pid=73, uid=1003, job=13, known_from="environ"),
        JobProcess(pid=74, uid=0),
    ),
)


def test_a_job_is_on_what_it_was_given_and_on_what_it_uses() -> None:
    jobs_by_slot = on_gpus(FACTS, SLOTS, gpus(0, 1, 2, 3, processes=(71, 72, 73, 74, 75)))
    assert jobs_by_slot == {
        SLOTS[0]: (
            GpuJob(slot=SLOTS[0], job=11, uid=1001, user="alice", job_name="train", pids=(71,)),
            GpuJob(slot=SLOTS[0], job=12, uid=1002, pids=(72,), ended=True),
            GpuJob(slot=SLOTS[0], job=13, uid=1003, pids=(73,)),
        ),
        SLOTS[1]: (GpuJob(slot=SLOTS[1], job=11, uid=1001, user="alice", job_name="train"),),
    }


def sight(jobs: JobsFacts | None, processes: tuple[int, ...] = (71, 72, 73, 74)) -> Sight:
    now = at(UPTIME)
    view = View(boot_id="a-boot")
    nvml = NvmlFacts(gpus=tuple(gpus(0, 1, processes=processes).values()))
    for name, facts in (("nvml", nvml), ("jobs", jobs)):
        if facts is not None:
            view = view.after(
                Observation(collector=name, outcome=PassOutcome.OBSERVED, started=now, finished=now, facts=facts)
            )
    return Sight.of(view, Rules(), now)


def test_who_holds_a_gpu_after_the_job_is_found_with_its_processes() -> None:
    result = gpu_held_after_job(State(), sight(FACTS))
    (sighting,) = result.sightings
    assert sighting.key.subject == gpu(SLOTS[0])
    assert sighting.evidence == {"job": "12", "uid": "1002", "pids": "72", "processes": 1}
    assert result.examined == {gpu(SLOTS[0]), gpu(SLOTS[1])}


def test_without_readings_of_jobs_nothing_is_reported() -> None:
    assert gpu_held_after_job(State(), sight(None)).examined == frozenset()
    assert gpu_held_after_job(State(), sight(FACTS, processes=())).sightings == ()


def test_a_finding_names_the_jobs_that_were_there_when_it_was_first_seen() -> None:
    first = under({"xid": 79}, None, sight(FACTS, processes=()), SLOTS, SLOTS[1])
    assert first == {"xid": 79, "job": "11", "uid": "1001"}
    later = JobsFacts(jobs=(Job(id=99, uid=1, gpus=(1,), started=9.0),))
    assert under({"xid": 79}, first, sight(later), SLOTS, SLOTS[1]) == first
    assert under({"xid": 79}, {"xid": 79}, sight(later), SLOTS, SLOTS[1]) == {"xid": 79}, "it was there before the job"
    assert (
        under({"x": 1}, None, sight(FACTS), SLOTS, "")
        == under({"x": 1}, None, sight(None), SLOTS, SLOTS[0])
        == {"x": 1}
    )


def published(shown: Snapshot) -> list[tuple[str, ...]]:
    (metric,) = (metric for metric in METRICS if metric.name == "gpuwarden_gpu_job_info")
    return [labels for labels, value in metric.samples(shown) if value == 1]


@pytest.mark.parametrize("publish", [False, True])
def test_names_are_published_only_on_request(publish: bool) -> None:
    shown = replace(snapshot(2), jobs=FACTS)
    shown = replace(shown, service=replace(shown.service, publish_jobs=publish))
    names = ("alice", "train") if publish else ("", "")
    assert published(shown) == [(str(n), f"GPU-{n:04d}", slot(n), "11", *names, "", "", "") for n in (0, 1)]
    assert published(snapshot(2)) == []


def test_a_gpu_that_is_gone_fails_under_slurm_s_number() -> None:
    """NVML has no index for it any more, and may give that number to another GPU."""
    text = verdict_text(missing(snapshot(4), 1), at(UPTIME))
    assert "gres.0=healthy\ngres.1=failure\ngres.2=healthy\ngres.3=healthy\n" in text
    assert "gpu.1=" not in text


@pytest.mark.parametrize(
    ("subject", "severity", "shadow", "state"),
    [
        (gpu(slot(0)), Severity.FAILURE, False, "healthy"),
        (Subject("link", slot(0), "3"), Severity.FAILURE, False, "healthy"),
        (NODE, Severity.FAILURE, False, "failure"),
        (NODE, Severity.FAILURE, True, "healthy"),
        (Subject("switch", "0000:05:00.0"), Severity.FAILURE, False, "failure"),
        (Subject("mount", "", "/data"), Severity.WARNING, False, "warning"),
    ],
    ids=str,
)
def test_the_verdict_separates_faults_of_the_node(
    subject: Subject, severity: Severity, shadow: bool, state: str
) -> None:
    shown = snapshot(2, findings=[replace(finding("code", subject, severity), shadow=shadow)])
    assert f"\nnode_state={state}\n" in verdict_text(shown, at(UPTIME))


def test_a_host_with_no_gpus_has_no_numbers_to_give() -> None:
    gone = GpuVerdict(slot=slot(0), health=Health.UNKNOWN, index=None, present=False)
    shown = snapshot(0)
    assert "gres." not in verdict_text(shown, at(UPTIME))
    shown = replace(shown, verdict=replace(shown.verdict, gpus=(gone,)), nvml=None)
    assert "gres.0=unknown\n" in verdict_text(shown, at(UPTIME))
