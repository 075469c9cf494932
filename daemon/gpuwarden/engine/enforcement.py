"""Enforcement: policy decides in each step, a task for each actuator carries out, outcomes come back as events.

One task for each actuator, so that no actuator gets two requests at once. No step waits for an actuator.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from types import MappingProxyType

from gpuwarden.actuators.base import Actuator
from gpuwarden.actuators.reconciler import Limits, Reconciler
from gpuwarden.base.log import get_logger
from gpuwarden.engine.journal import Append, Step
from gpuwarden.engine.operator_orders import Orders, Outcomes
from gpuwarden.health.event_data import write
from gpuwarden.health.model import Event, EventKind, Json
from gpuwarden.policy import checkpoint
from gpuwarden.policy.events import Restored
from gpuwarden.policy.exclusion import Decision, decide
from gpuwarden.policy.fold import fold
from gpuwarden.policy.model import Act, Flag, Intent, NodeState, Notice, Outcome, Result, Settings
from gpuwarden.policy.notices import differences, imminent
from gpuwarden.policy.preconditions import as_owned
from gpuwarden.policy.requirement import Answer, Requirement
from gpuwarden.policy.situation import Situation, excluded, overridden
from gpuwarden.policy.state import UNCOUNTED, Hold, PolicyState, intended_in, outcome_data
from gpuwarden.publish.snapshot import Enforced, Wanted
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.cloud.facts import Kind
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

log = get_logger()

FIRST_READ = 5.0
"""Seconds within which the first read is made, or a twelfth of `look_often` if that is less."""

CONFIGURED_NO_MORE = "it is no longer configured: lift its exclusion there; `gpuwarden restore` forgets it"
"""Text for an actuator that has a pending intent or a hold, but is no longer configured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnforcementOptions:
    """Settings of enforcement. The first read comes after a random time within `first_read` seconds, since a whole
    fleet may be restarted at once.
    """

    settings: Settings = field(default_factory=Settings)
    limits: Limits = field(default_factory=Limits)
    first_read: float = FIRST_READ


class Enforcement:
    """Runs policy and the actuators' tasks.

    `append` is the journal's. `changed` requests a step. `committed` waits a short time at most and returns whether all
    recorded events are on disk. `requirements`: by feature, what it demands before a restoration.
    """

    def __init__(
        self,
        actuators: Sequence[Actuator],
        options: EnforcementOptions,
        *,
        append: Append,
        changed: Callable[[], None],
        committed: Callable[[], Awaitable[bool]],
        boot_id: str,
        clock: Clock,
        requirements: Mapping[str, Requirement] = MappingProxyType({}),
    ) -> None:
        self._requirements = requirements
        self.state = PolicyState(requirements=requirements)
        self.answers: Mapping[str, Answer] = {}
        """Answers of features' requirements at the last decision."""
        self._options = options
        self._append = append
        self._changed = changed
        self._boot_id = boot_id
        self._clock = clock
        self._boxes = {
            actuator.name: Reconciler(
                actuator,
                committed=committed,
                wanted=self._wanted,
                on_read=self._on_read,
                limits=options.limits,
                clock=clock,
            )
            for actuator in actuators
        }
        self._chance = random.Random()  # noqa: S311 - spreads load, guards nothing
        self._counts: Counter[str] = Counter()  # retried results, since this process started
        self._outcomes = Outcomes()
        self.orders = Orders(
            self._boxes,
            self._outcomes,
            append=append,
            state=lambda: self.state,
            settings=lambda: self._options.settings,
            boot_id=boot_id,
            clock=clock,
        )
        self._blocked: Mapping[str, str] = {}
        self._stuck: Mapping[str, str] = {}
        self._waiting: frozenset[str] = frozenset()
        self._overridden: tuple[str, ...] = ()
        self._undecided: dict[str, tuple[list[Notice], Stamp]] = {}
        """Notices by source that wait for a read of the schedulers, and since when."""
        self._tasks: list[asyncio.Task[None]] = []

    # --- life

    def run(self) -> None:
        self._tasks = [asyncio.create_task(self._tend(box), name=name) for name, box in self._boxes.items()]

    async def stop(self, timeout: float) -> None:  # noqa: ASYNC109 - tasks that do not end by then are abandoned
        """Stop all tasks and close the actuators, within `timeout` seconds. Pending intents stay in the ledger."""
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await asyncio.gather(*self._tasks, return_exceptions=True)
                await asyncio.gather(*(box.actuator.close() for box in self._boxes.values()), return_exceptions=True)

    def adopt(self, options: EnforcementOptions) -> None:
        """Use these options from now on. A pause that has begun keeps its length."""
        self._options = options
        for box in self._boxes.values():
            box.limits = options.limits

    # --- the state

    def fold(self, event: Event) -> None:
        self.state = fold(self.state, event)

    @contextmanager
    def rebuilding(self) -> Iterator[None]:
        """Rebuild the state as the fold of the events folded within the context. Short-lived fields are kept."""
        old = self.state
        self.state = PolicyState(
            clean=old.clean,
            clean_since=old.clean_since,
            sequence=old.sequence,
            unknown_since=old.unknown_since,
            foreign=old.foreign,
            requirements=self._requirements,
        )
        yield

    def checkpoint(self, now: Stamp) -> list[Event]:
        return checkpoint.checkpoint(self.state, now)

    @property
    def node_states(self) -> dict[str, NodeState]:
        """The last read of each scheduler, if there was one."""
        return self._as_owned({name: box.node_state for name, box in self._boxes.items()})

    def _as_owned(self, read: Mapping[str, NodeState | None]) -> dict[str, NodeState]:
        ended = {name: at for name, at in self.state.ended.items() if name not in self.state.pending}
        return {name: as_owned(state, ended.get(name, 0.0)) for name, state in read.items() if state is not None}

    # --- a step

    def step(self, situation: Situation, now: Stamp) -> tuple[Event, ...]:
        """Make policy's decision after the judge's events were folded. The returned events are already folded here; the
        caller appends them before `carry_out`.
        """
        try:
            seen = replace(situation, actuators=tuple(self._boxes), node_states=self.node_states)
            decision = decide(self.state, seen, self._options.settings, now)
        except Exception:  # an internal error must not stop judging and publishing
            log.exception("policy failed: no new decision")
            return ()
        self.state, self._waiting, self.answers = decision.state, decision.waiting, decision.answers
        self._overridden = tuple(str(finding.key) for finding in overridden(decision.state, situation.verdict))
        self._notice_blocked(decision)
        return decision.events

    def carry_out(self) -> None:
        """Wake the tasks of actuators whose intent has changed."""
        for name, box in self._boxes.items():
            due = self._due(name)
            if (due.key if due else "") != box.key:
                box.wake.set()

    def hurry(self) -> None:
        """End pauses between two attempts, except those of the breaker, since a whole fleet may be hurried at once."""
        for box in self._boxes.values():
            if not box.held_back:
                box.wake.set()

    def _notice_blocked(self, decision: Decision) -> None:
        """Make actuators read again at once if an intent is newly blocked."""
        for name in decision.blocked.keys() - self._blocked.keys():
            self._boxes[name].wake.set()
        self._blocked, self._stuck = decision.blocked, decision.stuck

    def _wanted(self, intent: Intent) -> bool:
        """True if the intent is wanted now: it is pending, and does not wait for its cause to be observed again."""
        due = self._due(intent.actuator)
        return due is not None and due.key == intent.key

    def _due(self, name: str) -> Intent | None:
        return None if name in self._waiting else self.state.pending.get(name)

    # --- carrying out

    async def _tend(self, box: Reconciler) -> None:
        while True:
            try:
                await self._turn(box)
            except Exception:  # an internal error in one actuator must stop neither it nor the others
                log.exception("actuator failed unexpectedly", actuator=box.actuator.name)
                await asyncio.sleep(self._options.settings.look_often)

    async def _turn(self, box: Reconciler) -> None:
        """Carry out what is wanted. If nothing is, read, and wait until something is wanted or the next read is due."""
        name = box.actuator.name
        box.wake.clear()
        intent = self._due(name)
        if intent is None:
            box.idle()
            if box.node_state is None:
                await box.pause(self._chance.uniform(0.0, self._options.first_read))
            await box.read()
            if self._due(name) is None:
                await box.pause(self._pause_after(box))
            return
        outcome, delay = await box.attempt(intent)
        self._finished(intent, outcome)
        if self._wanted(intent):
            await box.pause(delay)

    def _pause_after(self, box: Reconciler) -> float:
        name = box.actuator.name
        boots = box.node_state is not None and Flag.POWER in box.node_state.flags  # the state will change soon
        often = name in self.state.holds or name in self._blocked or boots
        settings = self._options.settings
        seconds = settings.look_often if often else settings.look_every
        return seconds * self._chance.uniform(0.9, 1.1)  # so that a fleet does not read in step

    def _finished(self, intent: Intent, outcome: Outcome) -> None:
        before = self._outcomes.put(intent, outcome)
        if outcome.result in UNCOUNTED:
            self._counts[f"{intent.act.value}_{outcome.result.value}"] += 1
        if outcome.result is Result.RETRY:
            if before is None or before[1].text != outcome.text:
                log.info("action not done yet", **outcome_data(intent, outcome.result, outcome.text))
            self._changed()
        elif outcome.result is not Result.REFUSED or before != (intent.key, outcome):
            self._append(self._events(intent, outcome), step=Step.NOW)
        self._outcomes.settled()

    def _events(self, intent: Intent, outcome: Outcome) -> list[Event]:
        now = self._clock()
        events = [self._event(EventKind.OUTCOME, outcome_data(intent, outcome.result, outcome.text), now)]
        done = outcome.result is Result.DONE
        name, why, reason = intent.actuator, intent.why, intent.reason
        if intent.act is Act.EXCLUDE and (done or outcome.result is Result.ALREADY):
            rebooted = not intended_in(intent, self._boot_id)  # it was written then, and is confirmed only now
            hold = Hold(
                actuator=name,
                why=why,
                reason=reason,
                at=now,
                boot_id=self._boot_id,
                since=outcome.since,
                rebooted=rebooted,
            )
            events.append(self._event(EventKind.EXCLUDED, write(hold), now))
        if intent.act is Act.RESTORE and (
            done or (outcome.result is Result.ALREADY and intent.actuator in self.state.holds)
        ):
            restored = Restored(actuator=name, why=why, reason=reason)
            events.append(self._event(EventKind.RESTORED, write(restored), now))
        return events

    def _event(self, kind: EventKind, data: Mapping[str, Json], now: Stamp) -> Event:
        return Event(kind=kind, at=now, boot_id=self._boot_id, data=data)

    # --- termination notices

    def announced(self, source: str, notices: Iterable[Notice]) -> None:
        """Record all current notices of `source` for this machine. An unchanged notice makes no event.

        A shutdown that a scheduler ordered is not a notice: the scheduler has drained the node, shuts it down when it
        has no jobs, and restores it. While a scheduler shows a reboot, its state is read again before a shutdown counts
        as a notice.
        """
        notices, rebooting = list(notices), [box for box in self._boxes.values() if _reboots(box.node_state)]
        self._undecided.pop(source, None)
        if rebooting and any(notice.kind == Kind.SHUTDOWN for notice in notices):
            self._undecided[source] = notices, self._clock()
            for box in rebooting:
                box.wake.set()
        else:
            self._take(source, notices)

    def _on_read(self) -> None:
        rebooting = [state for state in self.node_states.values() if _reboots(state)]
        for source, (notices, since) in list(self._undecided.items()):
            if any(state.at.boottime < since.boottime for state in rebooting):
                continue
            del self._undecided[source]
            ordered = any(state.empty is not False for state in rebooting)
            self._take(source, [notice for notice in notices if not (ordered and notice.kind == Kind.SHUTDOWN)])
        self._changed()

    def _take(self, source: str, notices: Iterable[Notice]) -> None:
        horizon, now = self._options.settings.horizon, self._clock()
        events = list(differences(self.state.notices, source, notices, horizon=horizon, now=now))
        if events:
            self._append(events, step=Step.NEXT)

    # --- what is published

    def error(self) -> str:
        """Errors of actuators that permanently refuse a wanted or an existing exclusion. An actuator that does not
        answer is not counted as an error of this node.
        """
        refused = {name: box.refused for name, box in self._concerned() if box.refused}
        for name, key, outcome in self._outcomes:
            pending = self.state.pending.get(name)
            if outcome.result is Result.REFUSED and pending is not None and pending.key == key:
                refused[name] = outcome.text
        return "; ".join(f"{name}: {text}" for name, text in refused.items())

    def _concerned(self) -> Iterator[tuple[str, Reconciler]]:
        """Actuators at which something is wanted, or which have this node excluded."""
        wanted = {*self.state.would, *self.state.pending, *self.state.holds}
        return ((name, box) for name, box in self._boxes.items() if name in wanted)

    def stuck(self) -> str:
        """Actuators that still exclude this healthy node because only a person may lift the exclusion, with the
        reasons.
        """
        return "; ".join(f"{name}: {text}" for name, text in self._stuck.items())

    def away(self) -> str:
        """Concerned actuators that do not answer at present, with their errors."""
        away = {
            name: box.node_state.error
            for name, box in self._concerned()
            if box.node_state is not None and not box.node_state.reachable and not box.refused
        }
        return "; ".join(f"{name}: {text}" for name, text in away.items())

    def shown(self) -> Enforced:
        node_states = self.node_states
        last = self._as_owned({name: box.last_answer for name, box in self._boxes.items()})
        pending = [Wanted(intent=i, text=self._text(name, i.key)) for name, i in self.state.pending.items()]
        observed = () if self._options.settings.enforce else self.state.would.values()
        would = [Wanted(intent=i, text="mode is observe") for i in observed if i.act is Act.EXCLUDE]
        return Enforced(
            actuators=tuple(self._boxes),
            excluded=tuple(excluded(self.state, self._boxes, node_states, last)),
            node_states=node_states,
            pending=tuple(pending),
            would=tuple(would),
            blocked={**dict.fromkeys(self.state.holds.keys() - self._boxes, CONFIGURED_NO_MORE), **self._blocked},
            counts={**self.state.tried, **self._counts},
            breaker=self.breaker,
            person=tuple(sorted(map(str, self.state.person))),
            person_why=tuple(filter(None, self.state.person.values())),
            order="" if self.state.order is None else self.state.order.reason,
            overridden=self._overridden,
            override=self.state.override,
            notices=tuple(self.state.notices.values()),
            notice=imminent(self.state.notices, self._options.settings.horizon, self._clock()),
        )

    @property
    def breaker(self) -> str:
        """Why the breaker defers an exclusion, with the actuator's name if there are several; "" if it defers none."""
        texts = {name: box.held_back for name, box in self._boxes.items() if box.held_back}
        return "; ".join(f"{name}: {text}" if len(self._boxes) > 1 else text for name, text in texts.items())

    def _text(self, name: str, key: str) -> str:
        if name not in self._boxes:
            return CONFIGURED_NO_MORE
        if name in self._waiting:
            return "waits until its cause is observed again"
        outcome = self._outcomes.of(name, key)
        return "not tried yet" if outcome is None else outcome.text


def _reboots(node_state: NodeState | None) -> bool:
    """True if the scheduler shows a reboot of the node, requested or in progress."""
    return node_state is not None and Flag.REBOOT in node_state.flags
