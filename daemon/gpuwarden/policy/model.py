"""The types of enforcement: intents for a scheduler, the state in force there, and outcomes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from enum import StrEnum
from typing import Literal

from gpuwarden.health.event_data import always, key, no_key
from gpuwarden_collectors.cloud.facts import TerminationNotice
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.options import bounded, internal

HORIZON = 600.0
OPERATOR = "operator"
"""The source of a notice that an operator gave; there is one at a time."""


class Act(StrEnum):
    EXCLUDE = "exclude"
    RESTORE = "restore"


class Why(StrEnum):
    """The cause for which a node is excluded. Each cause has its own rule for the restoration."""

    FAILURE = "failure"
    TERMINATION = "termination"
    OPERATOR = "operator"


class Owner(StrEnum):
    """Whose exclusion is in force. The reason's prefix marks ours; anything else that keeps work away is foreign."""

    NONE = "none"
    OURS = "ours"
    FOREIGN = "foreign"


class Flag(StrEnum):
    """A state of the node that a scheduler reports in addition to an exclusion. gpuwarden does not overwrite a flagged
    state in which the scheduler starts no jobs.
    """

    REBOOT = "reboot"  # requested or under way
    MAINTENANCE = "maintenance"
    DOWN = "down"
    SILENT = "not responding"  # in addition to DOWN: its slurmd does not answer yet
    INVALID = "invalid"  # its registration does not fit the scheduler's configuration
    POWER = "power"  # powering up or down, or powered down


class Result(StrEnum):
    DONE = "done"
    ALREADY = "already"  # in force before anything was written
    REFUSED = "refused"  # for good: permission, or a name that the scheduler does not know
    RETRY = "retry"
    DROPPED = "dropped"  # no longer wanted, or not ours to do
    OBSERVED = "observed"  # mode observe: it would have been done


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """A change that is wanted at one actuator, until its outcome is known. `key` is the same for every attempt.

    `reason`: the text of an exclusion to write; for a restoration, our text that must be in force, or empty if an
    operator wants any exclusion of ours lifted. `since`: when that was written, by the scheduler's clock; 0 if unknown.
    `force`: ordered by an operator, and carried out in mode observe, too. `observed`: made in mode observe, and not
    carried out. `ended`: an exclusion with that time is not ours any more (`preconditions.as_owned`). `rebooted`: this
    machine has booted since the exclusion was written, which explains why the scheduler shows it as down. `replaces`:
    our previous text, which may still be in force and is overwritten whatever its rank.
    """

    act: Act = field(metadata=key("intent"))
    actuator: str
    why: Why
    reason: str
    key: str
    at: Stamp = field(metadata=no_key())
    since: float = field(default=0.0, metadata=always())
    force: bool = field(default=False, metadata=always())
    observed: bool = False
    rebooted: bool = False
    ended: float = 0.0
    replaces: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of an intent. `text` is for people. `since`: when the exclusion in force was written, by the
    scheduler's clock; 0 if unknown.
    """

    result: Result
    text: str = ""
    since: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """What a scheduler reports about this node, as read at `at`. If the scheduler is not reachable, only `at` and
    `error` count.
    """

    at: Stamp
    reachable: bool = True
    error: str = ""
    """Why the scheduler was not reachable, or what could not be read although it was."""
    owner: Owner = Owner.NONE
    """Whose exclusion is in force."""
    why: Why | None = None
    """Why gpuwarden excluded the node; None if it did not."""
    reason: str = ""
    """The reason of the exclusion, without `suffix`."""
    suffix: str = ""
    """What the scheduler appended to the reason later."""
    since: float = 0.0
    """When the exclusion began; Unix time by the scheduler's clock, 0 if unknown."""
    boot: str = ""
    """First 8 hex digits of the boot id that a termination's reason names."""
    instance: str = ""
    """The instance that a termination's reason names."""
    closed: str = ""
    """Another party's mark that keeps work away in addition to an exclusion, such as a cordon in Kubernetes; "" if
    there is none. It neither prevents our exclusion nor, when it ends, delays it."""
    started: float = 0.0
    """When the scheduler started (Unix time, its clock), as long as it shows no exclusion. 0 if unknown, or if it has
    shown an exclusion of ours to this daemon since then."""
    flags: frozenset[Flag] = field(default_factory=frozenset)
    schedulable: bool = True
    """True if the scheduler may start jobs on the node."""
    empty: bool | None = None
    """Whether the scheduler lists no job on the node; None if it does not report jobs."""
    state: str = ""
    """The scheduler's own name for the state, for people."""
    pool: int | None = None
    """Number of nodes that share the breaker's budget, as last read; not worth a request of its own."""


@dataclass(frozen=True, slots=True, order=True)
class Held:
    """A node that gpuwarden has excluded for a failure. Nodes are ordered by when they were excluded, as every node of
    the pool sees it. `domain`: its NVLink domain; empty if it has none, or none was known.
    """

    since: float
    node: str
    domain: str = ""


def earlier(held: Iterable[Held], node: str) -> list[Held]:
    """Return the other nodes that were excluded before this one, each once; all others if this node is not excluded.
    Every node of the pool gets the same order, so the later of two that acted at once rolls back.
    """
    first = {each.node: each for each in sorted(held, reverse=True)}
    own = first.pop(node, None)
    return [each for each in first.values() if own is None or each < own]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCount:
    """The nodes of a pool that gpuwarden has excluded for failures.

    `held` are all of the `pool`, this node too. `now`: the scheduler's clock. `visible_after`: seconds until other
    nodes count what is written now; 0 where a scheduler shows it at once. `shared`: what the excluded nodes have in
    common with this one, for people; empty if nothing is known.
    """

    node: str
    pool: int
    held: tuple[Held, ...] = ()
    now: float = 0.0
    visible_after: float = 0.0
    shared: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice(TerminationNotice):
    """An announced end of this machine, as received from its source or an operator, with what this daemon adds."""

    kind: str = field(metadata=key("notice"))
    id: str = field(default="", metadata=always())
    hard: bool = field(default=True, metadata=always())
    reason: str = field(default="", metadata=always())
    estimated: bool = field(default=False, metadata=no_key())
    at: Stamp = field(metadata=no_key())
    """When it was first received."""
    boot_id: str = field(metadata=no_key())
    """The boot that received it."""
    called_off: bool = False
    """An operator called it off, while its source still announces it."""

    @property
    def name(self) -> str:
        return f"{self.source}/{self.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """When this node is taken out of scheduling, and when it comes back."""

    on_unknown: Literal["ignore", "exclude"] = "ignore"
    """If the health of the node is unknown: `ignore` does nothing, `exclude` excludes the node after `unknown_after`, as for a failure."""
    unknown_after: float = bounded(900.0, 60.0, 86_400.0, "a slow boot and a driver reload pass by themselves")
    """How long the health must have been unknown before `on_unknown = "exclude"` excludes the node."""
    restore_passes: int = bounded(12, 1, 100_000, "one clean pass at least")
    """Clean passes in a row before gpuwarden lifts its exclusion. For a failure `restore_after` must be over, too."""
    restore_after: float = bounded(600.0, 0.0, 7 * 86_400.0, "a longer exclusion needs an operator")
    """How long a node that failed is excluded at least."""
    restores_per_day: int = bounded(3, 0, 1_000, "with 0 only an operator restores a node")
    """How many times within 24 hours gpuwarden lifts its exclusion for a failure by itself; after that only `gpuwarden restore` does."""
    lifted_for: float = bounded(300.0, 0.0, 86_400.0, "a failed GPU must not get jobs for longer")
    """If somebody else lifts gpuwarden's exclusion for a failure that persists: how long gpuwarden waits before it excludes the node again."""
    look_every: float = bounded(1200.0, 60.0, 3_600.0, "every node sends each of these reads to the controller")
    """How often the scheduler's state of this node is read while nothing is to be done."""
    look_often: float = bounded(60.0, 5.0, 600.0, "each of these reads is a request to the controller")
    """How often that state is read while gpuwarden excludes the node, or wants it out or back."""
    enforce: bool = internal(default=False)
    """`mode` is enforce."""
    horizon: float = internal(HORIZON)
    """`termination.horizon`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits on how many nodes of a pool may be excluded for failures."""

    percent: int = bounded(25, 1, 100, "a share of the nodes that share the budget; one node is always allowed")
    """The share, in per cent, of the nodes with a common budget that may be excluded for failures at any time; one node always may."""
    count: int = bounded(10, 1, 100_000, "one node at least")
    """The number of nodes with a common budget that may be excluded for failures within `window`."""
    domain: int = bounded(4, 1, 100_000, "one node at least")
    """The number of nodes of one NVLink domain (cluster UUID and clique, as the 18 of an NVL72) that may be excluded for failures at any time; dead nodes that wait for parts count, too."""
    window: float = bounded(3_600.0, 60.0, 7 * 86_400.0, "failures come in minutes to days")
    """The time for which `count` applies."""
