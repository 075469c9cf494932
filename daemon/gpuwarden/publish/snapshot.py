"""The published state: one immutable value per pass or event. Readers compute only its age."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from gpuwarden.base.process_usage import ProcessUsage
from gpuwarden.health.gpu.pods import PodsOnGpus
from gpuwarden.health.model import Health, Verdict
from gpuwarden.health.runbooks import RUNBOOKS
from gpuwarden.policy.model import Intent, NodeState, Notice
from gpuwarden.policy.state import Override
from gpuwarden.publish.metrics.histogram import Histogram
from gpuwarden_collectors.base import PassOutcome, WorkerReport
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.dcgm.facts import DcgmFacts
from gpuwarden_collectors.facts import NvmlFacts, Stamp
from gpuwarden_collectors.host_facts import InfinibandFacts
from gpuwarden_collectors.slurm.jobs_facts import JobsFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorStatus:
    """The last pass of one collector."""

    name: str
    outcome: PassOutcome | None = None
    """The outcome; None before the first pass."""
    duration: float | None = None
    """Seconds that the last pass took."""
    last_success: Stamp | None = None
    """Time of the last pass that observed."""
    timeouts: int = 0
    """Passes that missed their deadline, since the daemon started."""
    error: str = ""
    """Error of the last pass; empty if it did not fail."""
    worker: WorkerReport | None = None
    """The worker, for collectors with a separate process."""


NVML_PASSES = Histogram.of(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Durations of passes over the GPUs in seconds: some hundredths for 8 idle GPUs, several seconds with a slow driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Properties of the daemon that do not change while it runs."""

    node: str
    boot_id: str
    started: Stamp
    version: str
    mode: str
    simulated: bool
    interval: float
    """Seconds between GPU passes."""
    fresh_for: float
    """Seconds for which an observation is current."""
    publish_jobs: bool = False
    """Names of users and jobs may be published."""
    runbooks: str = RUNBOOKS
    """URL of the folder with the runbooks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class XidCount:
    """Xids of one number on one GPU since the start of the ledger."""

    slot: str
    """PCI address of the GPU."""
    xid: int
    count: int = 0
    last: float | None = None
    """Unix time of the last one; None if there was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """An intent that is not done yet."""

    intent: Intent
    text: str
    """Reason for which it is not done yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverState:
    """A receiver of notifications."""

    target: str
    """`webhook.NAME` or `exec.NAME`."""
    queued: int = 0
    """Waiting messages."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Messages by result since the daemon started."""
    error: str = ""
    """Error of the last attempt; empty if it did not fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enforced:
    """Enforcement: the state intended for the schedulers, and the state that they report."""

    actuators: tuple[str, ...] = ()
    """Names of all configured actuators."""
    excluded: tuple[tuple[str, str], ...] = ()
    """Pairs of actuator and owner."""
    node_states: Mapping[str, NodeState] = field(default_factory=dict)
    """The last state read, by actuator."""
    pending: tuple[Wanted, ...] = ()
    """Intents that are not done yet."""
    would: tuple[Wanted, ...] = ()
    """Intents that mode observe does not carry out."""
    blocked: Mapping[str, str] = field(default_factory=dict)
    """By actuator: reason for which its intent is not carried out."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Outcomes of intents, such as `exclude_done`, since the start of the ledger; for retry and refused, attempts of
    this process."""
    breaker: str = ""
    """Reason for which the breaker is open; empty if it is closed."""
    person: tuple[str, ...] = ()
    """Findings after which only an operator restores the node."""
    person_why: tuple[str, ...] = ()
    """Reasons, for findings whose kind does not imply one."""
    order: str = ""
    """The text of an operator's exclusion."""
    overridden: tuple[str, ...] = ()
    """Active failures that an operator overrode, so that they do not exclude the node."""
    override: Override | None = None
    """The override by that operator."""
    notice: Notice | None = None
    """The imminent notice among `notices`."""
    notices: tuple[Notice, ...] = ()
    """All termination notices in force."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeSource:
    """A source of termination notices."""

    name: str
    up: bool
    """True if it answers."""
    kinds: tuple[str, ...] = ()
    """Kinds of notices that it may announce."""
    error: str = ""
    """Reason for which it does not answer; empty if it does."""
    last: Stamp | None = None
    """Its last valid answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """Clients of the web server."""

    turned_away: int = 0
    """Connections closed to make room for new ones."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Refused requests, by reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLabels:
    """The jobs of the label `hpc_job`."""

    jobs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Jobs by GPU, or by GPU and instance (`3`, `3.1`)."""
    error: str = ""
    """Files that could not be read; empty if all were."""


_NEXT = 0.001
"""Seconds after the limit at which a page is renewed, so that its age is certainly above the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The daemon's published state."""

    service: Service
    sequence: int
    """Increases only with a GPU pass that observed."""
    made: Stamp
    """Time of this snapshot."""
    observed: Stamp | None
    """Time of the last GPU pass that observed."""
    verdict: Verdict
    nvml: NvmlFacts | None = None
    """None if not fresh, like the next three."""
    dcgm: DcgmFacts | None = None
    jobs: JobsFacts | None = None
    infiniband: InfinibandFacts | None = None
    pods: PodsOnGpus | None = None
    """Pods; None without a current response of kubelet."""
    machine: tuple[str, ...] = ()
    """Values of `MACHINE_LABELS`, as last seen."""
    collectors: tuple[CollectorStatus, ...] = ()
    xids: tuple[XidCount, ...] = ()
    site_failures: tuple[str, ...] = ()
    """Numbers of Xids that are failures by the site's configuration."""
    ready: bool = False
    """The first full pass is done."""
    enforced: Enforced = field(default_factory=Enforced)
    receivers: tuple[ReceiverState, ...] = ()
    """Receivers of notifications."""
    features: Mapping[str, Any] = field(default_factory=dict)
    """The published data of each feature."""
    notice_sources: tuple[NoticeSource, ...] = ()
    errors: Mapping[str, str] = field(default_factory=dict)
    """By component of the daemon: its error."""
    process: ProcessUsage | None = None
    """Resource usage of the daemon's process; None if it cannot be read, or without a daemon."""
    nvml_passes: Histogram = NVML_PASSES
    """Durations of all passes over the GPUs since the start, in seconds."""
    feature_errors: Mapping[str, int] = field(default_factory=dict)
    """Number of exceptions, by feature."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Dropped writes, by kind: "log", "ledger", "files"."""
    log_gaps: int = 0
    """Number of times that kernel log records were overwritten before they were read."""
    log_lost: int = 0
    """Records lost in these gaps."""
    disbelieved: Mapping[str, int] = field(default_factory=dict)
    """Ignored lines of the kernel log, by reason."""
    clients: Clients = field(default_factory=Clients)
    hpc_jobs: JobLabels | None = None
    """Jobs of the label `hpc_job`; None if it is not configured."""

    @property
    def excluded_by(self) -> tuple[str, ...]:
        """Owners that exclude the node: `actuator:owner`, or the owner alone without an actuator."""
        return tuple(f"{actuator}:{owner}" if actuator else owner for actuator, owner in self.enforced.excluded)

    def age(self, now: Stamp) -> float | None:
        """Return the seconds since the last observation; None before the first."""
        return None if self.observed is None else max(0.0, now.boottime - self.observed.boottime)

    def fresh(self, now: Stamp) -> bool:
        age = self.age(now)
        return age is not None and age <= self.service.fresh_for

    def lasts(self, now: Stamp) -> float:
        """Return the seconds for which GPU readings may still be shown; infinite if there are none."""
        age = self.age(now)
        return math.inf if self.nvml is None or age is None else self.service.fresh_for - age + _NEXT

    def health(self, now: Stamp) -> Health:
        """Return the health at `now`: if the observation is not fresh, unknown unless it is a failure."""
        if self.verdict.health is Health.FAILURE:
            return Health.FAILURE
        return self.verdict.health if self.fresh(now) else Health.UNKNOWN

    def schedulable(self, now: Stamp) -> bool:
        return (
            self.health(now) in (Health.HEALTHY, Health.WARNING)
            and not self.excluded_by
            and self.enforced.notice is None
        )
