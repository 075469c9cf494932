"""The stored results of a board's tests, and which of their findings are active. Folded from TESTED events.

A board keeps 90 days and `KEPT` results at most, and one in 20 hours of each level where nothing was found: at 1.5 KiB
each, 96 KiB a board. A result is kept longer if an active finding depends on it, or if dropping it would revive one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from gpuwarden.features.active_test.judging.outcome import BANDWIDTH_LOW, SM_SLOW, TEST_FAILED, TEST_HUNG, ActiveVerdict
from gpuwarden.features.active_test.judging.past import PastTest
from gpuwarden.features.active_test.judging.thresholds import HOUR, MEMORY_COVERED, RESULTS_KEPT
from gpuwarden.health.event_data import read, write
from gpuwarden.health.model import Event, EventKind, Key, Severity, gpu
from gpuwarden_collectors.active_test.level import Level
from gpuwarden_collectors.dataclass import dataclass

KEPT, BOARDS_KEPT = 64, 256
SPACING = 20 * HOUR
CODES = frozenset({TEST_FAILED, TEST_HUNG, SM_SLOW, BANDWIDTH_LOW})
LEVELS = tuple(Level)

Tests = Mapping[str, tuple[PastTest, ...]]
"""Results by UUID, in order of arrival."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """An active finding of tests: nothing has ended it."""

    test: PastTest
    """The newest test that found it."""
    severity: Severity
    """The worst severity that tests gave it."""
    level: Level
    """The highest level that found it: a test of this level or higher ends it."""
    made_by: tuple[PastTest, ...]
    """The newest test that found it, the newest with this severity, and the newest at this level."""


def tested(slot: str, test: PastTest, boot_id: str) -> Event:
    key = Key("test", gpu(slot), test.level.value)
    return Event(kind=EventKind.TESTED, at=test.at, boot_id=boot_id, key=key, data=write(test))


def test_events(tests: Tests, slots: Mapping[str, str], boot_id: str) -> Iterator[Event]:
    """Yield the events that rebuild these results from nothing. `slots`: the slot of each board, by UUID."""
    for uuid, results in tests.items():
        yield from (tested(slots.get(uuid, ""), result, boot_id) for result in results)


def with_result(tests: Tests, event: Event) -> Tests:
    """Return the tests with the result of an event TESTED added."""
    new = read(PastTest, event)
    if not new.uuid:
        return tests
    results = _pruned((*_thinned(tests.get(new.uuid, ()), new), new))
    others = {uuid: each for uuid, each in tests.items() if uuid != new.uuid}
    return dict([*others.items(), (new.uuid, results)][-BOARDS_KEPT:])


def _thinned(results: tuple[PastTest, ...], new: PastTest) -> tuple[PastTest, ...]:
    """Return the results without the last one of the new one's level, if it came soon after the one before it and adds
    nothing to the new one.
    """
    same = [result for result in results if result.level is new.level][-2:]
    if len(same) < 2:
        return results
    before, last = same
    says_more = last.failed or last.warned or last.xids or last.verdict not in (new.verdict, ActiveVerdict.NO_VERDICT)
    if says_more or not 0 <= last.at.wall - before.at.wall < SPACING:
        return results
    rest = _without(results, last)
    return results if _changes((*results, new), (*rest, new)) else rest


def _pruned(results: tuple[PastTest, ...]) -> tuple[PastTest, ...]:
    newest = results[-1].at.wall
    if len(results) <= KEPT and newest - results[0].at.wall <= RESULTS_KEPT:
        return results
    needed = {id(test) for result in standing(results).values() for test in result.made_by}
    droppable = [result for result in results if id(result) not in needed]
    kept = results
    for result in droppable:
        if newest - result.at.wall > RESULTS_KEPT and not _changes(results, rest := _without(kept, result)):
            kept = rest
    for result in droppable:
        if len(kept) > KEPT and not _changes(results, rest := _without(kept, result)):
            kept = rest
    return kept


def _without(results: tuple[PastTest, ...], dropped: PastTest) -> tuple[PastTest, ...]:
    return tuple(result for result in results if result is not dropped)


def _changes(results: tuple[PastTest, ...], fewer: tuple[PastTest, ...]) -> bool:
    """Return True if with only `fewer` of the results an ended finding is active again, or one changes."""
    before, after = standing(results), standing(fewer)
    return any(
        (earlier := before.get(name)) is None or (earlier.severity, earlier.level) != (finding.severity, finding.level)
        for name, finding in after.items()
    )


def standing(results: tuple[PastTest, ...]) -> dict[str, Standing]:
    """Return the findings of the tests that nothing has ended, by name (`test_failed.memory`)."""
    findings: dict[str, Standing] = {}
    for test in results:
        if test.verdict is ActiveVerdict.NOTHING_FOUND:
            passed = LEVELS.index(test.level)
            unjudged = test.unjudged.split()
            findings = {
                name: finding
                for name, finding in findings.items()
                if LEVELS.index(finding.level) > passed or name in unjudged
            }
        for severity, names in ((Severity.FAILURE, test.failed), (Severity.WARNING, test.warned)):
            for name in set(names.split()) - set(test.acknowledged.split()):
                findings[name] = _found_again(findings.get(name), test, severity)
    return findings


def _found_again(before: Standing | None, test: PastTest, severity: Severity) -> Standing:
    if before is None:
        return Standing(test=test, severity=severity, level=test.level, made_by=(test, test, test))
    _, worst, highest = before.made_by
    if severity is Severity.FAILURE or before.severity is not Severity.FAILURE:
        worst = test
    else:
        severity = before.severity
    if LEVELS.index(test.level) >= LEVELS.index(before.level):
        highest = test
    return Standing(test=test, severity=severity, level=highest.level, made_by=(test, worst, highest))


def newest(results: tuple[PastTest, ...]) -> tuple[PastTest, ...]:
    """Return the newest result of each level, the newest last."""
    by_level: dict[Level, PastTest] = {}
    for result in results:
        by_level.pop(result.level, None)
        by_level[result.level] = result
    return tuple(by_level.values())


def acknowledged(tests: Tests, uuid: str, key: Key) -> Tests:
    """Return the tests after an operator has acknowledged the finding `key` of board `uuid`, which ends it."""
    name = f"{key.code}.{key.detail}" if key.detail else key.code
    if uuid not in tests:
        return tests
    return {**tests, uuid: tuple(_acknowledged(test, name) for test in tests[uuid])}


def _acknowledged(test: PastTest, name: str) -> PastTest:
    if name not in test.findings or name in test.acknowledged.split():
        return test
    return replace(test, acknowledged=f"{test.acknowledged} {name}".strip())


def ends_memory_finding(test: PastTest) -> bool:
    """True if the test ends `memory_degrading`: level quick or higher, all of the memory tested, nothing found."""
    return (
        test.verdict is ActiveVerdict.NOTHING_FOUND
        and test.level is not Level.GATE
        and test.memory_share >= MEMORY_COVERED
    )
