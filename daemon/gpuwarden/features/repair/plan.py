"""Chooses the next step for a finding, by the ladder and the tries within a day: at most two. Pure."""

from __future__ import annotations

from collections.abc import Collection

from gpuwarden.features.repair.ladder import ladder, strength, why_none
from gpuwarden.features.repair.memory import Memory, board_of, memory_of
from gpuwarden.features.repair.model import Outcome, Step, StepKind, Try
from gpuwarden.health.memory import State
from gpuwarden.health.model import Finding, Key, Verdict
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

DAY = 86_400.0
TRIES_MOST = 2
"""Most tries for a failure of a board within a day. A failure that returns within a day is the same one."""
REFUSALS_MOST = 3
"""Refusals within a day after which an operator must act."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The next step for a finding."""

    finding: Finding
    board: str = ""
    """As in `Try`."""
    step: Step | None = None
    """None: an operator must act, for the reason in `why`."""
    number: int = 1
    """Which try of this failure within a day it would be."""
    why: str = ""
    gave_up: bool = False
    """Steps were tried or refused, and none is left."""


def plan(finding: Finding, state: State, verdict: Verdict, allowed: Collection[str], now: Stamp) -> Plan:
    """Return the next step for a finding. `allowed`: the words of `repair.steps`; a step that is not allowed is left out."""
    board = board_of(state, finding.key)
    lately = of_case(memory_of(state), board, finding.key, now)
    done = [attempt for attempt in lately if attempt.counts]
    number = 1 + len(done)

    refused = [attempt for attempt in lately if attempt.outcome is Outcome.REFUSED]

    def person(why: str) -> Plan:
        gave_up = bool(done) or len(refused) >= REFUSALS_MOST
        return Plan(finding=finding, board=board, number=number, why=why, gave_up=gave_up)

    steps = [
        Step(rung.kind, rung.service, *_gpu(rung.kind, finding.key, verdict))
        for rung in ladder(finding, verdict.domain)
    ]
    if not steps:
        return person(why_none(finding, verdict.domain))
    usable = [step for step in steps if step.allowed_by in allowed]
    if not usable:
        return person(f"repair.steps allows none of its steps: {' and '.join(map(str, steps))}")
    tried = max((strength(attempt.step) for attempt in done), default=-1)
    left = [step for step in usable if strength(step.kind) > tried]
    if number > TRIES_MOST or not left:
        return person(f"{number - 1} of its steps within a day did not help ({_listed(done)}): it needs an operator")
    if len(refused) >= REFUSALS_MOST:
        return person(f"the helper refused {len(refused)} times within a day ({refused[-1].text}): an operator decides")
    return Plan(finding=finding, board=board, step=left[0], number=number)


def strongest(plans: Collection[Plan]) -> Plan | None:
    """Return the plan to carry out first: that of the strongest step, which does what the milder ones do."""
    candidates = [plan for plan in plans if plan.step is not None]
    return max(
        candidates,
        key=lambda candidate: strength(candidate.step.kind) if candidate.step is not None else -1,
        default=None,
    )


def of_case(memory: Memory, board: str, key: Key, now: Stamp) -> list[Try]:
    """Return the tries within a day for failures of this kind of this board."""
    return [
        attempt
        for attempt in memory.tries
        if attempt.board == board
        and _kind(Key.parse(attempt.finding)) == _kind(key)
        and attempt.at.wall > now.wall - DAY
    ]


def _kind(key: Key) -> tuple[str, str, str]:
    """Return the kind of a failure. Links of one board are one kind; services and the like are kept apart."""
    return key.code, key.detail, "" if key.subject.slot else key.subject.part


def _gpu(kind: StepKind, key: Key, verdict: Verdict) -> tuple[str, str]:
    if kind is not StepKind.RESET_GPU:
        return "", ""
    slot = key.subject.slot
    return slot, next((gpu.uuid for gpu in verdict.gpus if gpu.slot == slot), "")


def _listed(tries: Collection[Try]) -> str:
    return ", ".join(f"{attempt.what} ({attempt.outcome or 'not ended'})" for attempt in tries)
