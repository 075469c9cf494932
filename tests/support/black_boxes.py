"""The black box of a node whose story is judged live, record by record."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

from evaluate.classes import CLASSES
from evaluate.node import Node
from gpuwarden.features.black_box.boxes import Box, Failure
from gpuwarden.features.black_box.recording import Recording
from gpuwarden.features.black_box.ring import Ring
from gpuwarden.health.judge import Step
from gpuwarden.health.model import EventKind, Severity, Verdict
from gpuwarden.replay.replay import Replay
from gpuwarden.trace.reader import TraceReader
from gpuwarden.trace.records import Record
from gpuwarden_collectors.facts import Stamp

PATIENCE = 60.0
BOOT = "boot-1"


def failure(
    finding: str = "xid.79@gpu/0000:4e:00.0", at: float = 1000.0, *, standing: Iterable[str] = (), boot_id: str = BOOT
) -> Failure:
    return Failure(
        finding=finding,
        at=Stamp(at, 1.8e9 + at),
        boot_id=boot_id,
        health="failure",
        findings=(finding,),
        standing=frozenset(standing),
    )


def story(fault: str, before: float, after: float = 2400.0) -> list[Record]:
    """Return `before` seconds of health of a node with two GPUs, then the fault (a name of CLASSES)."""
    records: list[Record] = []
    node = Node(records.append, Random(fault), gpus=2)
    node.start_daemon(remembers=False)
    node.run(before)
    node.go(next(row for row in CLASSES if row.name == fault).strike(node, 1))
    node.run(after)
    return records


def drained(recording: Recording) -> None:
    """Wait until everything that was handed over is written: a story is told faster than a disk writes."""
    end = time.monotonic() + PATIENCE
    while recording.waiting:
        assert time.monotonic() < end, "the thread does not write"
        time.sleep(0)


class LiveNode:
    """Judges records as they come, with a black box that freezes at the first failure. `given`: the verdict of that step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.given: Verdict | None = None
        self._live = Replay()
        self._recording: Recording | None = None

    def live(self, records: Sequence[Record]) -> None:
        """Live through the records until the first failure, or all of them."""
        for record in records:
            steps = self._live.take(record)
            if self._recording is None:
                self._recording = Recording(self.folder, self._live.engine, lambda _: None)
                self._live.engine.listeners.append(self._recording.take)
            self._recording.tend(record.at)
            drained(self._recording)
            for step in steps:
                if self._freezes(step, self._recording):
                    return
        raise AssertionError("no failure was found in this story")

    def _freezes(self, step: Step, recording: Recording) -> bool:
        for event in step.events:
            if event.kind == EventKind.RAISED and event.data.get("severity") == Severity.FAILURE:
                findings = tuple(str(finding.key) for finding in step.verdict.findings)
                health, at = step.verdict.health.value, step.verdict.at
                frozen = Failure(finding=str(event.key), at=at, boot_id=BOOT, health=health, findings=findings)
                recording.freeze(frozen, self._live.engine.view.errors)
                self.given = step.verdict
                return True
        return False

    def end(self) -> Ring:
        """End the daemon of this node, with everything on disk."""
        assert self._recording is not None
        self._recording.end(PATIENCE)
        return self._recording.ring


def frozen_of(records: Sequence[Record], folder: Path) -> tuple[Box, Verdict]:
    """Return the box of this story and the verdict that was given."""
    node = LiveNode(folder)
    node.live(records)
    (box,) = node.end().boxes
    assert node.given is not None
    return box, node.given


def judged(path: Path) -> Verdict:
    """Return the last verdict of a replay of the file."""
    replay, last = Replay(), None
    with TraceReader(path) as trace:
        for record in trace:
            for step in replay.take(record):
                last = step.verdict
    assert last is not None
    return last


def content(verdict: Verdict) -> tuple[object, ...]:
    """Return what a verdict says, without its times."""
    findings = sorted(
        (str(finding.key), finding.severity, finding.advice, finding.latched) for finding in verdict.findings
    )
    return verdict.health, verdict.reasons, verdict.unknown, findings, verdict.expected, verdict.present
