"""Policy: (state, situation, settings, now) -> (new state, events). Pure: a replay makes the same decisions.

For each actuator, policy compares what is wanted with the exclusion in force there; a difference becomes an intent. The
node is to be excluded, in order of precedence, by an operator's order, while an imminent end of this machine is
announced, and while a failure is active. Only gpuwarden's own exclusions are lifted, each kind by its own rule:

    failure      after enough clean passes and time, if none of its findings needs a person; where configured, only once
                 the requirements of features are met (`requirement.py`), such as a passed test
    termination  when the notice is withdrawn or called off and, if a failure was among the causes or a requirement
                 applies, those rules are met; or when the reason names another machine, which this one has replaced.
                 While a failure is active then, the exclusion becomes one for the failure, and counts in the breaker
    operator     never; only an operator lifts it

Unknown health neither excludes the node (unless `on_unknown` says so) nor restores it, and the last answer of an
unreachable scheduler does not count as its present state. A failure that is only remembered from before the daemon
started counts as unknown until it is confirmed: exclusions in force stay, and no new one is wanted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import TypedDict, Unpack

from gpuwarden.health.event_data import write
from gpuwarden.health.model import Event, EventKind, Health, Json, Key
from gpuwarden.health.repair_history import OFTEN_KEY
from gpuwarden.policy.events import Lifted, excluded_by_others
from gpuwarden.policy.fold import fold
from gpuwarden.policy.model import Act, Flag, Intent, NodeState, Notice, Owner, Result, Settings, Why
from gpuwarden.policy.notices import imminent
from gpuwarden.policy.preconditions import RANK, answer, lost, same, stands
from gpuwarden.policy.requirement import Answer
from gpuwarden.policy.situation import Situation, Want, failing, unconfirmed, wanted
from gpuwarden.policy.state import (
    KEYS_MOST,
    Hold,
    PolicyState,
    for_failure,
    intended_in,
    intent_key,
    outcome_data,
    stale_text,
)
from gpuwarden.policy.way_back import NEEDS_PERSON, ONLY_A_PERSON, WayBack, not_confirmed
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

_CYCLES = frozenset({Flag.REBOOT, Flag.POWER})


@dataclass(frozen=True, slots=True)
class Decision:
    """What policy decided. By actuator: `blocked`, why a wanted change is not requested now; `stuck`, why an exclusion
    of ours waits for a person although the node is healthy. `waiting`: actuators whose pending intent must wait.
    `answers`: by feature, the answer of its requirement about the restoration, if it was asked.
    """

    state: PolicyState
    events: tuple[Event, ...]
    blocked: Mapping[str, str]
    waiting: frozenset[str] = frozenset()
    answers: Mapping[str, Answer] = field(default_factory=dict)
    stuck: Mapping[str, str] = field(default_factory=dict)


def decide(state: PolicyState, seen: Situation, settings: Settings, now: Stamp) -> Decision:
    return _Steps(_counted(state, seen, now), seen, settings, now).decide()


def _counted(state: PolicyState, seen: Situation, now: Stamp) -> PolicyState:
    """Update the number of consecutive clean passes, and since when the health is clean or unknown."""
    health = seen.verdict.health
    if unconfirmed(state, seen.verdict):
        health = Health.UNKNOWN
    clean = health in (Health.HEALTHY, Health.WARNING)
    is_new = seen.sequence > state.sequence
    since = (state.unknown_since or now) if health is Health.UNKNOWN else None
    return replace(
        state,
        clean=state.clean + is_new if clean else 0,
        clean_since=(state.clean_since or now) if clean else None,
        sequence=max(state.sequence, seen.sequence),
        unknown_since=since,
    )


class _More(TypedDict, total=False):
    """Fields of an intent that most intents do not use."""

    since: float
    force: bool
    rebooted: bool


class _Steps:
    """One decision in progress: each event is folded into `state` at once, and collected."""

    def __init__(self, state: PolicyState, seen: Situation, settings: Settings, now: Stamp) -> None:
        self.state = state
        self._seen = seen
        self._settings = settings
        self._now = now
        self._events: list[Event] = []
        self._unconfirmed = unconfirmed(state, seen.verdict)
        self._blocked: dict[str, str] = {}
        self._stuck: dict[str, str] = {}
        self._waiting: set[str] = set()
        self._answers: dict[str, Answer] = {}

    def decide(self) -> Decision:
        for name in self._seen.actuators:
            node_state = self._seen.node_states.get(name)
            reachable = node_state if node_state is not None and node_state.reachable else None
            self._reconcile(name, reachable)
            self._foreign(name, reachable)
            want = self._wanted(name)  # after these: the end of an operator's exclusion ends the order
            if name in self.state.pending:
                self._supersede(name, want, reachable)
            if name not in self.state.pending:
                self._difference(name, want, reachable)
            if self._is_past(self.state.pending.get(name), want, reachable):
                self._waiting.add(name)
            if want is None and self._unconfirmed and name not in self.state.holds:
                self._blocked[name] = not_confirmed(self._unconfirmed)
            self._persons()
        for requirement in self._way_back.requirements().values():
            for kind, data in requirement.news(self.state, self._seen, self._now):
                self._event(kind, data)
        waiting = frozenset(self._waiting)
        return Decision(self.state, tuple(self._events), self._blocked, waiting, self._answers, self._stuck)

    @property
    def _way_back(self) -> WayBack:
        return WayBack(self.state, self._seen, self._settings, self._now, self._answers)

    def _wanted(self, name: str) -> Want | None:
        state = replace(self.state, order=None) if name in self.state.declined else self.state
        return wanted(state, self._seen, self._settings, self._now)

    def _imminent(self) -> Notice | None:
        return imminent(self.state.notices, self._settings.horizon, self._now)

    # --- one actuator

    def _reconcile(self, name: str, node_state: NodeState | None) -> None:
        """Check whether our exclusion is still in force. If not, record how it ended: another party lifted it or took
        it over, or the scheduler lost it.
        """
        hold = self.state.holds.get(name)
        if hold is None or node_state is None or name in self.state.pending:
            return
        if hold.boot_id == self._seen.boot_id and node_state.at <= hold.at:  # the read is older than our write
            return
        earlier = hold.boot_id != self._seen.boot_id
        if stands(hold.reason, hold.since, node_state):
            cycled, others = not _CYCLES.isdisjoint(node_state.flags), self.state.cycled - {name}
            self.state = replace(self.state, cycled=others | {name} if cycled else others)
            if earlier:  # if it ends in this boot, another party ended it
                self._event(EventKind.HELD, write(replace(hold, rebooted=True)))
            return
        gone = node_state.owner is Owner.NONE
        by, nobody = ("lifted", False) if gone else ("taken over", False)
        if lost(hold.since or hold.at.wall, node_state):
            by, nobody = "lost by the scheduler, which was restarted", True
        elif gone and earlier:
            by, nobody = "gone since an earlier boot", True
        elif gone and (Flag.POWER in node_state.flags or (hold.rebooted and name in self.state.cycled)):
            by, nobody = "dropped by the scheduler, which reboots the node or switches it off", True
        lifted = Lifted(actuator=name, why=hold.why, reason=hold.reason, by=by, nobody=nobody, since=hold.since or None)
        self._event(EventKind.LIFTED, write(lifted))

    def _foreign(self, name: str, node_state: NodeState | None) -> None:
        """Record the beginning and end of another party's exclusion. Its end delays our next one, since a person has
        seen the node.

        An exclusion that begins with a flag set is the scheduler's own (a node is down while it boots), and is not
        recorded.
        """
        if node_state is None:
            return
        before = name in self.state.foreign
        theirs = node_state.owner is Owner.FOREIGN and (before or not node_state.flags)
        if theirs != before:
            self.state = replace(self.state, foreign=self.state.foreign ^ {name})
        if theirs and not before:
            self._event(EventKind.EXCLUDED_BY_OTHERS, write(excluded_by_others(name, node_state)))
        if node_state.owner is Owner.NONE and (before or name in self.state.others):
            while_away = None if before else True  # nothing shows that a person has seen the node since the start
            self._event(EventKind.LIFTED, write(Lifted(actuator=name, by="theirs ended", nobody=while_away)))

    def _supersede(self, name: str, want: Want | None, node_state: NodeState | None) -> None:
        """Drop or replace the pending intent if something else is wanted now."""
        pending = self.state.pending[name]
        if not self._settings.enforce and not pending.force:
            self._drop(pending, "mode is observe now")
        elif pending.act is Act.RESTORE:
            self._supersede_restore(name, pending, want)
        elif want is not None:
            if RANK[want.why] > RANK[pending.why]:
                self._drop(pending, f"{want.why.value} takes precedence over {pending.why.value}")
        elif self._over(pending.why) and not self._becomes_held(pending, node_state):
            person = pending.why is not Why.OPERATOR and bool(self.state.person)
            stays = person or self._replaces_failure(pending)
            self._drop(pending, "no longer wanted")
            if not stays:  # it may be written already: lift it, unless only a person may
                rebooted = not intended_in(pending, self._seen.boot_id)
                text = pending.replaces or pending.reason
                self._intend(Act.RESTORE, name, pending.why, text, force=pending.force, rebooted=rebooted)

    def _supersede_restore(self, name: str, pending: Intent, want: Want | None) -> None:
        if want is not None and self._goes_before(want, pending):
            self._exclude_again(pending, want)
        elif want is None and not (pending.force or pending.rebooted or intended_in(pending, self._seen.boot_id)):
            self._drop(pending, "this machine has booted since")
            if name not in self.state.holds:  # otherwise `_difference` restores it from the hold
                self._intend(Act.RESTORE, name, pending.why, pending.reason, since=pending.since, rebooted=True)

    def _goes_before(self, want: Want, restoration: Intent) -> bool:
        """True if `want` takes precedence over a pending restoration: always over one that no operator ordered; over an
        operator's only a later order, or a failure that it did not override.
        """
        if want.force or not restoration.force:
            return True
        return want.why is Why.FAILURE and self._settings.enforce

    def _exclude_again(self, restoration: Intent, want: Want) -> None:
        """Replace a pending restoration by an exclusion: only a read shows whether the restoration has already taken
        effect.
        """
        name = restoration.actuator
        self._drop(restoration, "it is to be excluded again")
        if RANK[restoration.why] < RANK[want.why]:
            return
        hold = self.state.holds.get(name)
        if want.why is Why.FAILURE and restoration.why is Why.OPERATOR and hold is not None and not hold.by_failure:
            hold = for_failure(hold)
            self._event(EventKind.HELD, write(hold))
        first = restoration.reason if restoration.why is want.why is Why.FAILURE else want.reason
        intent = replace(self._intent(Act.EXCLUDE, name, want.why, first, force=want.force), replaces=stale_text(hold))
        self._event(EventKind.INTENDED, write(intent))

    def _becomes_held(self, pending: Intent, node_state: NodeState | None) -> bool:
        """True if a pending exclusion that may be written must become a hold, since lifting it takes more than clean passes.
        If the last read is older than the end of its cause, it may be: the actuator is blocked, so that it reads again.
        """
        gated = any(requirement.applies for requirement in self._way_back.requirements().values())
        more = bool(pending.replaces or self.state.person) or self._replaces_failure(pending)
        if pending.why is Why.OPERATOR or not (gated or more):
            return False
        if node_state is None or same(pending.reason, 0.0, node_state):
            return True
        since = self.state.clean_since
        if since is None or since.boottime <= node_state.at.boottime:
            return False
        self._blocked[pending.actuator] = "it may be written since the last read"
        return True

    def _replaces_failure(self, pending: Intent) -> bool:
        """True if the pending exclusion replaces one of ours whose causes include a failure."""
        hold = self.state.holds.get(pending.actuator)
        return (pending.why is Why.TERMINATION or bool(pending.replaces)) and hold is not None and hold.by_failure

    def _is_past(self, pending: Intent | None, want: Want | None, node_state: NodeState | None) -> bool:
        """True if the pending intent must wait. An exclusion is written only while its cause is observed, and dropped
        once the cause has ended, so that a repaired node is not excluded for an old failure. A restoration waits while
        a failure is only remembered. An exclusion that is already in force does not wait: it becomes a hold, and the
        rules for restoring apply.
        """
        if pending is None or want is not None:
            return False
        if pending.act is Act.RESTORE:
            return bool(self._unconfirmed)
        return not pending.force and (node_state is None or not same(pending.reason, 0.0, node_state))

    def _over(self, why: Why) -> bool:
        """True if the cause of a pending exclusion has ended."""
        if why is Why.OPERATOR:
            return self.state.order is None
        return self._way_back.clean() and not (why is Why.TERMINATION and self._imminent() is not None)

    def _hold(self, name: str, want: Want | None) -> Hold | None:
        """Return our exclusion in force. After a termination was called off it is for the failure that is active."""
        hold = self.state.holds.get(name)
        fails = want is not None and want.why is Why.FAILURE and self._settings.enforce
        if hold is not None and fails and self._way_back.called_off(hold):
            hold = for_failure(hold)
            self._event(EventKind.HELD, write(hold))
        return hold

    def _difference(self, name: str, want: Want | None, node_state: NodeState | None) -> None:
        hold = self._hold(name, want)
        if want is not None:
            if hold is None or RANK[hold.why] < RANK[want.why] or stale_text(hold):
                self._exclude(name, want, node_state)
            elif want.why is Why.TERMINATION and hold.released:  # announced again before it was lifted
                self._event(EventKind.HELD, write(replace(hold, released=False)))
        elif node_state is not None and self._seen.remembered:
            would = self._way_back.would(name)
            if hold is not None and not self._way_back.bars(hold):
                rebooted = hold.rebooted or hold.boot_id != self._seen.boot_id
                self._restore(name, node_state, hold.why, hold.reason, hold.since, rebooted=rebooted)
            elif self._way_back.replaces(node_state):
                self._restore(name, node_state, Why.TERMINATION, node_state.reason, node_state.since)
            elif would is not None and not self._way_back.bars(would):
                self._restore(name, node_state, would.why, "", 0.0)
            elif hold is not None:
                self._blocked[name] = self._way_back.bars(hold)
            elif node_state.owner is Owner.OURS:
                self._not_held(name, node_state)

    def _not_held(self, name: str, node_state: NodeState) -> None:
        """Handle an exclusion of ours without a hold: the ledger lost it, or a crash of the scheduler undid a
        restoration.
        """
        if (before := self._way_back.shown_again(name, node_state)) is not None:
            if self._way_back.clean():
                self._restore(name, node_state, before.why or Why.FAILURE, before.reason or "", before.since or 0.0)
            else:
                shown = "it was restored, and the scheduler shows it again"
                self._blocked[name] = f"{shown}: it comes back after clean passes"
        elif node_state.why is Why.OPERATOR:
            self._blocked[name] = f"an operator excluded it: {ONLY_A_PERSON}"
        else:
            self._wait_for_person(name, f"the ledger has no record of this exclusion: {ONLY_A_PERSON}")

    def _wait_for_person(self, name: str, why: str) -> None:
        self._blocked[name] = why
        if self.state.clean:
            self._stuck[name] = why

    def _exclude(self, name: str, want: Want, node_state: NodeState | None) -> None:
        lifted = self.state.lifted.get(name)
        waits = self._settings.lifted_for if want.why is Why.FAILURE else 0.0
        if lifted is not None and self._now.boottime - lifted.boottime < waits:
            self._blocked[name] = "somebody else ended an exclusion a moment ago"
            return
        reason = want.reason
        failed = node_state if node_state is not None and node_state.why is want.why is Why.FAILURE else None
        if failed is not None and self._way_back.shown_again(name, failed):
            reason = failed.reason  # the text stays; the exclusion is for this failure now, and ends by its rules
        intent = self._intent(Act.EXCLUDE, name, want.why, reason, force=want.force)
        self._unless_refused(replace(intent, replaces=stale_text(self.state.holds.get(name))), node_state)

    def _restore(
        self, name: str, node_state: NodeState, why: Why, reason: str, since: float, *, rebooted: bool = False
    ) -> None:
        self._unless_refused(self._intent(Act.RESTORE, name, why, reason, since=since, rebooted=rebooted), node_state)

    def _persons(self) -> None:
        """Record findings that need a person while this node is excluded: when they end, the node is not restored."""
        if not (self.state.holds or self.state.pending or self.state.would):
            return
        for finding in failing(self.state, self._seen.verdict):
            is_new = finding.key not in self.state.person and len(self.state.person) < KEYS_MOST
            if is_new and finding.advice in NEEDS_PERSON:
                often = finding.evidence.get(OFTEN_KEY)
                why = {"why": f"{finding.key} occurred {often} times within a day"} if often else {}
                self._event(EventKind.NEEDS_PERSON, {"advice": finding.advice.value, **why}, finding.key)

    # --- events

    def _unless_refused(self, intent: Intent, node_state: NodeState | None) -> None:
        """Issue the intent unless the last read rules it out. An operator's intent is issued anyway, so that the
        operator gets the result of a fresh read.
        """
        outcome = None if node_state is None else answer(intent, node_state)
        if outcome is not None and outcome.result in (Result.DROPPED, Result.RETRY) and not intent.force:
            ours = node_state is not None and node_state.owner is Owner.OURS
            if ours and intent.act is Act.RESTORE and outcome.result is Result.DROPPED:
                self._wait_for_person(intent.actuator, outcome.text)
            else:
                self._blocked[intent.actuator] = outcome.text
        elif intent.force or self._settings.enforce:
            self._event(EventKind.INTENDED, write(intent))
        else:
            self._observe(intent)

    def _observe(self, intent: Intent) -> None:
        """Record, once, an intent that is not carried out because the mode is observe."""
        last = self.state.would.get(intent.actuator)
        if last is not None and (last.act, last.why) == (intent.act, intent.why):
            return
        if intent.act is Act.EXCLUDE or last is not None or intent.actuator in self.state.holds:
            self._event(EventKind.INTENDED, write(replace(intent, observed=True)))

    def _intent(self, act: Act, name: str, why: Why, reason: str, **more: Unpack[_More]) -> Intent:
        key = intent_key(act, name, self._seen.boot_id, self._now)
        return Intent(act=act, actuator=name, why=why, reason=reason, key=key, at=self._now, **more)

    def _intend(self, act: Act, name: str, why: Why, reason: str, **more: Unpack[_More]) -> None:
        self._event(EventKind.INTENDED, write(self._intent(act, name, why, reason, **more)))

    def _drop(self, intent: Intent, text: str) -> None:
        self._event(EventKind.OUTCOME, outcome_data(intent, Result.DROPPED, text))

    def _event(self, kind: EventKind, data: dict[str, Json], key: Key | None = None) -> None:
        event = Event(kind=kind, at=self._now, boot_id=self._seen.boot_id, key=key, data=data)
        self._events.append(event)
        self.state = fold(self.state, event)
