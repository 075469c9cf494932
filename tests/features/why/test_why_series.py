"""Series of jobs that ended are of the newest ones, of a bounded number of them, and of none that ended well after a moment."""

from __future__ import annotations

from dataclasses import replace

from gpuwarden.features.why.metrics import MOST
from gpuwarden.features.why.model import NAME, Answer, Cause, End, Epoch, Record
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


def test_each_metric_has_series_of_the_newest_jobs_only() -> None:
    records = [ended(number) for number in range(MOST + 36)]
    newest = {f"slurm/{number}" for number in range(36, MOST + 36)}
    assert [set(jobs(metric, *reversed(records))) for metric in METRICS] == [newest] * 3


def test_short_jobs_that_ended_well_take_no_place_of_others() -> None:
    short = [ended(number, Cause.NONE) for number in range(1, 2 * MOST)]
    assert jobs(METRICS[0], ended(0), *short, ended(2 * MOST, Cause.NONE, 600.0)) == ["slurm/0", f"slurm/{2 * MOST}"]
