"""Turns acknowledgements of saves (through the socket, a file, or the end of a process) into events.

None is required: without one the evacuation waits for a job until its time is up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from itertools import islice
from pathlib import Path

from gpuwarden.base.log import get_logger
from gpuwarden.base.threads import detached
from gpuwarden.features.evacuation.acknowledge import Acknowledged as BySocket
from gpuwarden.features.evacuation.policy.delivery import SIGNALLED_MOST
from gpuwarden.features.evacuation.policy.events import saved
from gpuwarden.features.evacuation.policy.model import (
    BY_EXIT,
    EvacuationState,
    JobState,
    jobs_of,
    key_of,
    open_evacuations,
)
from gpuwarden.health.model import Event
from gpuwarden_collectors.acknowledgements.exits import Process, ended
from gpuwarden_collectors.acknowledgements.files import AcknowledgementFiles, FilesRead
from gpuwarden_collectors.base import Clock, CollectorError
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.receivers.facts import LocalJob

READ_WITHIN = 2.0
"""Seconds to read all files and process ends once; 512 take some tens of milliseconds."""

log = get_logger()


@dataclass(frozen=True, slots=True)
class _Read:
    files: FilesRead
    ended: frozenset[Process] = field(default_factory=frozenset)


class Acknowledgements:
    def __init__(self, run_dir: Path, proc: Path, *, boot_id: str, clock: Clock) -> None:
        self._files = AcknowledgementFiles(run_dir)
        self._proc = proc
        self._boot_id = boot_id
        self._clock = clock
        self._folders: dict[str, tuple[str, int]] = {}  # job: its folder and its user
        self._refused: frozenset[str] = frozenset()
        self._reading: asyncio.Future[_Read] | None = None

    # --- folders

    async def expect(self, jobs: Sequence[LocalJob]) -> None:
        """Create a folder for the acknowledgements of each job whose user is known. Users choose its name: of two jobs
        with one name, the first gets it.
        """
        taken = {folder for folder, _ in self._folders.values()}
        new: dict[str, tuple[str, int]] = {}
        for job in jobs:
            key, folder = key_of(job), job.folder or job.id
            if job.uid is not None and key not in self._folders and folder not in taken:
                new[key] = folder, job.uid
                taken.add(folder)
        if new:
            self._folders |= new
            await asyncio.wait((detached("acknowledgements", lambda: self._make(new)),), timeout=READ_WITHIN)

    def _make(self, new: Mapping[str, tuple[str, int]]) -> None:
        for folder, uid in new.values():
            try:
                self._files.make(folder, uid)
            except CollectorError as error:
                log.warning("no folder for acknowledgements", reason=str(error))

    async def forget(self) -> None:
        """Stop waiting for jobs, and remove the acknowledgement files left here: no end is imminent any more."""
        self._folders = {}
        removing = detached("acknowledgements", self._files.remove_all)
        await asyncio.wait((removing,), timeout=READ_WITHIN)
        if removing.done() and (left := removing.result()):
            log.warning("not all acknowledgements were removed", reason=left)

    # --- new acknowledgements

    def by_socket(self, reported: BySocket) -> Event:
        return saved(
            reported.job,
            "socket",
            saved=reported.saved,
            rank=reported.rank,
            process=(reported.pid, reported.started),
            step=reported.step,
            all_ranks=reported.all_ranks,
            boot_id=self._boot_id,
            now=self._clock(),
        )

    async def news(self, state: EvacuationState) -> list[Event]:
        """Return events for acknowledgements that are new since `state`."""
        jobs = jobs_of(state)
        read = await self._read(jobs)
        if read is None:
            return []
        self._complain(read.files)
        notices = frozenset(open_evacuations(state))
        return [*self._of_files(read.files, jobs, notices), *self._of_ended(read.ended, jobs)]

    def misses(self, state: EvacuationState, jobs: Sequence[LocalJob]) -> bool:
        """Return True if a signalled process is alive but not among `jobs`: it may still be saving."""
        here = {(process.pid, process.started) for job in jobs for process in job.processes}
        signalled = {process for job in jobs_of(state).values() for process in job.signalled} - here
        return bool(signalled - ended(signalled, self._proc))

    async def _read(self, jobs: Mapping[str, JobState]) -> _Read | None:
        """Read the acknowledgement files, and which processes ended. None while an earlier read hangs."""
        if self._reading is None:
            folders = dict(self._folders.values())
            signalled = {process for job in jobs.values() for process in job.signalled - job.acknowledged.processes}
            self._reading = detached(
                "acknowledgements", lambda: _Read(self._files.read(folders), ended(signalled, self._proc))
            )
        reading = self._reading
        await asyncio.wait((reading,), timeout=READ_WITHIN)
        if not reading.done():
            return None
        self._reading = None
        return reading.result()

    def _of_files(self, files: FilesRead, jobs: Mapping[str, JobState], notices: frozenset[str]) -> Iterator[Event]:
        keys = {folder: job for job, (folder, _) in self._folders.items()}
        for folder, acknowledgements in files.acknowledgements.items():
            job = keys.get(folder, "")
            if job not in jobs:
                continue
            answers = (answer for answer in acknowledgements if answer.notice in notices)
            new_answers = (answer for answer in answers if is_news(jobs[job], answer.rank, all_ranks=answer.all_ranks))
            for answer in islice(new_answers, SIGNALLED_MOST):
                yield saved(
                    job,
                    "file",
                    saved=answer.saved,
                    rank=answer.rank,
                    step=answer.step,
                    all_ranks=answer.all_ranks,
                    boot_id=self._boot_id,
                    now=self._clock(),
                )

    def _of_ended(self, gone: frozenset[Process], jobs: Mapping[str, JobState]) -> Iterator[Event]:
        for job, state in jobs.items():
            for process in sorted(state.signalled & gone - state.acknowledged.processes):
                yield saved(job, BY_EXIT, saved=False, process=process, boot_id=self._boot_id, now=self._clock())

    def _complain(self, files: FilesRead) -> None:
        """Log each refused file once, since users can put anything there."""
        for text in frozenset(files.refused) - self._refused:
            log.warning("an acknowledgement is not accepted", reason=text)
        self._refused = frozenset(files.refused)


def is_news(job_state: JobState, rank: int, process: Process | None = None, *, all_ranks: bool = False) -> bool:
    """Return True if the acknowledgement is new, and within the limit, since users can repeat it at will."""
    before = job_state.acknowledged
    if all_ranks and not before.all_ranks:
        return True
    if len(before.ranks) >= SIGNALLED_MOST or len(before.processes) >= 2 * SIGNALLED_MOST:
        return False
    if process in job_state.signalled | job_state.earlier:
        return process not in before.processes
    return rank not in before.ranks or (process is not None and process not in before.processes)
