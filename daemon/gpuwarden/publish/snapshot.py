"""What is published: one immutable value per pass or event. Readers serve it; they compute nothing but its age."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpuwarden.health.model import Health, Verdict
from gpuwarden.policy.evacuation.model import Departure, Given
from gpuwarden.policy.model import Act, Notice, Standing, Why
from gpuwarden.publish.metrics.histogram import Histogram
from gpuwarden_collectors.base import PassOutcome, WorkerReport
from gpuwarden_collectors.dcgm.facts import DcgmFacts
from gpuwarden_collectors.facts import NvmlFacts, Stamp
from gpuwarden_collectors.slurm.jobs_facts import JobsFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorStatus:
    """The last pass of one collector. `duration` in seconds; `worker` for collectors with a process of their own."""

    name: str
    outcome: PassOutcome | None = None
    duration: float | None = None
    last_success: Stamp | None = None
    timeouts: int = 0
    error: str = ""
    worker: WorkerReport | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What does not change while the daemon runs. `interval` of the GPU pass and `fresh_for` in seconds.

    `publish_jobs`: names of users and jobs may be told to anybody.
    """

    node: str
    boot_id: str
    started: Stamp
    version: str
    mode: str
    simulated: bool
    interval: float
    fresh_for: float
    publish_jobs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class XidCount:
    """Xids of one number on one GPU since the ledger began; `last` is wall time, None if there was none yet."""

    slot: str
    xid: int
    count: int = 0
    last: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """An intent, and in `text` why it is not done yet."""

    act: Act
    actuator: str
    why: Why
    reason: str
    at: Stamp
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverState:
    """A receiver of notifications."""

    target: str
    """`webhook.NAME` or `exec.NAME`."""
    queued: int = 0
    """Messages that wait."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Messages by result since the daemon started."""
    error: str = ""
    """Why the last attempt failed; empty if it did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acted:
    """What is wanted of schedulers and what stands there. `excluded`: pairs of actuator and owner; `breaker`: why it is open.

    `would` is what mode observe does not do; `blocked`, by actuator, why what is wanted is not asked of it; `counts`, as
    `exclude_done`, what intents came to since the ledger began, of retry and refused what this process tried. `person`: findings after which only a person restores. `order`: the text of an
    operator's exclusion. `notice`: of all the
    `notices` the one that is imminent.
    """

    actuators: tuple[str, ...] = ()
    excluded: tuple[tuple[str, str], ...] = ()
    standings: Mapping[str, Standing] = field(default_factory=dict)
    pending: tuple[Wanted, ...] = ()
    would: tuple[Wanted, ...] = ()
    blocked: Mapping[str, str] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    breaker: str = ""
    person: tuple[str, ...] = ()
    order: str = ""
    notice: Notice | None = None
    notices: tuple[Notice, ...] = ()
    told: tuple[ReceiverState, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeSource:
    """Who may announce the end of this machine. `up`: it answers. `kinds`: what it may announce. `last`: its last good answer."""

    name: str
    up: bool
    kinds: tuple[str, ...] = ()
    trouble: str = ""
    last: Stamp | None = None


NOTICE_TO_SIGNAL = Histogram.of(0.05, 0.1, 0.2, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Departures:
    """Jobs that are told that their machine ends: the `departures` that go on, else the last one.

    `preview`: what is going to be done, or would be in mode enforce. `outcomes`: jobs told by this process, by what came of it.
    `answers`: of how many jobs each was had, as far back as the ledger knows.
    `signal_seconds`: from when a notice was known here to when a job was told. `trouble`: what is not known of who is
    here, and why jobs cannot be reached.
    """

    departures: tuple[Departure, ...] = ()
    preview: tuple[str, ...] = ()
    outcomes: Mapping[str, int] = field(default_factory=dict)
    answers: Mapping[Given, int] = field(default_factory=dict)
    signal_seconds: Histogram = NOTICE_TO_SIGNAL
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """Of the web server: `turned_away` had to make room for others; `refused` were not answered, by why."""

    turned_away: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLabels:
    """What the label `hpc_job` names: jobs by GPU, or by GPU and instance (`3`, `3.1`). `trouble`: what could not be read."""

    jobs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    trouble: str = ""


_NEXT = 0.001
"""Seconds by which something is older than it may be, where it is to be seen that it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """`sequence` grows, and `observed` moves, only when a GPU pass really observed. `nvml`, `dcgm` and `jobs` are None once
    they are not fresh. `hpc_jobs` is None where there is to be no such label. `errors`: why a component of the daemon does not work.
    """

    service: Service
    sequence: int
    made: Stamp
    observed: Stamp | None
    verdict: Verdict
    nvml: NvmlFacts | None = None
    dcgm: DcgmFacts | None = None
    jobs: JobsFacts | None = None
    collectors: tuple[CollectorStatus, ...] = ()
    xids: tuple[XidCount, ...] = ()
    site_failures: tuple[str, ...] = ()  # numbers of Xids that this site makes failures
    ready: bool = False
    excluded_by: tuple[str, ...] = ()
    notice: Mapping[str, object] | None = None
    acted: Acted = field(default_factory=Acted)
    departures: Departures = field(default_factory=Departures)
    notice_sources: tuple[NoticeSource, ...] = ()
    errors: Mapping[str, str] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)  # what could not be written: "log", "ledger", "files"
    log_gaps: int = 0
    log_lost: int = 0
    disbelieved: Mapping[str, int] = field(default_factory=dict)  # lines of the kernel log, by why they do not count
    clients: Clients = field(default_factory=Clients)
    hpc_jobs: JobLabels | None = None

    def age(self, now: Stamp) -> float | None:
        """Seconds since the last real observation; None before the first."""
        return None if self.observed is None else max(0.0, now.boottime - self.observed.boottime)

    def fresh(self, now: Stamp) -> bool:
        age = self.age(now)
        return age is not None and age <= self.service.fresh_for

    def lasts(self, now: Stamp) -> float:
        """Seconds for which what is shown of GPUs may be shown; not above 0 once it is too old, infinite where nothing is."""
        age = self.age(now)
        return math.inf if self.nvml is None or age is None else self.service.fresh_for - age + _NEXT

    def health(self, now: Stamp) -> Health:
        """The verdict as it stands at `now`: anything but a failure is unknown once the observation is not fresh."""
        if self.verdict.health is Health.FAILURE:
            return Health.FAILURE
        return self.verdict.health if self.fresh(now) else Health.UNKNOWN

    def schedulable(self, now: Stamp) -> bool:
        return self.health(now) in (Health.HEALTHY, Health.WARNING) and not self.excluded_by and self.notice is None
