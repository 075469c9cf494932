"""What forbids a step: each precondition alone, all together, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.features.repair.memory import EMPTY
from gpuwarden.features.repair.model import Outcome, Step, StepKind
from gpuwarden.features.repair.preconditions import (
    OBSERVED_WITHOUT,
    SETTLES,
    TABLE,
    Precondition,
    fitted,
    next_of,
    obstacles,
)
from gpuwarden.health.model import Advice, Key, gpu
from gpuwarden.policy.model import OPERATOR, Act, Flag, Intent, Notice, Owner, Why
from gpuwarden.policy.state import Order, Override, PolicyState
from support.repair_scenes import (
    BOOT,
    FINDING,
    NOW,
    REASON,
    begun,
    drained,
    ended,
    hold,
    planned,
    remembered,
    scene,
    tried,
    verdict,
    xid,
)
from support.snapshots import at, slot

P = Precondition
HELD = PolicyState(boot_id=BOOT, holds={"slurm": hold()})
NOTICE = Notice(source="aws", kind="spot", at=NOW, boot_id=BOOT, deadline=at(5_100.0))
PENDING = Intent(act=Act.RESTORE, actuator="slurm", why=Why.FAILURE, reason="", key="k", at=NOW)

ALONE: Mapping[str, tuple[dict[str, Any], frozenset[Precondition]]] = {
    "mode observe": ({"enforce": False}, frozenset({P.MODE})),
    "the ledger was not read yet": ({"remembered": False}, frozenset({P.LEDGER})),
    "the finding has ended": ({"verdict": verdict(xid(48))}, frozenset({P.FINDING})),
    "it is only remembered": ({"verdict": verdict(replace(FINDING, confirmed=False))}, frozenset({P.FINDING})),
    "it is in shadow": ({"verdict": verdict(replace(FINDING, shadow=True))}, frozenset({P.FINDING})),
    "an operator overrode it": (
        {"policy": replace(HELD, override=Override(keys=frozenset({FINDING.key}), by="root", at=NOW))}, frozenset({P.FINDING})
    ),
    "nothing is excluded": ({"policy": PolicyState(boot_id=BOOT)}, frozenset({P.EXCLUDED})),
    "the exclusion is no longer in force": (
        {"node_states": {"slurm": drained(owner=Owner.NONE, why=None, reason="")}}, frozenset({P.EXCLUDED})
    ),
    "the scheduler is away": (
        {"node_states": {"slurm": drained(reachable=False)}}, frozenset({P.EXCLUDED, P.JOBS})
    ),
    "a return is under way": ({"policy": replace(HELD, pending={"slurm": PENDING})}, frozenset({P.EXCLUDED})),
    "it is excluded for something else": (
        {
            "policy": replace(HELD, holds={"slurm": hold("gpuwarden: failure gpu=5 xid=48")}),
            "node_states": {"slurm": drained("gpuwarden: failure gpu=5 xid=48")},
        },
        frozenset({P.REASON}),
    ),
    "an operator excludes it, too": (
        {"policy": replace(HELD, order=Order(reason="gpuwarden: operator by=root fan", by="root", at=NOW))},
        frozenset({P.OPERATOR}),
    ),
    "a person wrote behind the reason": ({"node_states": {"slurm": drained(suffix="ticket 7")}}, frozenset({P.OPERATOR})),
    "its end is announced": ({"policy": replace(HELD, notices={"aws/": NOTICE})}, frozenset({P.NOTICE})),
    "maintenance": ({"node_states": {"slurm": drained(flags=frozenset({Flag.MAINTENANCE}))}}, frozenset({P.SCHEDULER})),
    "a reboot is requested": ({"node_states": {"slurm": drained(flags=frozenset({Flag.REBOOT}))}}, frozenset({P.SCHEDULER})),
    "a job is here": ({"node_states": {"slurm": drained(empty=False)}}, frozenset({P.JOBS})),
    "work may start": ({"node_states": {"slurm": drained(schedulable=True)}}, frozenset({P.JOBS})),
    "a process is on the GPU": ({"processes": {slot(3): 1}}, frozenset({P.PROCESSES})),
    "MIG is on": ({"set_up": {slot(3): "GPU 3: MIG is on"}}, frozenset({P.SET_UP})),
    "no bundle yet": ({"bundles": True}, frozenset({P.BUNDLE})),
    "the breaker is open": ({"breaker": "4 of 8 nodes are excluded"}, frozenset({P.BREAKER})),
    "quiet hours": ({"quiet": True}, frozenset({P.QUIET_HOURS})),
    "a step runs": ({"memory": remembered(begun("t0", 5.0))}, frozenset({P.RUNNING})),
    "the step before is young": (
        {"memory": remembered(begun("t0", SETTLES + 9.0), ended("t0", SETTLES - 1.0))}, frozenset({P.SETTLING})
    ),
    "the helper refused it a moment ago": (
        {"memory": tried(1, hours=0.1, outcome=Outcome.REFUSED)}, frozenset({P.SETTLING})
    ),
    "the helper is away": ({"helper": "no such socket"}, frozenset({P.HELPER})),
    "the helper cannot do it": ({"unable": {"reset_gpu": "confidential computing is on"}}, frozenset({P.HELPER})),
    "it is another node's turn": ({"fleet": "1 node is repaired now"}, frozenset({P.FLEET})),
}  # fmt: skip
"""Each alone: what is otherwise than in the scene in which a step may begin, and what it forbids."""


def barred(plan_of: Any = None, **more: Any) -> set[Precondition]:
    memory = more.get("memory", EMPTY)
    return {obstacle.precondition for obstacle in obstacles(scene(**more), plan_of or planned(memory))}


def test_a_node_that_is_excluded_for_the_finding_and_empty_is_repaired() -> None:
    assert not barred()


@pytest.mark.parametrize("case", list(ALONE))
def test_each_precondition_alone_forbids_the_step_and_says_why(case: str) -> None:
    more, expected = ALONE[case]
    memory = more.get("memory", EMPTY)
    barriers = obstacles(scene(**more), planned(memory))
    assert {obstacle.precondition for obstacle in barriers} == expected
    assert all(obstacle.text for obstacle in barriers)


def test_every_precondition_is_in_the_table_and_has_a_case() -> None:
    assert set(TABLE) == set(Precondition)
    assert set().union(*(expected for _, expected in ALONE.values())) == set(Precondition) - {P.STEP}


_FREE = ("breaker", "quiet", "bundles", "helper", "fleet", "enforce", "remembered")
_INDEPENDENT = {name: case for name, case in ALONE.items() if set(case[0]) <= {*_FREE}}


@given(st.sets(st.sampled_from(sorted(_INDEPENDENT))))
@settings(max_examples=200, deadline=None)
def test_together_they_forbid_what_each_forbids_alone(names: set[str]) -> None:
    more: dict[str, Any] = {}
    for name in names:
        more |= _INDEPENDENT[name][0]
    assert barred(**more) == set().union(*(_INDEPENDENT[name][1] for name in names))


@given(st.sets(st.sampled_from(sorted(ALONE)), min_size=1))
@settings(max_examples=300, deadline=None)
def test_no_combination_of_what_forbids_a_step_allows_it(names: set[str]) -> None:
    more: dict[str, Any] = {}
    for name in sorted(names):
        more |= ALONE[name][0]
    assert barred(**more)


def test_an_operator_s_order_ignores_quiet_hours_and_nothing_else() -> None:
    assert not barred(quiet=True, ordered=True)
    for name, (more, expected) in ALONE.items():
        refused = name == "the helper refused it a moment ago"
        assert barred(**{**more, "ordered": True}) == (set() if refused else expected - {P.QUIET_HOURS}), name


def test_a_clock_that_is_set_back_does_not_lengthen_the_pause_after_a_refusal() -> None:
    assert barred(memory=tried(1, hours=0.1, outcome=Outcome.REFUSED)) == {P.SETTLING}
    assert not barred(memory=tried(1, hours=-8.0, outcome=Outcome.REFUSED))


def test_a_bundle_of_before_the_failure_does_not_count_and_one_after_it_does() -> None:
    first = FINDING.first_seen.wall
    for made, expected in ((first - 1.0, {P.BUNDLE}), (first + 1.0, set())):
        memory = replace(EMPTY, bundles={str(FINDING.key): made})
        assert barred(bundles=True, memory=memory) == expected


def test_a_bundle_that_failed_says_why_there_is_none_and_is_enough() -> None:
    failed = replace(
        begun("t0", 0.0), kind="bundle_failed", key=None, data={"finding": str(FINDING.key), "why": "the disk is full"}
    )
    assert not barred(bundles=True, memory=remembered(failed))


def test_one_gpu_is_reset_beside_a_busy_one_and_all_of_them_are_not() -> None:
    processes = {slot(n): int(n == 5) for n in range(8)}
    assert not barred(processes=processes)
    alone = planned()
    together = replace(alone, step=Step(StepKind.RESET_ALL))
    assert barred(together, processes=processes) == {P.PROCESSES}
    assert barred(replace(alone, step=Step(StepKind.REBOOT)), processes=processes) == {P.PROCESSES}


def test_a_node_of_which_nobody_says_what_runs_there_is_rebooted_only_for_an_operator() -> None:
    """A driver that hangs says nothing, and a job may live on."""
    silent = {"processes": None, "node_states": {"slurm": drained(empty=None)}}
    reboot = replace(planned(), step=Step(StepKind.REBOOT))
    assert barred(reboot, **silent) == {P.JOBS}
    assert not barred(reboot, ordered=True, **silent)
    assert not barred(reboot, processes=None), "Slurm names none"
    assert not barred(**silent), "the helper of a reset looks for itself"


def test_where_no_gpu_can_be_reset_alone_all_are_together() -> None:
    step = planned().step
    assert step is not None
    assert fitted(step, {"reset_all", "reboot"}) == Step(StepKind.RESET_ALL)
    assert fitted(step, {"reset_gpu", "reset_all"}) == step
    assert fitted(step, {"reboot"}) == step


def test_a_consequence_is_not_repaired_and_its_cause_is_named() -> None:
    cause = Key("xid", gpu(slot(1)), "79")
    consequence = replace(FINDING, caused_by=cause)
    barriers = obstacles(scene(verdict=verdict(consequence)), planned(cause=consequence))
    assert [(each.precondition, str(cause) in each.text) for each in barriers] == [(P.FINDING, True)]


def test_in_mode_observe_the_exclusion_that_would_be_written_counts() -> None:
    """The node goes on to have jobs there, which would have ended."""
    would = Intent(act=Act.EXCLUDE, actuator="slurm", why=Why.FAILURE, reason=REASON, key="k", at=NOW, observed=True)
    policy = PolicyState(boot_id=BOOT, would={"slurm": would})
    idle = drained(owner=Owner.NONE, why=None, reason="", schedulable=True, empty=False)
    assert barred(enforce=False, policy=policy, node_states={"slurm": idle}) <= OBSERVED_WITHOUT


def test_an_operator_s_notice_is_one() -> None:
    notice = replace(NOTICE, source=OPERATOR)
    assert barred(policy=replace(HELD, notices={"operator/": notice})) == {P.NOTICE}


def test_a_finding_that_came_after_the_exclusion_keeps_no_step_for_the_first_one_back() -> None:
    """An Xid 79 asks for a reboot, and the node is excluded for an Xid 95: its reset comes first, and then a reboot, or a person."""
    both = scene(verdict=verdict(FINDING, later := xid(79, 3, Advice.REBOOT)))
    reset, reboot, person = planned(), planned(cause=later), planned(tried(2))
    assert P.REASON in {obstacle.precondition for obstacle in obstacles(both, reboot)}
    assert next_of([(plan, obstacles(both, plan)) for plan in (reset, reboot)]) is reset
    assert person.gave_up
    assert next_of([(plan, obstacles(both, plan)) for plan in (person, reboot)]) is None
    assert next_of([(reboot, obstacles(both, reboot))]) is reboot, "status names what forbids it"


def test_a_cause_is_repaired_where_the_exclusion_names_what_follows_from_it() -> None:
    cause = xid(79, 3, Advice.REBOOT)
    both = scene(verdict=verdict(replace(FINDING, caused_by=cause.key), cause))
    assert not obstacles(both, planned(cause=cause))
