"""Series of jobs are of the newest ones, of a bounded number of them: of those that ended, without what ended well after a moment, and of those
that run, with what they used so far.
"""

from __future__ import annotations

from dataclasses import replace

from gpuwarden.features.why.metrics import MOST
from gpuwarden.features.why.model import NAME, Answer, Cause, End, Epoch, Record, Use
from gpuwarden.features.why.snapshot import Shown
from gpuwarden_collectors.facts import Stamp
from support.scrape import scrape
from support.snapshots import snapshot


def ended(number: int, cause: Cause = Cause.JOB, lasted: float = 5.0) -> Record:
    """A job that ended later than those of lower numbers."""
    began = Stamp(10.0 * number, 1_800_000_000.0 + 10.0 * number)
    end = Stamp(began.boottime + lasted, began.wall + lasted)
    return Record(
        epoch=Epoch(name=f"slurm/{number}", began=began),
        end=End(at=end, known_from="epilog"),
        answer=Answer(cause=cause),
    )


def jobs(metric: str, *records: Record) -> list[str]:
    page = scrape(replace(snapshot(), features={NAME: Shown(ended=records)}))
    return [sample.labels["job"] for sample in page.samples if sample.name == metric]


METRICS = (
    "gpuwarden_job_ended_info",
    "gpuwarden_job_ended_timestamp_seconds",
    "gpuwarden_job_cause_timestamp_seconds",
)


def running(number: int, use: Use) -> Epoch:
    """A job that began later than those of lower numbers."""
    return Epoch(name=f"slurm/{number}", began=Stamp(10.0 * number, 1_800_000_000.0 + 10.0 * number), use=use)


def used(*epochs: Epoch) -> dict[tuple[str, str], float]:
    """Return the series of what running jobs used, by metric and job."""
    page = scrape(replace(snapshot(), features={NAME: Shown(running=epochs)}))
    return {
        (sample.name.removeprefix("gpuwarden_job_"), sample.labels["job"]): sample.value
        for sample in page.samples
        if sample.name in USED
    }


USED = tuple(
    f"gpuwarden_job_{figure}" for figure in ("energy_joules", "busy_ratio", "idle_gpu_seconds", "throttled_gpu_seconds")
)


def test_each_metric_has_series_of_the_newest_jobs_only() -> None:
    records = [ended(number) for number in range(MOST + 36)]
    newest = {f"slurm/{number}" for number in range(36, MOST + 36)}
    assert [set(jobs(metric, *reversed(records))) for metric in METRICS] == [newest] * 3


def test_short_jobs_that_ended_well_take_no_place_of_others() -> None:
    short = [ended(number, Cause.NONE) for number in range(1, 2 * MOST)]
    assert jobs(METRICS[0], ended(0), *short, ended(2 * MOST, Cause.NONE, 600.0)) == ["slurm/0", f"slurm/{2 * MOST}"]


def test_jobs_that_run_have_what_they_used_so_far_and_nothing_that_was_not_measured() -> None:
    measured = Use(energy_j=7200.5, energy_covers=1.0, busy=0.875, idle_gpu_seconds=90.0, throttled_gpu_seconds=30.0)
    assert used(running(1, measured), running(2, Use(idle_gpu_seconds=5.0))) == {
        ("energy_joules", "slurm/1"): 7200.5,
        ("busy_ratio", "slurm/1"): 0.875,
        ("idle_gpu_seconds", "slurm/1"): 90.0,
        ("throttled_gpu_seconds", "slurm/1"): 30.0,
        ("idle_gpu_seconds", "slurm/2"): 5.0,
        ("throttled_gpu_seconds", "slurm/2"): 0.0,
    }


def test_of_more_jobs_than_have_series_the_newest_have() -> None:
    series = used(*(running(number, Use(energy_j=1.0, busy=0.5)) for number in range(MOST + 36)))
    assert {job for _, job in series} == {f"slurm/{number}" for number in range(36, MOST + 36)}
    assert len(series) == len(USED) * MOST
