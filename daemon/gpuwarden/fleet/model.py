"""The fleet as values: one row for each node."""

from __future__ import annotations

from enum import StrEnum

from gpuwarden.fleet.status import Status
from gpuwarden.prometheus.client import Sample
from gpuwarden_collectors.dataclass import dataclass

Key = tuple[str, str, str]
"""Cluster (empty without such a label), job, instance."""


def key_of(sample: Sample) -> Key:
    labels = sample.labels
    return labels.get("cluster", ""), labels.get("job", ""), labels.get("instance", "")


class Out(StrEnum):
    """The last recorded scheduler state of a silent node: who keeps work away from it."""

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
    """The end of a machine, announced. `seconds_left` is None while no time is certain, and below 0 once it has passed."""

    source: str
    kind: str
    seconds_left: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A node as Prometheus has it.

    `node` is its instance while its name is unknown. `busy` is None where no daemon reports it. `age_seconds`: since the last
    heartbeat, by Prometheus' clock and the node's; of a silent node it may be since the last scrape. `seconds_left`: until the
    termination deadline, only of an unreachable node. `excluded_by` as in the heartbeat (`slurm:failure`, `operator`).
    `last_known_out`: only of a node that is silent. `domain`: the NVLink domain, empty if it has none.
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
        """False for a healthy node in service of which nothing else is reported."""
        return self.status is not Status.HEALTHY or self.out or self.notice is not None or bool(self.reasons)
