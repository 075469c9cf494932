"""The data of each kind of policy event. The keys are those of the ledger; see `health/event_data.py`. Pure.

INTENDED has an `Intent`, EXCLUDED and HELD a `Hold`, NOTICED a `Notice`.
"""

from __future__ import annotations

from dataclasses import field

from gpuwarden.health.event_data import otherwise
from gpuwarden.policy.model import Act, NodeState, Result, Why
from gpuwarden_collectors.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Data of OUTCOME: the result of an intent, which `key` identifies."""

    intent: Act = field(metadata=otherwise(Act.EXCLUDE))
    actuator: str
    why: Why = field(metadata=otherwise(Why.OPERATOR))
    key: str
    result: Result = field(metadata=otherwise(Result.RETRY))
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """Data of RESTORED: an exclusion of ours was lifted by gpuwarden."""

    actuator: str
    why: Why = field(metadata=otherwise(Why.OPERATOR))
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifted:
    """Data of LIFTED: an exclusion ended. Without `why` and `reason` it was not gpuwarden's."""

    actuator: str
    why: Why | None = None
    reason: str | None = None
    by: str | None = None
    """How it ended, for people."""
    nobody: bool | None = None
    """The scheduler lost it: in a crash, or while the machine was off."""
    since: float | None = None
    """When the exclusion was written, by the scheduler's clock."""
    ours: bool | None = None
    """In a checkpoint: gpuwarden lifted it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludedByOthers:
    """Data of EXCLUDED_BY_OTHERS: an exclusion that is not gpuwarden's."""

    actuator: str
    reason: str
    """As the scheduler has it, at most 200 characters, on one line."""
    since: float
    """When it was written, by the scheduler's clock; 0 if unknown."""


def excluded_by_others(actuator: str, node_state: NodeState) -> ExcludedByOthers:
    return ExcludedByOthers(actuator=actuator, reason=" ".join(node_state.reason.split())[:200], since=node_state.since)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    """Data of ORDERED: an operator's exclusion, with `reason`, or restoration, which overrides the findings
    `overridden`.
    """

    order: str
    reason: str | None = None
    overridden: str | None = None
    """Keys of findings, separated by spaces."""
    by: str | None = None
    declined: str = ""
    """Names of actuators, separated by spaces."""
    more: bool = False
    """The event continues the restoration before it, which had no room for all findings."""
    stays_out: bool = False
    """The restoration ended an operator's exclusion, and the node stays out for failures that were active then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeEnded:
    """Data of NOTICE_ENDED: the notice was withdrawn by its `source`, or called off `by` an operator."""

    source: str = ""
    id: str | None = None
    by: str | None = None
    released: bool = field(metadata=otherwise(True))
    """No other notice is imminent: exclusions for the termination may be lifted."""
