"""Judges the results of one run of `gpuwarden test` on a node: an outcome for each GPU. Pure.

A wrong result counts even if other programs use the GPU; a speed counts only if the test was alone. The thresholds are
in `thresholds.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpuwarden.features.active_test.judging.correctness import defect, wrong_once, wrong_results
from gpuwarden.features.active_test.judging.outcome import ActiveVerdict, Defect, Outcome
from gpuwarden.features.active_test.judging.past import PastTest, lately
from gpuwarden.features.active_test.judging.speed import asymmetric, disturbed, slow_figures, slow_sms
from gpuwarden.features.active_test.judging.thresholds import (
    FIGURES,
    GATE_LEAVES,
    MEMORY_COVERED,
    REMEMBERED,
    XIDS_COUNT_FROM,
)
from gpuwarden.health.model import Severity
from gpuwarden_collectors.active_test.facts import GpuTest
from gpuwarden_collectors.active_test.level import Level

REPEATS = 3
"""Further tests of a GPU whose result was wrong once."""
Past = Mapping[str, Sequence[PastTest]]
"""By UUID, in the order of time."""


def to_repeat(tests: Sequence[GpuTest]) -> tuple[str, ...]:
    """UUIDs of the GPUs that are to be tested again, at the same level, before the run is judged."""
    return tuple(
        uuid
        for uuid, runs in _by_gpu(tests).items()
        if wrong_once(runs) and len(runs) <= REPEATS and runs[-1].obstacle is None
    )


def judge(
    tests: Sequence[GpuTest], past: Past | None = None, xids: Mapping[str, Sequence[int]] | None = None
) -> dict[str, Outcome]:
    """Return the outcome of each GPU, by UUID. `tests` may hold several of a GPU: the repeats of a run (`to_repeat`).
    Speeds are taken from its first test.

    `past`: results of earlier runs. `xids`: by UUID, Xids 13, 31, 43 and 45 of the test's own processes during this
    run.
    """
    gpus = _by_gpu(tests)
    given_xids = xids or {}
    now = max((test.started.wall for test in tests), default=0.0)
    earlier = {uuid: lately(results, now, REMEMBERED) for uuid, results in (past or {}).items()}
    history = {uuid: earlier.get(uuid, []) for uuid in gpus} | {
        uuid: results for uuid, results in earlier.items() if results
    }
    first = [runs[0] for runs in gpus.values()]
    pairs: dict[str, list[Defect]] = {}
    for uuid, pair in asymmetric(first, next(figure.drop for figure in FIGURES if figure.name == "peers")):
        pairs.setdefault(uuid, []).append(pair)
    return {
        uuid: _outcome(
            runs, [other for other in first if other is not runs[0]], history, given_xids, pairs.get(uuid, ())
        )
        for uuid, runs in gpus.items()
    }


def _by_gpu(tests: Iterable[GpuTest]) -> dict[str, list[GpuTest]]:
    by_gpu: dict[str, list[GpuTest]] = {}
    for test in tests:
        by_gpu.setdefault(test.uuid, []).append(test)
    return by_gpu


def _outcome(
    runs: Sequence[GpuTest],
    others: Sequence[GpuTest],
    history: Past,
    xids: Mapping[str, Sequence[int]],
    pairs: Iterable[Defect],
) -> Outcome:
    test, past = runs[0], history.get(runs[0].uuid, ())
    defects = [*wrong_results(runs, past), *_xids(test.uuid, history, xids)]
    siblings = [other for other in others if other.obstacle is None]
    reasons = [
        f"{run.obstacle.shown}: {run.text}" if run.text else run.obstacle.shown
        for run in runs
        if run.obstacle is not None
    ]
    reasons += filter(None, (disturbed(test, siblings, past), *_untested(test)))
    reasons += [f"Xid {number} of the test's own process" for number in dict.fromkeys(xids.get(test.uuid, ()))]
    reasons += _unread(test, others)
    alone = not reasons
    deep: tuple[str, ...] = ()
    unjudged: tuple[str, ...] = ()
    if alone:
        undisturbed = [other for other in siblings if not disturbed(other, (), history.get(other.uuid, ()))]
        slow, deep, unjudged = slow_figures(test, undisturbed, past)
        defects += [*slow_sms(test), *slow, *pairs]
    defects.sort(key=lambda defect: defect.severity is Severity.WARNING)
    return Outcome(
        verdict=_verdict(defects, alone=alone),
        findings=tuple(defects),
        text="; ".join(dict.fromkeys(reasons)),
        figures_good=alone,
        deep=deep,
        unjudged=unjudged,
    )


def _unread(test: GpuTest, others: Sequence[GpuTest]) -> Iterable[str]:
    """Yield errors of reading peers. They count against the GPU that was read, and a reader that could read none."""
    yield from (
        f"read by {other.uuid}: {peer.error}"
        for other in others
        for peer in other.peers
        if peer.peer == test.uuid and peer.error
    )
    if len(test.peers) > 1 and all(peer.error for peer in test.peers):
        yield f"it could read none of {len(test.peers)} other GPUs: {test.peers[0].error}"


def _verdict(defects: Sequence[Defect], *, alone: bool) -> ActiveVerdict:
    if any(defect.severity is Severity.FAILURE for defect in defects):
        return ActiveVerdict.FAILURE
    if not alone:
        return ActiveVerdict.NO_VERDICT
    return ActiveVerdict.WARNING if defects else ActiveVerdict.NOTHING_FOUND


def _untested(test: GpuTest) -> Iterable[str]:
    """Yield what a test without an obstacle left out of the GPU, which prevents a verdict. Unread counters are among
    them: only they show an error that ECC could not correct, or a GPU that was lost during the test.
    """
    if test.obstacle is not None:
        return
    for kernel in test.kernels:
        if kernel.missing:
            yield f"{kernel.kernel}: {len(kernel.missing)} of {kernel.sms} SMs were not covered"
    if test.growth is None:
        yield "its counters of errors could not be read after the test"
    if test.pcie is None and test.level is not Level.GATE:
        yield "PCIe was not tested: the worker of another GPU kept its turn for too long"
    memory = test.memory
    if memory is None or not memory.marches:
        yield "memory was not tested"
    elif memory.tested < MEMORY_COVERED * (memory.total - (GATE_LEAVES if test.level is Level.GATE else 0)):
        yield f"only {memory.tested / max(1, memory.total):.0%} of the memory was tested"


def _xids(uuid: str, history: Past, xids: Mapping[str, Sequence[int]]) -> Iterable[Defect]:
    """Yield a warning if the test's programs keep causing Xids on this GPU and no other: then they are not the cause.

    A single GPU has no siblings to compare with.
    """
    if not xids.get(uuid):
        return
    times = 1 + sum(1 for test in history.get(uuid, ()) if test.xids)
    others = [other for other in history if other != uuid]
    clean = [other for other in others if not xids.get(other) and not any(test.xids for test in history[other])]
    if times >= XIDS_COUNT_FROM and others and len(clean) == len(others):
        numbers = ", ".join(map(str, dict.fromkeys(xids[uuid])))
        yield defect(
            "xid",
            Severity.WARNING,
            f"Xid {numbers} of the test's own process, in {times} tests on this GPU and on no other",
        )
