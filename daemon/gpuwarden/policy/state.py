"""Policy's state: orders, intents, holds, and what is remembered about exclusions. Events change it (`fold.py`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field, replace

from gpuwarden.health.event_data import always, no_key, otherwise, write
from gpuwarden.health.model import Event, Json, Key
from gpuwarden.policy import reasons
from gpuwarden.policy.events import Lifted, Outcome
from gpuwarden.policy.model import Act, Intent, Notice, Result, Why
from gpuwarden.policy.notices import imminent
from gpuwarden.policy.requirement import Requirement
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

NOTICES_MOST = 256
KEYS_MOST = 64
"""Most findings remembered for one exclusion, and most restorations remembered. No node is expected to reach it."""
WHY_MOST = 200
"""Most characters of the text why a finding needs a person."""
OVERRIDDEN_MOST = 1_024
"""Findings that one restoration may override: eight GPUs with 18 links have less than 200."""
UNCOUNTED = (Result.RETRY, Result.REFUSED)
"""Results of intents that are retried, mostly without an event."""
TEXT_MOST = 1_900
"""Characters; the ledger keeps 2,000 of a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """An operator's exclusion, in force until an operator ends it. `reason` is the whole text that is written."""

    reason: str
    by: str
    at: Stamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """An exclusion of ours that was read back. `since`: when it was written, by the scheduler's clock. `released`: its
    termination notice was withdrawn or called off. `failed`: it was for a failure before the notice. `rebooted`: this
    machine has booted since it was written. `outlived`: this machine has booted since a source, not an operator,
    announced its end.
    """

    actuator: str
    why: Why = field(metadata=otherwise(Why.OPERATOR))
    reason: str
    at: Stamp = field(metadata=no_key())
    boot_id: str = field(metadata=no_key())
    since: float = field(default=0.0, metadata=always())
    released: bool = False
    failed: bool = False
    rebooted: bool = False
    outlived: bool = False

    @property
    def by_failure(self) -> bool:
        """True if a failure is among the causes: the exclusion then ends by the rules for one."""
        return self.why is Why.FAILURE or self.failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """An operator's restoration that overrides active findings. `keys` are those that have not ended yet."""

    keys: frozenset[Key]
    by: str
    at: Stamp

    def without(self, key: Key | None) -> Override | None:
        left = self.keys - {key}
        return replace(self, keys=left) if left else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyState:
    """Policy's state. By actuator: `holds`, `pending` (wanted, outcome not known), `would` (the last intent not carried
    out in mode observe), `lifted` (when another party ended an exclusion, ours or theirs); `foreign`: where the last
    read showed another party's; `others`: the event of it, until a read shows its end, after a restart too.

    `declined`: actuators that refused an operator's order for good, while it is in force at others. `person`: findings
    of this exclusion that need a person, with the reason if it is not their advice. `requirements`: by feature, what it
    demands before the exclusion is lifted. `override`: the last one by an operator. `ended`: when the last exclusion of
    ours that another party ended was written, by the scheduler's clock. `restored`: the last one that gpuwarden lifted,
    which a scheduler may show again after a crash. `returns`: Unix times of restorations without a person. `tried`:
    counts of each pair of intent and outcome, named as in `exclude_done`, since the ledger began; retried outcomes
    without an event (retry, refused) are not counted.
    """

    boot_id: str = ""
    order: Order | None = None
    declined: frozenset[str] = frozenset()
    notices: Mapping[str, Notice] = field(default_factory=dict)
    holds: Mapping[str, Hold] = field(default_factory=dict)
    pending: Mapping[str, Intent] = field(default_factory=dict)
    would: Mapping[str, Intent] = field(default_factory=dict)
    lifted: Mapping[str, Stamp] = field(default_factory=dict)
    others: Mapping[str, Event] = field(default_factory=dict)
    ended: Mapping[str, float] = field(default_factory=dict)
    restored: Mapping[str, Lifted] = field(default_factory=dict)
    person: Mapping[Key, str] = field(default_factory=dict)
    requirements: Mapping[str, Requirement] = field(default_factory=dict)
    override: Override | None = None
    returns: tuple[float, ...] = ()
    tried: Mapping[str, int] = field(default_factory=dict)
    clean: int = 0
    clean_since: Stamp | None = None
    sequence: int = 0
    unknown_since: Stamp | None = None
    foreign: frozenset[str] = frozenset()
    cycled: frozenset[str] = frozenset()
    """Actuators whose last read of our exclusion showed that the scheduler reboots the node, or switches it off or on.
    """

    @property
    def overridden(self) -> frozenset[Key]:
        """Findings that do not exclude the node, because an operator overrode them."""
        return frozenset() if self.override is None else self.override.keys

    @property
    def notice(self) -> Notice | None:
        """The hard notice that ends this machine first, however far away; `notices.imminent` decides whether it counts
        yet.
        """
        return imminent(self.notices, math.inf, Stamp(0.0, 0.0))


def for_failure(hold: Hold) -> Hold:
    return replace(hold, why=Why.FAILURE, released=False, failed=False)


def stale_text(hold: Hold | None) -> str:
    """The text of a hold that is now for a failure but still names an operator or a termination; otherwise ""."""
    if hold is None or hold.why is not Why.FAILURE:
        return ""
    written = reasons.parse(hold.reason)
    return hold.reason if written is not None and written.why is not Why.FAILURE else ""


def keys_of(text: str) -> frozenset[Key]:
    return frozenset(Key.parse(word) for word in text.split()[:KEYS_MOST])


def texts_of(keys: frozenset[Key]) -> list[str]:
    """Join `keys` into as many texts of the ledger as they need: one for most nodes, three for a node all of whose
    links are down.
    """
    texts: list[list[str]] = [[]]
    for word in sorted(map(str, keys))[:OVERRIDDEN_MOST]:
        if len(texts[-1]) == KEYS_MOST or len(" ".join((*texts[-1], word))) > TEXT_MOST:
            texts.append([])
        texts[-1].append(word)
    return list(map(" ".join, texts))


# --- intents in events


def intent_key(act: Act, actuator: str, boot_id: str, at: Stamp) -> str:
    return f"{actuator}:{act.value}:{boot_id[:8]}:{at.boottime:.3f}"


def intended_in(intent: Intent, boot_id: str) -> bool:
    """True if the intent was made in that boot."""
    return intent.key.split(":")[2:3] == [boot_id[:8]]


def outcome_data(intent: Intent, result: Result, text: str) -> dict[str, Json]:
    return write(
        Outcome(intent=intent.act, actuator=intent.actuator, why=intent.why, key=intent.key, result=result, text=text)
    )
