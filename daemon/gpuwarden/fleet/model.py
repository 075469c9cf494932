"""Values of the fleet: one row for each node."""

from __future__ import annotations

from enum import StrEnum

from gpuwarden.fleet.status import Status
from gpuwarden.prometheus.client import Sample
from gpuwarden_collectors.dataclass import dataclass

Key = tuple[str, str, str]
"""The labels cluster (empty if there is none), job and instance."""


def key_of(sample: Sample) -> Key:
    labels = sample.labels
    return labels.get("cluster", ""), labels.get("job", ""), labels.get("instance", "")


class Out(StrEnum):
    """The last recorded scheduler state of a silent node: what excluded it."""

    NOBODY = "nobody"
    FAILURE = "failure"
    PLANNED = "planned"


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    check: str
    severity: str
    gpu: str
    pci_bus_id: str
    detail: str
    title: str
    advice: str


@dataclass(frozen=True, slots=True)
class Notice:
    """A termination notice. `seconds_left` is None while the deadline is uncertain, and negative once it has passed."""

    source: str
    kind: str
    seconds_left: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A node as Prometheus reports it.

    `node` is the instance if the name is unknown. `busy` is None if no daemon reports it. `age_seconds`: since the last
    heartbeat, by the clocks of Prometheus and node; for a silent node perhaps since the last scrape. `seconds_left`:
    until the termination deadline, for unreachable nodes only. `excluded_by` as in the heartbeat (`slurm:failure`,
    `operator`). `last_known_out`: for silent nodes only. `domain`: the NVLink domain, empty if it has none.
    """

    cluster: str
    job: str
    instance: str
    node: str
    status: Status
    reasons: tuple[str, ...] = ()
    busy: bool | None = None
    present: int | None = None
    expected: int | None = None
    findings: tuple[Finding, ...] = ()
    excluded_by: tuple[str, ...] = ()
    last_known_out: Out | None = None
    age_seconds: float | None = None
    seconds_left: float | None = None
    notice: Notice | None = None
    mode: str = ""
    domain: str = ""

    @property
    def key(self) -> Key:
        return self.cluster, self.job, self.instance

    @property
    def out(self) -> bool:
        return bool(self.excluded_by) or self.last_known_out in (Out.FAILURE, Out.PLANNED)

    @property
    def remarkable(self) -> bool:
        """False if the node is healthy and in service, without a termination notice and without reasons."""
        return self.status is not Status.HEALTHY or self.out or self.notice is not None or bool(self.reasons)
