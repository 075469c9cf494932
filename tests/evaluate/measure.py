"""One fault, or one node's healthy days, from the first record to what is to be reported of it in the report."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from evaluate.classes import CLASSES
from evaluate.fault_class import ANY, ERROR, LINE, FaultClass, named
from evaluate.faults import SWITCH
from evaluate.jury import Jury, Reported
from evaluate.models import MODELS
from evaluate.node import Node
from evaluate.ordinary import DAY, Ordinary
from gpuwarden.health.model import Finding, Health
from gpuwarden.trace.records import ActiveTested, Began, ErrorsChanged, HostEventsSeen, Passed, Record
from gpuwarden_collectors.facts import Stamp
from support.hosts import slot

AFTER_THE_CUT = 600.0
LONG = 1800.0
"""Seconds of grace from which on a story is judged by a quiet replay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultResult:
    """`delay`: seconds from where the fault was shown to the verdict, None if there was none. `ended`: seconds from its
    repair until the node was healthy. `wrong`: what was reported besides and is not true. `forgot`: what a restart changed.
    """

    fault: str
    seed: int
    model: str
    delay: float | None
    ended: float | None
    wrong: tuple[str, ...]
    forgot: str
    slowest_step: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthyResult:
    """`memory`: MiB of this process at the end of the second day and of the last."""

    seed: int
    model: str
    days: float
    wrong: tuple[Reported, ...]
    true_warnings: int
    ordinary: dict[str, int]
    passes: int
    judged: int
    spent: float
    memory: tuple[float, float]


@dataclass(slots=True)
class _Watch:
    """The sink of a node that is struck: notes when the fault is shown, and when it is detected."""

    fault: FaultClass
    records: list[Record] = field(default_factory=list)
    jury: Jury = field(default_factory=Jury)
    node: Node | None = None
    gpu: int = 0
    struck: float = float("inf")
    before: int = 1
    shown: float | None = None
    detected: float | None = None
    slowest: float = 0.0

    def take(self, record: Record) -> None:
        self.records.append(record)
        spent = self.jury.spent
        self.jury.take(record)
        self.slowest = max(self.slowest, self.jury.spent - spent)
        clock = 0.0 if self.node is None else self.node.clock
        if self.shown is None and clock >= self.struck + self.fault.after and self._shows(record):
            self.shown = clock
        if self.detected is None and self.shown is not None and any(map(self._right, self.jury.findings)):
            self.detected = clock

    def _shows(self, record: Record) -> bool:
        if self.fault.shown == LINE:
            return isinstance(record, HostEventsSeen)
        if self.fault.shown == ERROR:
            return isinstance(record, ErrorsChanged)
        who = ("nvml", "pci") if self.fault.shown == ANY else (self.fault.shown,)
        return isinstance(record, Passed) and record.observation.collector in who

    def _right(self, finding: Finding) -> bool:
        subject = finding.key.subject
        of_the_host = self.fault.about == "adapter"  # in a slot of its own
        here = subject.kind == self.fault.about and (of_the_host or subject.slot in ("", slot(self.gpu), SWITCH))
        reported = str(finding.key).partition("@")[0]
        return here and named(self.fault.expects, reported) and finding.severity.value == self.fault.severity

    def wrong(self) -> tuple[str, ...]:
        """Return the reports that are not true of this fault, each once."""
        return tuple(dict.fromkeys(f"{s.severity} {s.finding}" for s in self.jury.reported if not self._true(s)))

    def _true(self, reported: Reported) -> bool:
        finding, _, subject = reported.finding.partition("@")
        mild = self.fault.severity == "failure" or reported.severity == "warning" or finding in self.fault.also
        about = self.fault.about not in ("gpu", "link") or f"/{slot(self.gpu)}" in subject
        if named(tuple(p.removesuffix("@*") for p in self.fault.also if p.endswith("@*")), finding):
            return mild
        return mild and about and named((*self.fault.expects, *self.fault.also), finding)


def measure_fault(number: int, seed: int) -> FaultResult:
    """Fault class `number` of CLASSES, once."""
    fault, dice = CLASSES[number], Random(f"{number}/{seed}")
    watch = _Watch(fault)
    node = Node(watch.take, dice, model=dice.choice(fault.models))
    watch.node, watch.gpu = node, dice.randrange(len(node.gpus))
    watch.jury.replay.quiet = True
    node.start_daemon(remembers=False)
    node.run(dice.uniform(120.0, 1500.0))
    watch.jury.replay.quiet = fault.detected_within > LONG
    watch.struck, watch.before = node.clock, len(watch.records)
    node.go(fault.strike(node, watch.gpu))
    node.run(fault.detected_within)
    forgot = _forgets(watch, node, dice)
    delay = None if watch.detected is None or watch.shown is None else watch.detected - watch.shown
    return FaultResult(
        fault=fault.name, seed=seed, model=node.model, delay=delay, wrong=watch.wrong(), forgot=forgot,
        ended=_ended(watch, node), slowest_step=watch.slowest,
    )  # fmt: skip


def _ended(watch: _Watch, node: Node) -> float | None:
    if watch.fault.ends is None:
        return 0.0
    watch.jury.replay.quiet = True
    node.repair()
    began = node.clock
    while node.clock < began + (watch.fault.ends or 0.0):
        node.run(60.0)
        if watch.jury.health is Health.HEALTHY:
            return node.clock - began
    return None


def _forgets(watch: _Watch, node: Node, dice: Random) -> str:
    """Return the difference that a restart of the daemon at some point of the story makes, or ""."""
    first = dice.choice((1, watch.before, watch.before))
    where, away = dice.randrange(first, len(watch.records)), dice.choice((0.0, 30.0))
    node.run(min(watch.fault.grace, LONG) + AFTER_THE_CUT)
    other = Jury()
    for number, record in enumerate(cut(watch.records, where, away)):
        other.replay.quiet = number < watch.before or watch.jury.replay.quiet
        other.take(record)
    before, after = watch.jury.verdict(), other.verdict()
    cleared = other.cleared - watch.jury.cleared
    restarted = f"restart at record {where}, {away:g} s away: "
    if before != after:
        return f"{restarted}the end is {after} and was {before}"
    return f"{restarted}cleared though it went on: {', '.join(sorted(cleared))}" if cleared else ""


def cut(records: Sequence[Record], where: int, away: float) -> list[Record]:
    """The same story with a daemon that is ended at record `where` and starts again `away` seconds later.

    What the kernel log reported meanwhile it reads then, and a test hands in its results then; passes of that time are nobody's.
    """
    at, boot = records[where].at, _boot(records[:where])
    back = Stamp(at.boottime + away, at.wall + away)
    missed = [
        r for r in records[where:] if isinstance(r, HostEventsSeen | ActiveTested) and r.at.boottime < back.boottime
    ]
    until = next((n for n in range(where, len(records)) if _is_after(records[n], back)), len(records))
    reported = [r for r in records if isinstance(r, ErrorsChanged) and r.at.boottime < back.boottime][-1:]
    late: list[Record] = [*(replace(r, at=back) for r in missed), *(replace(r, at=back) for r in reported)]
    return [*records[:where], Began(at=back, boot_id=boot), *late, *records[until:]]


def _is_after(record: Record, back: Stamp) -> bool:
    return isinstance(record, Began) or record.at.boottime >= back.boottime


def _boot(records: Sequence[Record]) -> str:
    return next(record.boot_id for record in reversed(records) if isinstance(record, Began))


def measure_days(seed: int, days: float) -> HealthyResult:
    """Measure one node's healthy days, in a row. Seeds that follow each other are nodes of different models."""
    dice = Random(f"healthy/{seed}")
    jury, wrong, true = Jury(), list[Reported](), 0
    jury.replay.quiet = True
    nodes: list[Node] = []

    def take(record: Record) -> None:
        nonlocal true
        before = len(jury.reported)
        jury.take(record)
        for reported in jury.reported[before:]:
            is_true = reported.severity == "warning" and reported.finding.partition("@")[0] in nodes[0].true
            true += is_true
            if not is_true:
                wrong.append(reported)

    node = Node(take, dice, model=sorted(MODELS)[seed % len(MODELS)])
    nodes.append(node)
    ordinary = Ordinary(node)
    node.start_daemon(remembers=False)
    ordinary.begin()
    node.run(min(days, 2.0) * DAY)
    early = resident()
    node.run(max(0.0, days - 2.0) * DAY)
    return HealthyResult(
        seed=seed, model=node.model, days=days, wrong=tuple(wrong), true_warnings=true, ordinary=ordinary.count,
        passes=jury.passes, judged=jury.replay.judged, spent=jury.spent, memory=(early, resident()),
    )  # fmt: skip


def resident() -> float:
    """MiB of memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
