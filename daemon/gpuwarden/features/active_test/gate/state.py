"""The state of one exclusion's return gate, as the fold of events. Pure.

GATE_WANTED, GATE_BEGUN and GATE_ENDED each hold the whole state, so the last of them is enough. Between them TESTED
adds results, no matter who ran the test. When a failure ends or recurs, all earlier results become void.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from enum import StrEnum
from typing import Annotated

from gpuwarden.features.active_test.judging.outcome import ActiveVerdict
from gpuwarden.features.active_test.judging.past import PastTest
from gpuwarden.features.active_test.judging.results import CODES, LEVELS
from gpuwarden.features.active_test.judging.submission import ENDED_BY_A_PASSED_TEST
from gpuwarden.health.event_data import cut, otherwise, read
from gpuwarden.health.model import Event, EventKind, GpuVerdict, Key
from gpuwarden_collectors.active_test.level import Level
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

_WHOLE = frozenset({EventKind.GATE_WANTED, EventKind.GATE_BEGUN, EventKind.GATE_ENDED})
"""Events that hold the whole state."""
TEXT_MOST = 300
LIST_MOST = 1_900
"""Characters. The ledger stores at most 2,000 of a text."""
ENDED_BY_TESTS = CODES | {ENDED_BY_A_PASSED_TEST}
"""Codes of findings that a passed test ends: their end does not void the results of that test."""
UNDONE_REPAIRS = ("refused", "observed")
"""Outcomes of repair steps that were not carried out."""
WENT_DOWN = "the machine went down while the test ran"


class GateResult(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    NO_VERDICT = "no_verdict"
    VOID = "void"
    """This host cannot test: the node returns as if it had no gate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The state of one exclusion's gate, from its first failure of a GPU, link or switch until its end."""

    since: Stamp | None = None
    """When the newest failure was found or ended: a test that began earlier does not count."""
    boot: str = ""
    """The boot of `since`."""
    failures: Annotated[str, cut(2000)] = ""
    """Keys of the findings, separated by spaces."""
    results: Annotated[str, cut(2000)] = ""
    """Results of each GPU tested since, as `uuid=level:verdict`, separated by spaces."""
    untestable: Annotated[str, cut(2000)] = ""
    """Slots of the GPUs whose settings forbade a test when the last one began, separated by spaces."""
    run: Annotated[str, cut(64)] = ""
    """Name of the test that gpuwarden runs for this gate; empty if none."""
    tries: int = 0
    """Tests in a row that gave no verdict."""
    cut: int = 0
    """Consecutive tests that show nothing: ended by a signal or by gpuwarden, or overtaken by a new failure."""
    overtaken: bool = False
    """A failure was found or ended since the last test began: its results do not count."""
    hindered: bool = False
    """No test could begin for HINDERED_FOR, on a host that could test before."""
    failed: int = 0
    """Tests that failed."""
    again: Stamp | None = None
    """Time before which no further test begins."""
    repaired: bool = False
    """A repair step was carried out in this exclusion."""
    result: GateResult | None = field(default=None, metadata=otherwise(None))
    """Result of the last test."""
    text: Annotated[str, cut(TEXT_MOST)] = ""
    """Text of the last test, for people."""


def folded(gate: Gate | None, event: Event) -> Gate | None:
    """Return the gate after an event of any kind."""
    if event.kind in _WHOLE:
        return read(Gate, event)
    if event.kind == EventKind.REPAIR_ENDED:
        return _repaired(gate, event)
    return None if gate is None else _followed(gate, event)


def _followed(gate: Gate, event: Event) -> Gate:
    match event.kind:
        case EventKind.TESTED:
            return _tested(gate, event)
        case EventKind.RAISED | EventKind.CLEARED if _moves(gate, event):
            return replace(gate, since=event.at, boot=event.boot_id, results="", result=None, overtaken=True)
        case EventKind.BOOT:
            return _booted(gate)
    return gate


def _repaired(gate: Gate | None, event: Event) -> Gate | None:
    """Return the gate after a repair step: unless nothing was done, it voids all earlier tests."""
    if event.key is None or event.data.get("outcome") in UNDONE_REPAIRS:
        return gate
    if gate is None:
        return Gate(since=event.at, boot=event.boot_id, failures=str(event.key), repaired=True)
    return replace(gate, since=event.at, boot=event.boot_id, results="", result=None, overtaken=True, repaired=True)


def _booted(gate: Gate) -> Gate:
    """Return the gate after a boot. A test that was running may have taken the machine down: it counts as a try, so
    that this does not repeat after each boot.
    """
    if not gate.run:
        return replace(gate, tries=0, cut=0, hindered=False, again=None)
    return replace(gate, run="", tries=gate.tries + 1, again=None, result=GateResult.NO_VERDICT, text=WENT_DOWN)


def _moves(gate: Gate, event: Event) -> bool:
    key = event.key
    return key is not None and str(key) in gate.failures.split() and key.code not in ENDED_BY_TESTS


def _tested(gate: Gate, event: Event) -> Gate:
    test = read(PastTest, event)
    since = gate.since if event.boot_id == gate.boot else None
    if since is not None and event.at.boottime - max(test.age, test.seconds) < since.boottime:
        return gate
    results = results_of(gate)
    before = results.get(test.uuid)
    lower = before is not None and LEVELS.index(test.level) < LEVELS.index(before[0])
    others = {uuid: result for uuid, result in results.items() if uuid != test.uuid}
    if test.verdict is ActiveVerdict.NO_VERDICT:
        # A busy or interrupted test shows nothing; a finding without a verdict (CUDA hung) voids the earlier result.
        return replace(gate, results=as_text(others)) if test.findings else gate
    if test.verdict is ActiveVerdict.NOTHING_FOUND and lower:
        return gate
    return replace(gate, results=as_text({**others, test.uuid: (test.level, test.verdict)}))


# --- results


def passed(gate: Gate, level: Level, gpus: Iterable[GpuVerdict]) -> bool:
    """Return True if each expected GPU that can be tested has passed. False if no GPU is expected, or none can be
    tested: then nothing was tested.
    """
    results, concerned, left_out = results_of(gate), slots_of(gate), gate.untestable.split()
    here = [gpu for gpu in gpus if gpu.expected and (gpu.slot not in left_out or gpu.uuid in results)]
    return bool(here) and all(
        (outcome := results.get(gpu.uuid)) is not None
        and LEVELS.index(outcome[0]) >= LEVELS.index(level)
        and (
            outcome[1] is ActiveVerdict.NOTHING_FOUND
            or (outcome[1] is ActiveVerdict.WARNING and not _is_in(gpu.slot, concerned))
        )
        for gpu in here
    )


def failed(gate: Gate, gpus: Iterable[GpuVerdict]) -> bool:
    results, concerned = results_of(gate), slots_of(gate)
    verdicts = [(results[gpu.uuid][1], gpu.slot) for gpu in gpus if gpu.uuid in results]
    return any(
        verdict is ActiveVerdict.FAILURE or (verdict is ActiveVerdict.WARNING and _is_in(slot, concerned))
        for verdict, slot in verdicts
    )


def slots_of(gate: Gate) -> frozenset[str]:
    """Return the slots of the GPUs that the failures concern; "" stands for all GPUs, as for a switch."""
    subjects = [Key.parse(text).subject for text in gate.failures.split()]
    return frozenset("" if subject.kind == "switch" else subject.slot for subject in subjects)


def _is_in(slot: str, concerned: frozenset[str]) -> bool:
    return slot in concerned or "" in concerned


def results_of(gate: Gate) -> dict[str, tuple[Level, ActiveVerdict]]:
    results = {}
    for word in gate.results.split():
        uuid, _, rest = word.partition("=")
        level, _, verdict = rest.partition(":")
        if level in LEVELS and verdict in list(ActiveVerdict):
            results[uuid] = (Level(level), ActiveVerdict(verdict))
    return results


def as_text(results: Mapping[str, tuple[Level, ActiveVerdict]]) -> str:
    """Return the results as a text of at most LIST_MOST characters. A GPU that does not fit has not passed."""
    text = ""
    for uuid, (level, verdict) in results.items():
        longer = f"{text} {uuid}={level.value}:{verdict.value}".strip()
        if len(longer) > LIST_MOST:
            break
        text = longer
    return text
