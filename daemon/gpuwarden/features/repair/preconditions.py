"""The preconditions of a step: each is one check of what was read right before. Pure.

All must hold. They are checked before anything begins, again right before the step, and by `gpuwarden repair
--dry-run`, which shows every one that does not hold. `TABLE` has all of them, in the order in which they are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import field
from enum import StrEnum

from gpuwarden.features.repair.memory import Memory
from gpuwarden.features.repair.model import TOUCHES_DRIVER, Outcome, Step, StepKind
from gpuwarden.features.repair.plan import Plan, of_case, strongest
from gpuwarden.health.model import Verdict
from gpuwarden.policy import reasons
from gpuwarden.policy.model import Flag, NodeState, Owner, Why
from gpuwarden.policy.preconditions import REPAIR_REMARKS, stands
from gpuwarden.policy.situation import failing, occupied
from gpuwarden.policy.state import PolicyState
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

SETTLES = 180.0
"""Seconds from a step to the next: findings that it cured end within that, and a driver that starts needs some."""
REFUSED_AGAIN = 1_800.0
"""Seconds until a step that the helper refused is requested again."""


class Precondition(StrEnum):
    STEP = "step"
    MODE = "mode"
    LEDGER = "ledger"
    FINDING = "finding"
    EXCLUDED = "excluded"
    REASON = "reason"
    OPERATOR = "operator"
    NOTICE = "notice"
    SCHEDULER = "scheduler"
    JOBS = "jobs"
    PROCESSES = "processes"
    SET_UP = "set_up"
    BUNDLE = "bundle"
    BREAKER = "breaker"
    QUIET_HOURS = "quiet_hours"
    RUNNING = "running"
    SETTLING = "settling"
    HELPER = "helper"
    FLEET = "fleet"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A precondition that does not hold, and why, for people."""

    precondition: Precondition
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The state of the node at one moment."""

    now: Stamp
    enforce: bool
    """The mode is enforce."""
    remembered: bool
    """The state holds what is in the ledger."""
    verdict: Verdict
    policy: PolicyState
    memory: Memory
    node_states: Mapping[str, NodeState] = field(default_factory=dict)
    """The last read of each scheduler."""
    breaker: str = ""
    """Why the breaker is open; empty: it is not."""
    processes: Mapping[str, int] | None = None
    """By slot, the number of processes on the GPU; None: NVML does not answer. The helper checks it again."""
    set_up: Mapping[str, str] = field(default_factory=dict)
    """By slot, why a GPU cannot be reset with its settings."""
    bundles: bool = False
    """A bundle is made for each failure."""
    quiet: bool = False
    """The present time is within `repair.quiet_hours`."""
    ordered: bool = False
    """An operator ordered the step."""
    helper: str = ""
    """Why the helper cannot be reached; empty: it can, or was not queried."""
    unable: Mapping[str, str] = field(default_factory=dict)
    """By step, why the helper cannot do it here."""
    fleet: str = ""
    """Why it is not this node's turn; empty: it is, or no turn is needed."""


def obstacles(scene: Scene, plan: Plan) -> tuple[Obstacle, ...]:
    """Return every precondition of the plan that does not hold."""
    return tuple(Obstacle(name, text) for name, why in TABLE.items() if (text := why(scene, plan)))


OBSERVED_WITHOUT = frozenset({Precondition.MODE, Precondition.JOBS, Precondition.PROCESSES, Precondition.SCHEDULER})
"""Preconditions that mode observe does not wait for: there the node is not excluded, and continues to get jobs."""


def _step(_: Scene, plan: Plan) -> str:
    return "" if plan.step is not None else plan.why


def _mode(scene: Scene, _: Plan) -> str:
    return "" if scene.enforce else "mode is observe"


def _ledger(scene: Scene, _: Plan) -> str:
    return "" if scene.remembered else "the ledger could not be read yet, so earlier steps are unknown"


def _finding(scene: Scene, plan: Plan) -> str:
    if plan.finding.key in scene.policy.overridden:
        return "an operator overrode it (gpuwarden restore --force)"
    if not any(finding.key == plan.finding.key for finding in failing(scene.policy, scene.verdict)):
        return "it is not an active failure that was confirmed since gpuwarden started"
    cause = plan.finding.caused_by
    return f"it follows from {cause}, which is to be repaired" if cause is not None else ""


def _texts(scene: Scene) -> dict[str, str]:
    """Return, by actuator, the text of each exclusion for a failure; in mode observe the text that would be written."""
    holds = {name: hold.reason for name, hold in scene.policy.holds.items() if hold.why is Why.FAILURE}
    would = {name: intent.reason for name, intent in scene.policy.would.items() if intent.why is Why.FAILURE}
    return holds if scene.enforce else {**would, **holds}


def _excluded(scene: Scene, _: Plan) -> str:
    if not _texts(scene):
        return "gpuwarden has not excluded this node for a failure"
    for name, hold in scene.policy.holds.items():
        state = scene.node_states.get(name)
        if state is None or not state.reachable:
            return f"{name} cannot be asked whether the exclusion is in force"
        if not stands(hold.reason, hold.since, state):
            return f"the exclusion is no longer in force in {name} ({state.state or state.reason})"
    if pending := sorted(scene.policy.pending):
        return f"an exclusion or a return is under way in {', '.join(pending)}"
    return ""


def _reason(scene: Scene, plan: Plan) -> str:
    texts = _texts(scene)
    follows = [finding for finding in scene.verdict.findings if finding.caused_by == plan.finding.key]
    if not texts or any(
        reasons.names(text, finding) for text in texts.values() for finding in (plan.finding, *follows)
    ):
        return ""
    return f"the node is excluded for something else: {next(iter(texts.values()))}"


def _operator(scene: Scene, _: Plan) -> str:
    policy = scene.policy
    if policy.order is not None or any(hold.why is Why.OPERATOR for hold in policy.holds.values()):
        return "an operator excluded the node"
    for name, state in scene.node_states.items():
        if state.owner is Owner.FOREIGN:
            return f"somebody else excluded the node in {name}: {state.reason or state.state}"
        if state.suffix and not REPAIR_REMARKS.issuperset(state.suffix.split(" : ")):
            return f"{state.suffix!r} was added to the reason in {name}: somebody is looking at the node"
    return ""


def _notice(scene: Scene, _: Plan) -> str:
    return "the end of this machine is announced" if scene.policy.notice is not None else ""


def _scheduler(scene: Scene, _: Plan) -> str:
    for name, state in scene.node_states.items():
        if Flag.MAINTENANCE in state.flags:
            return f"{name} keeps the node for maintenance"
        if state.flags:
            return f"{name} shows {', '.join(sorted(state.flags))} for this node"
    return ""


def _jobs(scene: Scene, plan: Plan) -> str:
    if why := occupied(scene.node_states, gpus_used=bool(scene.processes and any(scene.processes.values()))):
        return why
    named = any(state.empty is not None for state in scene.node_states.values())
    reboots = (
        plan.step is not None and plan.step.kind is StepKind.REBOOT
    )  # before other steps the helper checks this itself
    if reboots and not named and scene.processes is None and not scene.ordered:
        return "no scheduler names jobs here, and NVML does not list the processes on the GPUs: only an operator orders a reboot"
    return ""


def _processes(scene: Scene, plan: Plan) -> str:
    """Return which processes prevent the step: on the GPU to reset or, for a step on all GPUs, on any."""
    if scene.processes is None or plan.step is None:
        return ""
    slots = [plan.step.slot] if plan.step.kind is StepKind.RESET_GPU else list(scene.processes)
    used = [slot for slot in slots if scene.processes.get(slot)]
    return f"processes are on GPU {', '.join(used)}" if used else ""


def _set_up(scene: Scene, plan: Plan) -> str:
    step = plan.step
    if step is None or step.kind not in TOUCHES_DRIVER:
        return ""
    slots = [step.slot] if step.kind is StepKind.RESET_GPU else list(scene.set_up)
    return "; ".join(scene.set_up[slot] for slot in slots if slot in scene.set_up)


def _bundle(scene: Scene, plan: Plan) -> str:
    made = scene.memory.bundles.get(str(plan.finding.key))
    if not scene.bundles or (made is not None and made >= plan.finding.first_seen.wall):
        return ""
    return "no bundle was made for it yet ([bundle] on_failure)"


def _breaker(scene: Scene, _: Plan) -> str:
    return f"the breaker is open: {scene.breaker}" if scene.breaker else ""


def _quiet(scene: Scene, _: Plan) -> str:
    return "quiet hours (repair.quiet_hours)" if scene.quiet and not scene.ordered else ""


def _running(scene: Scene, _: Plan) -> str:
    begun = scene.memory.open
    return "" if begun is None else f"{begun.what} was begun for {begun.finding}, and has not ended"


def settles(memory: Memory, now: float) -> str:
    """Return which step may have cured more than is visible yet, or "". `now`: Unix time."""
    for attempt in memory.tries:
        if attempt.ended is not None and attempt.counts and 0.0 <= (since := now - attempt.ended.wall) < SETTLES:
            return f"{attempt.what} ended {since:.0f} s ago, and is given {SETTLES:.0f} s for its effect to show"
    return ""


def _settling(scene: Scene, plan: Plan) -> str:
    now = scene.now.wall
    if why := settles(scene.memory, now):
        return why
    for attempt in of_case(scene.memory, plan.board, plan.finding.key, scene.now):
        refused = attempt.outcome is Outcome.REFUSED and not scene.ordered
        if refused and attempt.ended is not None and 0.0 <= now - attempt.ended.wall < REFUSED_AGAIN:
            return f"the helper refused it, and is asked again after {REFUSED_AGAIN / 60:.0f} minutes: {attempt.text}"
    return ""


def _helper(scene: Scene, plan: Plan) -> str:
    if scene.helper or plan.step is None:
        return scene.helper
    return scene.unable.get(plan.step.kind, "")


def _fleet(scene: Scene, _: Plan) -> str:
    return scene.fleet


TABLE: Mapping[Precondition, Callable[[Scene, Plan], str]] = {
    Precondition.STEP: _step,
    Precondition.MODE: _mode,
    Precondition.LEDGER: _ledger,
    Precondition.FINDING: _finding,
    Precondition.EXCLUDED: _excluded,
    Precondition.REASON: _reason,
    Precondition.OPERATOR: _operator,
    Precondition.NOTICE: _notice,
    Precondition.SCHEDULER: _scheduler,
    Precondition.JOBS: _jobs,
    Precondition.PROCESSES: _processes,
    Precondition.SET_UP: _set_up,
    Precondition.BUNDLE: _bundle,
    Precondition.BREAKER: _breaker,
    Precondition.QUIET_HOURS: _quiet,
    Precondition.RUNNING: _running,
    Precondition.SETTLING: _settling,
    Precondition.HELPER: _helper,
    Precondition.FLEET: _fleet,
}


def next_of(plans: Collection[tuple[Plan, Collection[Obstacle]]]) -> Plan | None:
    """Return the plan to carry out first, of plans and what forbids each.

    A finding that appears after the exclusion, such as a GPU that falls off the bus after its memory failed, delays
    neither the steps for the cause of the exclusion, which may cure both, nor the call for an operator when these are
    used up.
    """
    named = [plan for plan, barred in plans if all(each.precondition is not Precondition.REASON for each in barred)]
    if (first := strongest(named)) is not None or any(plan.gave_up for plan in named):
        return first
    return strongest([plan for plan, _ in plans])


def fitted(step: Step, able: Collection[str]) -> Step:
    """Return the step as the helper can do it: if no GPU can be reset alone, all are reset together."""
    if step.kind is StepKind.RESET_GPU and step.kind not in able and StepKind.RESET_ALL in able:
        return Step(StepKind.RESET_ALL)
    return step


def notes(scene: Scene, plan: Plan) -> Iterator[str]:
    """Yield what a careful operator would want otherwise, although it forbids nothing."""
    if plan.step is not None and not scene.bundles:
        yield "no bundle: [bundle] on_failure is off"
