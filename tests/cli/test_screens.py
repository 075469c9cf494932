"""What holds of every screen of `status`: all evidence has a name, and nothing stands on it twice.

The screens are those of each condition and of each story of a real machine, at every change of what is found.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from evaluate.node import Node
from gpuwarden.cli.status_text import status_text
from gpuwarden.health.judge import Step
from gpuwarden.health.model import Verdict
from gpuwarden.health.view import CheckRule, Rules
from gpuwarden.publish.evidence_text import evidence_text, named
from gpuwarden.publish.status import status
from gpuwarden.replay.replay import Replay
from gpuwarden.trace.records import Record
from stories.every import STORIES
from stories.story import Story
from support.condition_faults import CODES, LATER, fault
from support.hosts import Host
from support.quick import first_quick
from support.snapshots import snapshot

HEALTHY_FOR, LASTS = 150.0, 180.0
OF_EACH_FINDING = ("id", "caused by", "also recorded", "seen", "evidence", "to do", "ends when", "runbook")
"""How the rows of a finding begin. What two findings have in common stands at each of them."""
_ROW = re.compile(rf"  ({'|'.join(OF_EACH_FINDING)})\b")


class Found:
    """The verdicts whose screens differ: those with other findings, or other evidence."""

    def __init__(self) -> None:
        self.verdicts: dict[object, Verdict] = {}

    def take(self, verdict: Verdict) -> None:
        seen = tuple(
            (finding.key, finding.severity, finding.caused_by, *finding.evidence) for finding in verdict.findings
        )
        self.verdicts.setdefault(seen, verdict)


def of_condition(code: str) -> Iterable[Verdict]:
    distinct, row = Found(), fault(code)
    replay = Replay(Rules(checks={"row_remap_overdue": CheckRule(rise=LATER)}))

    def sink(record: Record) -> None:
        for step in replay.take(record):
            distinct.take(step.verdict)

    node = Node(sink, Random(code), model=row.models[0])
    node.start_daemon(remembers=False)
    node.run(HEALTHY_FOR)
    node.go(row.strike(node, 3))
    node.run(row.after + row.grace + LASTS)
    assert code in {finding.key.code for verdict in distinct.verdicts.values() for finding in verdict.findings}
    return distinct.verdicts.values()


def of_story(story: Story, monkeypatch: pytest.MonkeyPatch) -> Iterable[Verdict]:
    distinct, step = Found(), Host.step

    def watched(host: Host, *events: Any, **options: Any) -> Step:
        made = step(host, *events, **options)
        distinct.take(made.verdict)
        return made

    monkeypatch.setattr(Host, "step", watched)
    story.made()
    return distinct.verdicts.values()


def screen(verdict: Verdict) -> list[str]:
    shown = replace(snapshot(0), verdict=verdict, made=verdict.at, observed=verdict.at)
    return list(status_text(status(shown, verdict.at), verbose=True))


def blocks(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the lines between empty ones."""
    block: list[str] = []
    for line in [*lines, ""]:
        if line:
            block.append(line)
        else:
            yield block
            block = []


def twice(names: Iterable[str]) -> list[str]:
    return [name for name, times in Counter(names).items() if times > 1]


def problems(verdict: Verdict) -> Iterator[str]:
    for finding in verdict.findings:
        yield from (f"no name: {key} of {finding.key}" for key in finding.evidence if named(key) is None)
        parts = evidence_text(finding.evidence).split("; ")
        yield from (
            f"two of one name in the evidence of {finding.key}: {name}"
            for name in twice(part.partition(": ")[0] for part in parts)
        )
    lines = screen(verdict)
    yield from (f"twice on a screen: {line}" for line in twice(line for line in lines if line and not _ROW.match(line)))
    yield from (f"no two findings: {line}" for line in twice(line for line in lines if line.startswith("  id: ")))
    for block in blocks(lines):
        rows = [row[1] for line in block if (row := _ROW.match(line))]
        yield from (f"twice in one finding: {name}" for name in twice(rows))
    yield from (f"a plan: {line}" for line in lines if line.strip().startswith("plan:"))


@pytest.mark.parametrize("code", first_quick(8, CODES))
def test_the_screen_of_a_condition_names_its_evidence_and_says_nothing_twice(code: str) -> None:
    assert {problem for verdict in of_condition(code) for problem in problems(verdict)} == set()


@pytest.mark.parametrize("story", first_quick(8, STORIES), ids=lambda story: f"{story.id}: {story.name}")
def test_the_screens_of_a_story_name_their_evidence_and_say_nothing_twice(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {problem for verdict in of_story(story, monkeypatch) for problem in problems(verdict)} == set()
