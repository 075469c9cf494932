"""The records of a trace, one for each line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from gpuwarden.health.model import Event
from gpuwarden.health.view import Rules
from gpuwarden_collectors.base import NamedFacts, Observation
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.dcgm.facts import DcgmFacts
from gpuwarden_collectors.event_facts import HostEvent
from gpuwarden_collectors.facts import NvmlFacts, Stamp
from gpuwarden_collectors.host_facts import PluginFacts
from gpuwarden_collectors.kubelet.facts import PodsFacts
from gpuwarden_collectors.pci_facts import PciFacts
from gpuwarden_collectors.receivers.watched_facts import ContainersFacts
from gpuwarden_collectors.receivers.workloads_facts import WorkloadsFacts
from gpuwarden_collectors.registry import HOST_COLLECTORS
from gpuwarden_collectors.slurm.jobs_facts import JobsFacts

FORMAT = 1
_JUDGED: tuple[type[NamedFacts], ...] = (
    NvmlFacts,
    PciFacts,
    DcgmFacts,
    *(spec.facts for spec in HOST_COLLECTORS),
    PluginFacts,
    JobsFacts,
    ContainersFacts,
    WorkloadsFacts,
    PodsFacts,
)
COLLECTORS: Mapping[str, Any] = {facts.collector: facts for facts in _JUDGED}
"""The collectors that are judged, with the type of their facts."""
FACTS: Mapping[str, Any] = {name: facts | None for name, facts in COLLECTORS.items()}
"""The collectors whose passes are in a trace, with the type of their facts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    """A start of a daemon."""

    at: Stamp
    """Time of the start."""
    boot_id: str
    rules: Rules = field(default_factory=Rules)
    """The rules in force."""
    memory: tuple[Event, ...] | None = None
    """The events of its ledger; None: the events of this trace so far."""
    passes: tuple[Observation[Any], ...] = ()
    """If the recording began while the daemon was running: the newest pass of each collector, after the pass of its
    facts."""
    life: str = ""
    """Name of a recording in parts, the same for all parts; otherwise empty."""
    part: int = 0
    """Number of this part. A reader that has just read the previous part skips this record: no daemon started."""


@dataclass(frozen=True, slots=True)
class Passed:
    """A completed pass of a collector."""

    observation: Observation[Any]
    """The pass, with the facts from the collector."""

    @property
    def at(self) -> Stamp:
        return self.observation.finished


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEventsSeen:
    """Events of the host, for example from the kernel log."""

    at: Stamp
    """Time at which they were read."""
    events: tuple[HostEvent, ...]
    """Events in the order of the sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorsChanged:
    """The errors of the daemon's own components, in force until the next such record."""

    at: Stamp
    """Time from which they apply."""
    errors: Mapping[str, str]
    """Error by component, as in the judge's view; empty if all work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesChanged:
    """New rules after a reload of the configuration."""

    at: Stamp
    """Time from which they apply."""
    rules: Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """An acknowledgement of a finding by an operator."""

    at: Stamp
    """Time of the acknowledgement."""
    finding: str
    """Id of the finding, such as `xid.79@gpu/0000:4e:00.0`."""
    by: str = ""
    """The operator; empty if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """An operator's acceptance of the present inventory."""

    at: Stamp
    """Time of the acceptance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveTested:
    """An announcement or result of an active test, as received by the daemon."""

    at: Stamp
    """Time at which it was received."""
    events: tuple[Event, ...]
    """Events as in the ledger."""


Record = Began | Passed | HostEventsSeen | ErrorsChanged | RulesChanged | Acknowledged | Accepted | ActiveTested
