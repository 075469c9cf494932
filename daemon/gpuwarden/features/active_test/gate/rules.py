"""The return gate: an exclusion for a failure of a GPU, link or switch is lifted only after a test of every GPU. Pure.

    failure found while the node is out -- GATE_WANTED --> wanted -- GATE_BEGUN --> runs -- GATE_ENDED --> passed, failed, no verdict, or void

Results from before the end of the newest failure do not count (`state.py`). A GPU passes if a test of the required
level or a higher one finds nothing. A GPU that the exclusion is not about also passes with a warning, since a warning
excludes no node either. A GPU whose settings forbid a test is left out if others can be tested; the gate is void only
if every GPU that the exclusion is about is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum

from gpuwarden.features.active_test.gate.state import (
    ENDED_BY_TESTS,
    LIST_MOST,
    TEXT_MOST,
    Gate,
    GateResult,
    as_text,
    failed,
    passed,
    results_of,
    slots_of,
)
from gpuwarden.features.active_test.judging.outcome import ActiveVerdict
from gpuwarden.health.model import Finding, GpuVerdict, Key
from gpuwarden_collectors.active_test.level import Level
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

TRIES_MOST = 3
"""Consecutive tests without a verdict after which an operator must act."""
AGAIN_AFTER = 600.0
"""Seconds between two tests, so that three begin within 30 minutes."""
FAILED_MOST = 2
"""Failed tests in one exclusion after which an operator must inspect the GPU."""
CUT_MOST = 6
"""Consecutive tests that were ended early or overtaken by a new failure, no tries, after which an operator must act."""
HINDERED_FOR = 1800.0
"""Seconds for which a test is retried that cannot begin on a host that could test before; then an operator must act."""
OVERTAKEN = "a failure was found or ended while the test ran: its results do not count"
_KINDS = ("gpu", "link", "switch")


class GateState(StrEnum):
    """The phase of the gate; exactly one holds."""

    WAITING = "waiting"
    """Waits until jobs or another test end, or for the next try."""
    DUE = "due"
    RUNNING = "running"
    PASSED = "passed"
    VOID = "void"
    PERSON = "person"
    """An operator must act: run a test that passes, or `gpuwarden restore`."""


@dataclass(frozen=True, slots=True)
class Assessed:
    state: GateState
    text: str
    """Why the node does not return yet, and what to do; "" if it may return."""
    waits: str = ""
    """Why the test that is due does not begin; "" if nothing prevents it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """State of the node that concerns a test. `testing`: any test runs here. `occupied`: which jobs or processes forbid
    a test now; "" if none do.
    """

    gpus: tuple[GpuVerdict, ...] = ()
    testing: bool = False
    occupied: str = ""


def concerns(finding: Finding) -> bool:
    return finding.key.subject.kind in _KINDS


def wanted(gate: Gate | None, findings: Iterable[Finding], now: Stamp, boot_id: str) -> Gate | None:
    """Return the gate after these failures, for which the node is excluded; None if none of them is new."""
    before = "" if gate is None else gate.failures
    new_keys = _fitting(before, [finding.key for finding in findings if concerns(finding)])
    if not new_keys:
        return None
    failures = " ".join((*before.split(), *map(str, new_keys)))
    if gate is not None and all(key.code in ENDED_BY_TESTS for key in new_keys):  # found by a test, whose results stay
        return replace(gate, failures=failures)
    if gate is None:
        return Gate(since=now, boot=boot_id, failures=failures)
    return Gate(
        since=now,
        boot=boot_id,
        failures=failures,
        run=gate.run,
        failed=gate.failed,
        cut=gate.cut,
        overtaken=True,
        repaired=gate.repaired,
    )


def _fitting(before: str, keys: Iterable[Key]) -> list[Key]:
    """Return the new keys, as many as fit, first one for each GPU: a node with all links down has more than fit."""
    earlier, slots = set(before.split()), set()
    firsts: list[Key] = []
    others: list[Key] = []
    for key in dict.fromkeys(keys):
        if str(key) not in earlier:
            (others if key.subject.slot in slots else firsts).append(key)
            slots.add(key.subject.slot)
    room, fitting = LIST_MOST - len(before), []
    for key in (*firsts, *others):
        if (room := room - len(str(key)) - 1) < 0:
            break
        fitting.append(key)
    return fitting


def untested(gate: Gate, untestable: Mapping[str, str]) -> str:
    """Return why a test could not cover what the exclusion is for; "" if it can. `untestable`: by slot, why a GPU
    cannot be tested while others can.
    """
    slots = sorted(slots_of(gate))
    return "; ".join(untestable[slot] for slot in slots) if all(slot in untestable for slot in slots) else ""


def begun(gate: Gate, run: str, untestable: Iterable[str] = ()) -> Gate:
    """Return the gate once a test has begun. It keeps only results that passed. `untestable`: slots of the GPUs that
    this test leaves out.
    """
    good = {uuid: result for uuid, result in results_of(gate).items() if result[1] is ActiveVerdict.NOTHING_FOUND}
    return replace(
        gate, run=run, results=as_text(good), untestable=" ".join(untestable), overtaken=False, hindered=False
    )


def ended(
    gate: Gate,
    level: Level,
    gpus: Iterable[GpuVerdict],
    text: str,
    now: Stamp,
    *,
    pause: bool = True,
    is_try: bool = True,
) -> Gate:
    """Return the gate after its test, judged by the results so far. `text`: the result, for people. `is_try` False: the
    test never began or was ended from outside, which shows nothing about the node.
    """
    over = replace(gate, run="", text=text[:TEXT_MOST], again=None)
    gpus = tuple(gpus)
    if passed(gate, level, gpus):
        return replace(over, result=GateResult.PASSED, tries=0, cut=0, text=of_passed(gate, level))
    later = Stamp(now.boottime + AGAIN_AFTER, now.wall + AGAIN_AFTER) if pause else None
    if failed(gate, gpus):
        return replace(over, result=GateResult.FAILED, failed=gate.failed + 1, cut=0, again=later)
    over = replace(over, result=GateResult.NO_VERDICT, again=later)
    if gate.overtaken:
        return replace(over, cut=gate.cut + 1, text=OVERTAKEN)
    return replace(over, tries=gate.tries + 1, cut=0) if is_try else replace(over, cut=gate.cut + 1)


def of_passed(gate: Gate, level: Level) -> str:
    """Return the text about a passed test, for people. It counts warnings on GPUs that the exclusion is not about;
    findings have the details.
    """
    warnings = sum(verdict is ActiveVerdict.WARNING for _, verdict in results_of(gate).values())
    left_out = len(gate.untestable.split())
    return "; ".join(
        filter(
            None,
            (
                f"a test of level {level} found nothing on {len(results_of(gate)) - warnings} GPUs",
                f"a warning on {warnings}" if warnings else "",
                f"{left_out} that cannot be tested left out" if left_out else "",
            ),
        )
    )


def hindered(gate: Gate, why: str) -> Gate:
    """Return the gate after no test could begin for HINDERED_FOR. `why`: what this host lacks."""
    return replace(gate, run="", result=GateResult.NO_VERDICT, hindered=True, text=why[:TEXT_MOST])


def void(gate: Gate, why: str) -> Gate:
    return replace(gate, run="", result=GateResult.VOID, text=why[:TEXT_MOST])


def assess(gate: Gate, level: Level, around: Surroundings, now: Stamp) -> Assessed:
    if gate.result is GateResult.VOID:
        return Assessed(GateState.VOID, "")
    if gate.run:
        return Assessed(GateState.RUNNING, f"a test of level {level} runs before the node comes back")
    if passed(gate, level, around.gpus):
        wait = "the node passed its test, and comes back when that has ended"
        return Assessed(GateState.WAITING, wait) if around.testing else Assessed(GateState.PASSED, "")
    if why := _needs_person(gate):
        to_do = (
            f"gpuwarden test --level {level}, which brings it back if it finds nothing, or gpuwarden restore --untested"
        )
        return Assessed(GateState.PERSON, f"{why} before its return ({gate.text}): {to_do}")
    which = " that can be tested" if gate.untestable else ""
    test = f"a test of level {level} must find nothing on every GPU{which} before the node comes back"
    if waits := _waits(gate, around, now):
        return Assessed(GateState.WAITING, f"{test}; {waits}", waits)
    return Assessed(GateState.DUE, test)


def result_text(gate: Gate, level: Level, assessed: Assessed | None, gpus: Iterable[GpuVerdict]) -> str:
    """Return the result of the tests of this exclusion so far, for an operator who decides on the return. `assessed` is
    None if the state of the gate is not known.
    """
    if passed(gate, level, gpus):
        return of_passed(gate, level)
    if gate.result is GateResult.VOID:
        return f"this host cannot test: {gate.text}"
    if gate.run:
        return f"a test of level {level} runs"
    if why := _needs_person(gate):
        return f"no test has passed: {why} ({gate.text})"
    waits = "" if assessed is None else f", {assessed.waits}" if assessed.waits else ", due now"
    came = "" if gate.result is None else f", the last one {_CAME.get(gate.result, gate.result)} ({gate.text})"
    return f"no test has passed since the failure{came}: a test of level {level} is next{waits}"


_CAME = {GateResult.FAILED: "failed", GateResult.NO_VERDICT: "gave no verdict"}


def returns_untested(gate: Gate, level: Level, gpus: Iterable[GpuVerdict]) -> str:
    """Return why an operator's restoration would return a node whose GPUs passed no test, and what to do; "" if they
    passed, or if this host cannot test.
    """
    gpus = tuple(gpus)
    if gate.result is GateResult.VOID or passed(gate, level, gpus):
        return ""
    wait = "" if _needs_person(gate) else "wait for it, or "
    return (
        f"not restored: {result_text(gate, level, None, gpus)}; {wait}test it (gpuwarden test --level {level}) and restore it then;"
        " or bring it back untested: gpuwarden restore --untested"
    )


def _needs_person(gate: Gate) -> str:
    if gate.failed >= FAILED_MOST:
        return f"inspect the GPU: {gate.failed} tests failed"
    if gate.hindered:
        return f"no test could begin for {HINDERED_FOR / 60:.0f} minutes"
    if gate.cut >= CUT_MOST:
        return f"{gate.cut} tests were ended early"
    return f"{gate.tries} tests gave no verdict" if gate.tries >= TRIES_MOST else ""


def _waits(gate: Gate, around: Surroundings, now: Stamp) -> str:
    if around.testing:
        return "another test runs now"
    if around.occupied:
        return f"it waits: {around.occupied}"
    if gate.again is None or not 0.0 < gate.again.boottime - now.boottime <= AGAIN_AFTER:
        return ""
    came = "failed" if gate.result is GateResult.FAILED else "gave no verdict"
    return f"the last one {came} ({gate.text}), and the next is {AGAIN_AFTER:.0f} s after it"
