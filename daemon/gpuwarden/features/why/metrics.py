"""Jobs as metrics: those that ended in the last day with their cause, and what those that run used so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpuwarden.features.why.counts import counts
from gpuwarden.features.why.follows import code_of
from gpuwarden.features.why.model import Answer, Cause, Epoch, Record, Touch, Use
from gpuwarden.features.why.names import public_name
from gpuwarden.features.why.snapshot import of
from gpuwarden.publish.metrics.lines import COUNTER, GAUGE
from gpuwarden.publish.metrics.row import Metric, Sample
from gpuwarden.publish.snapshot import Snapshot

ENDED, ENDED_AT = "gpuwarden_job_ended_info", "gpuwarden_job_ended_timestamp_seconds"
CAUSE_AT = "gpuwarden_job_cause_timestamp_seconds"
_JOB = ("job",)
MOST = 64
"""Most series of one metric: those of the newest jobs."""
WELL_AT_LEAST = 600.0
"""Least seconds that a job which ended well must have run to have series: short ones would only fill Prometheus."""


def _infos(snapshot: Snapshot) -> Iterator[Sample]:
    for record in _newest(snapshot):
        epoch, answer = record.epoch, record.answer
        names = (epoch.user, epoch.job_name) if snapshot.service.publish_jobs else ("", "")
        yield (_name(epoch, snapshot), answer.cause.value, answer.certainty.value, answer.code, answer.slot, *names), 1


def _name(epoch: Epoch, snapshot: Snapshot) -> str:
    return public_name(epoch, names=snapshot.service.publish_jobs)


def _ended_at(snapshot: Snapshot) -> Iterator[Sample]:
    return (((_name(record.epoch, snapshot),), record.end.at.wall) for record in _newest(snapshot))


def _cause_at(snapshot: Snapshot) -> Iterator[Sample]:
    for record in _newest(snapshot):
        if record.answer.cause is not Cause.NONE:
            yield (_name(record.epoch, snapshot),), cause_at(record)


def cause_at(record: Record) -> float:
    """Return the wall time of the first touch that the answer is based on; of the end if it is based on none."""
    times = [touch.at.wall for touch in record.epoch.touches if _rests_on(record.answer, touch)]
    return min(times, default=record.end.at.wall)


def _rests_on(answer: Answer, touch: Touch) -> bool:
    return answer.code == (code_of(touch) or touch.what) and answer.slot in ("", touch.slot)


def _newest(snapshot: Snapshot) -> list[Record]:
    """Return one record for each job: the newest if its number was used twice."""
    by_name = {record.epoch.name: record for record in of(snapshot).ended if _is_worth_series(record)}
    return sorted(by_name.values(), key=lambda record: record.end.at.wall)[-MOST:]


def _is_worth_series(record: Record) -> bool:
    return record.answer.cause is not Cause.NONE or record.end.at.wall - record.epoch.began.wall >= WELL_AT_LEAST


def _ended(snapshot: Snapshot) -> Iterator[Sample]:
    """Return counts by cause, every cause from the start: no series appears only with its first job."""
    return (((cause.value,), counts(snapshot).get(cause, 0)) for cause in Cause)


def _used(name: str, value: Callable[[Use], float | None], text: str) -> Metric:
    """Return the row of what running jobs used so far; there is no series while it is None."""

    def samples(snapshot: Snapshot) -> Iterator[Sample]:
        for job in of(snapshot).running[-MOST:]:
            if (number := value(job.use)) is not None:
                yield (_name(job, snapshot),), number

    return Metric(name, GAUGE, _JOB, samples, text, default=False, omitted=_JOB)


METRICS: tuple[Metric, ...] = (
    Metric(
        ENDED,
        GAUGE,
        ("job", "cause", "certainty", "code", "pci_bus_id", "user", "job_name"),
        _infos,
        "Always 1, for each job that ended here in the last day, 64 at most, without those that ended well in less than 10 minutes. The labels are why: cause, its certainty, the Xid, finding or state that it "
        "rests on, and the GPU to blame. job is its name for gpuwarden why, such as slurm/4711 (without publish.publish_jobs user "
        "and job_name are empty, and a pod is named by its UID).",
        omitted=("job",),
    ),
    Metric(
        ENDED_AT,
        GAUGE,
        _JOB,
        _ended_at,
        "When the job ended here, Unix time, for each job of gpuwarden_job_ended_info.",
        omitted=_JOB,
    ),
    Metric(
        CAUSE_AT,
        GAUGE,
        _JOB,
        _cause_at,
        "When what ended the job was first seen here, Unix time; the time of its end if nothing was. Of several nodes of a job the smallest shows where it "
        "began, if its cause is certain or likely. No series for a job that ended well.",
        omitted=_JOB,
    ),
    Metric(
        "gpuwarden_jobs_ended_total",
        COUNTER,
        ("cause",),
        _ended,
        "Jobs with GPUs of this node that ended since the daemon started, by cause: none (it ended well), hardware, host, fabric, job (its own doing), "
        "scheduler (or an operator), notice, other_node, not_seen (nothing that this node saw).",
        default=False,
    ),
    _used(
        "gpuwarden_job_energy_joules",
        lambda use: use.energy_j,
        "Energy that the GPUs of a running job used since it began. No series while it was not measured.",
    ),
    _used(
        "gpuwarden_job_busy_ratio",
        lambda use: use.busy,
        "Share of its time in which kernels ran on the GPUs of a running job, since it began, 0 to 1. No series while it was not measured.",
    ),
    _used(
        "gpuwarden_job_idle_gpu_seconds",
        lambda use: use.idle_gpu_seconds,
        "GPU-seconds that a running job had GPUs without a process on them, since it began.",
    ),
    _used(
        "gpuwarden_job_throttled_gpu_seconds",
        lambda use: use.throttled_gpu_seconds,
        "GPU-seconds in which the GPUs of a running job were held down by heat or a power brake, since it began.",
    ),
)
