"""Deaths on busy nodes by what happens to a GPU: their own, another's, one before or after them."""

from __future__ import annotations

import time

from features.why.deaths import NO_HARDWARE, UNEXPLAINED, Death, Play, Played, Stage
from gpuwarden.features.why.model import Cause, Certainty
from support.daemons import slots
from support.death_rig import GPUS, Job

_SURE = (Certainty.CERTAIN, Certainty.LIKELY)
_AFTER = 3.0
"""Seconds after its end, in which a driver may yet report what it did to a job."""
_ECC = ("ecc_uncorrected_volatile", "ecc_uncorrectable")


def by_xids(*numbers: int, order: str = "exit 1", named: bool = True, blamed: int | None = None) -> Play:
    """Its GPU has these, and it ends by the order a moment later."""

    def play(stage: Stage, job: Job) -> Played:
        if named:
            stage.knows(job)
        stage.xid(job, *numbers, named=named, gpu=blamed or 0)
        return stage.of(stage.ends(job, order), blamed)

    return play


def reset_after_48(stage: Stage, job: Job) -> Played:
    stage.xid(job, 48, named=False)
    stage.ends(job, "kill -ABRT $$")
    stage.node.kernel_line(f"nvidia {slots(GPUS)[stage.at(job)]}: reset done")
    return stage.of(job, 0)


def lost(gpu: int) -> Play:
    """The driver gives up this one of its GPUs, and every call about it fails from then on."""

    def play(stage: Stage, job: Job) -> Played:
        stage.xid(job, 79, named=False, gpu=gpu)
        stage.node.changes(lambda: stage.node.fake.lost(stage.at(job, gpu)))
        return stage.of(stage.ends(job, "kill -ABRT $$"), gpu)

    return play


def reads(stage: Stage, job: Job, reading: str, code: str) -> None:
    """The reading of its GPU becomes 1, and that is found."""
    stage.knows(job)
    stage.node.changes(lambda: stage.node.fake.reading(stage.at(job), reading, 1))
    stage.finds(code, slots(GPUS)[stage.at(job)])


def ecc_reading(stage: Stage, job: Job) -> Played:
    reads(stage, job, *_ECC)
    return stage.of(stage.ends(job), 0)


def ecc_beside(stage: Stage, job: Job, other: Job) -> Played:
    stage.knows(job)
    reads(stage, other, *_ECC)
    stage.ends(job)
    stage.ends(other, "exit 0")
    return stage.of(job)


def warned(stage: Stage, job: Job) -> Played:
    """Its GPU waits for a reset to remap a row, and works on."""
    reads(stage, job, "remapped_rows_pending", "row_remap_pending")
    return stage.of(stage.ends(job, "exit 0"))


def beside(number: int, order: str) -> Play:
    """The job of another GPU has the Xid, and dies first."""

    def play(stage: Stage, job: Job, other: Job) -> Played:
        stage.knows(other)
        stage.xid(other, number, named=number in (13, 31, 43))
        stage.ends(other, "kill -ABRT $$")
        return stage.of(stage.ends(job, order))

    return play


def before(number: int) -> Play:
    """The job before it on the same GPU had the Xid."""

    def play(stage: Stage, first: Job) -> Played:
        stage.xid(first, number)
        gpu = stage.at(first)
        stage.ends(first)
        jobs = [stage.job()]
        while stage.at(jobs[-1]) != gpu:  # Slurm gave it another one that is free
            jobs.append(stage.job())
        for job in jobs[:-1]:
            stage.ends(job, "exit 0")
        return stage.of(stage.ends(jobs[-1]))

    return play


def afterwards(stage: Stage, job: Job) -> Played:
    stage.ends(job, "exit 0")
    time.sleep(_AFTER)
    stage.xid(job, 79, named=False)
    return stage.of(job)


def names_another(stage: Stage, job: Job) -> Played:
    """A process that no scheduler placed is on its GPU, too, and has the page fault."""
    with stage.node.process(stage.at(job)) as other:
        stage.node.its_daemon.wait(lambda: stage.node.tells(f"session/{other}"), "it to know that process")
        stage.node.xid_at(stage.at(job), 31, other)
    return stage.of(stage.ends(job))


GPU_DEATHS = (
    Death("Xid 31 in its process", by_xids(31), Cause.JOB, ("xid.31",), _SURE),
    Death("Xid 13 in its process", by_xids(13), Cause.JOB, ("xid.13",), _SURE, alike=True),
    Death("Xid 43 in its process", by_xids(43), Cause.JOB, ("xid.43",), _SURE, alike=True),
    Death("Xid 31, then 43 and 45", by_xids(31, 43, 45), Cause.JOB, ("xid.31",), _SURE),
    Death("Xid 31 that names no process", by_xids(31, named=False), Cause.JOB, ("xid.31",)),
    Death("Xid 31 on one of two GPUs", by_xids(31), Cause.JOB, ("xid.31",), _SURE, jobs=(2,), alike=True),
    Death("Xid 94 on its GPU", by_xids(94, blamed=0), Cause.HARDWARE, ("xid.94",)),
    Death("Xid 95 on its GPU", by_xids(95, named=False, blamed=0), Cause.HARDWARE, ("xid.95",), alike=True),
    Death("Xid 48, and a reset", reset_after_48, Cause.HARDWARE, ("xid.48",)),
    Death("Xid 48, then 63, 94, 31 and 43", by_xids(48, 63, 94, 31, 43, blamed=0), Cause.HARDWARE, ("xid.48",)),
    Death("Xid 79, GPU lost", lost(0), Cause.HARDWARE, ("xid.79",), alike=True),
    Death("Xid 79 on the second of three GPUs", lost(1), Cause.HARDWARE, ("xid.79",), jobs=(3,)),
    Death("Xid 119, GSP", by_xids(119, order="kill -ABRT $$", blamed=0), Cause.HARDWARE, ("xid.119",), alike=True),
    Death("Xid 109, context switch", by_xids(109, blamed=0), Cause.HARDWARE, ("xid.109",), alike=True),
    Death("Xid 74, NVLink", by_xids(74, order="kill -ABRT $$", named=False), Cause.FABRIC, ("xid.74",), jobs=(2,)),
    Death("an uncorrected error is counted", ecc_reading, Cause.HARDWARE, ("ecc_uncorrectable",)),
    Death("an uncorrected error on a GPU that it had not", ecc_beside, UNEXPLAINED, jobs=(1, 1)),
    Death("Xid 94 in another job's GPU", beside(94, "exit 1"), UNEXPLAINED, jobs=(1, 1)),
    Death("Xid 79 in another job's GPU", beside(79, "exit 1"), UNEXPLAINED, jobs=(1, 1), alike=True),
    Death("ended well beside a GPU with Xid 95", beside(95, "exit 0"), Cause.NONE, jobs=(1, 1)),
    Death("ended well beside a job with Xid 31", beside(31, "exit 0"), Cause.NONE, jobs=(1, 1), alike=True),
    Death("killed itself beside a job with Xid 31", beside(31, "kill -KILL $$"), UNEXPLAINED, jobs=(1, 1), alike=True),
    Death("Xid 31 of the job before", before(31), UNEXPLAINED, later=2, alike=True),
    Death("Xid 94 of the job before", before(94), UNEXPLAINED, later=2),
    Death("Xid 31 in another process on its GPU", names_another, UNEXPLAINED, alike=True),
    Death("Xid 92, and exit code 1", by_xids(92, named=False), NO_HARDWARE),
    Death("ended well on a GPU with a warning", warned, Cause.NONE),
    Death("ended well after Xid 63", by_xids(63, order="exit 0", named=False), Cause.NONE, alike=True),
    Death("GPU lost after it ended well", afterwards, Cause.NONE),
)
