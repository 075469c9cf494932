"""The words of acting: what is wanted of a scheduler, what stands there, what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from gpuwarden_collectors.cloud.facts import Approval
from gpuwarden_collectors.facts import Stamp

HORIZON = 600.0
OPERATOR = "operator"
"""The source of a notice that an operator gave; there is one at a time."""


class Act(StrEnum):
    EXCLUDE = "exclude"
    RESTORE = "restore"


class Why(StrEnum):
    """For what a node is taken out of scheduling. Each has its own rule for the way back."""

    FAILURE = "failure"
    TERMINATION = "termination"
    OPERATOR = "operator"


class Owner(StrEnum):
    """Whose exclusion stands. Ours by the prefix of its reason; anything else that keeps work away is foreign."""

    NONE = "none"
    OURS = "ours"
    FOREIGN = "foreign"


class Flag(StrEnum):
    """What besides an exclusion a scheduler says of a node. While one stands, nothing of it is written over."""

    REBOOT = "reboot"  # requested or under way
    MAINTENANCE = "maintenance"
    DOWN = "down"
    INVALID = "invalid"  # its registration does not fit the scheduler's configuration
    POWER = "power"  # powering up or down, or powered down


class Result(StrEnum):
    DONE = "done"
    ALREADY = "already"  # so it was before anything was written
    REFUSED = "refused"  # for good: permission, or a name that the scheduler does not know
    RETRY = "retry"
    DROPPED = "dropped"  # no longer wanted, or not ours to do
    OBSERVED = "observed"  # mode observe: it would have been done


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What is wanted of one actuator; it stays wanted until its outcome is known. `key` is the same for every attempt.

    `reason` of an exclusion is the text to be written. Of a restoration it is the text that must stand, as we wrote it;
    empty if an operator wants whatever is ours lifted. `since` is when that was written, by the scheduler's clock; 0 if
    that is not known. `force`: an operator's, done in mode observe too.
    """

    act: Act
    actuator: str
    why: Why
    reason: str
    key: str
    at: Stamp
    since: float = 0.0
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`text` is for people. `since`: when the exclusion that stands was written, by the scheduler's clock; 0 if unknown."""

    result: Result
    text: str = ""
    since: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What stands at a scheduler about this node, as read at `at`.

    `owner`, `why`, `reason` and `since` (Unix time by the scheduler's clock, 0 if unknown) tell of the exclusion; `reason`
    is without `suffix`, which is what the scheduler itself appended later. `why` is None unless it is ours. `boot` (first 8
    hex digits of a boot id) and `instance` are those that a termination's reason names. `state` is the scheduler's own
    word, for people. `pool` is how many nodes
    share the breaker's budget, as last known: it costs no query of its own. An unreachable scheduler says nothing: then only
    `at` and `trouble` count; of a reachable one `trouble` is what it does not say.
    """

    at: Stamp
    reachable: bool = True
    trouble: str = ""
    owner: Owner = Owner.NONE
    why: Why | None = None
    reason: str = ""
    suffix: str = ""
    since: float = 0.0
    boot: str = ""
    instance: str = ""
    flags: frozenset[Flag] = field(default_factory=frozenset)
    schedulable: bool = True
    state: str = ""
    pool: int | None = None


@dataclass(frozen=True, slots=True, order=True)
class Held:
    """A node that gpuwarden holds out for a failure; in the order in which they came, as every node of the pool sees it."""

    since: float
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """`held` are all of the `pool` that gpuwarden holds out for a failure, this node too. `now`: the scheduler's clock.

    `visible_after`: seconds until whoever counts sees what is written now; 0 where a scheduler does at once.
    """

    node: str
    pool: int
    held: tuple[Held, ...] = ()
    now: float = 0.0
    visible_after: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """An announced end of this machine. `deadline` is None if nobody said when; `boot_id` is the boot that was told.

    `id` is the source's own, and stays while it announces this. A notice that is not `hard` is a hint. `called_off`: an
    operator said so, while the source goes on announcing it. `approval`: whether a word of this machine may let it happen early.
    """

    source: str
    kind: str
    at: Stamp
    boot_id: str
    reason: str = ""
    deadline: Stamp | None = None
    id: str = ""
    hard: bool = True
    called_off: bool = False
    approval: Approval = Approval.NONE

    @property
    def name(self) -> str:
        return f"{self.source}/{self.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How policy is set. Times in seconds.

    `unknown_after` None: a node that cannot be observed is never excluded for that. `restore_passes` clean passes and
    `restore_after` since the exclusion are both needed before it is lifted, and at most `restores_per_day` are lifted without
    a person. `lifted_for`: how long it is respected that somebody else lifted an exclusion of ours while its cause goes on.
    An end of this machine that is announced counts from `horizon` before it.
    """

    enforce: bool = False
    unknown_after: float | None = None
    restore_passes: int = 12
    restore_after: float = 600.0
    restores_per_day: int = 3
    lifted_for: float = 300.0
    horizon: float = HORIZON


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much of a pool may be held out for failures: `percent` of it at any time, `count` nodes within `window` seconds."""

    percent: int = 25
    count: int = 10
    window: float = 3_600.0
