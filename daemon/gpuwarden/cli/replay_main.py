"""What `gpuwarden replay` does."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuwarden.base.durations import format_duration
from gpuwarden.cli.parser import CommandError
from gpuwarden.cli.sources import faulty
from gpuwarden.cli.text import clean, event_data, when
from gpuwarden.config.model import ConfigError, load
from gpuwarden.config.sources import Sources
from gpuwarden.health.model import Event, EventKind
from gpuwarden.policy.model import Budget, Settings
from gpuwarden.publish import status
from gpuwarden.publish.times import rfc3339
from gpuwarden.replay.replay import Replay, Tally
from gpuwarden.replay.what_if import Rehearsal
from gpuwarden.trace.reader import TraceError, TraceReader
from gpuwarden.trace.records import Record

if TYPE_CHECKING:
    from gpuwarden.runtime.wiring import Site
from gpuwarden.runtime.wiring import Site

DAMAGED, NO_INPUT = 65, 66  # EX_DATAERR, EX_NOINPUT of sysexits.h


NOT_SHOWN = (EventKind.STARTED, EventKind.RISING, EventKind.SUBSIDED, EventKind.GPU_PINNED, EventKind.HOST_LEARNED)
"""Intermediate steps of other events."""


class Side:
    """A configuration, or the trace's own, with its judge, its policy, and their totals."""

    def __init__(self, config: Path | None) -> None:
        site = None if config is None else _given(config)
        self.replay = Replay(None if site is None else site.rules)
        enforcement = None if site is None else site.enforcement
        self._dry_run = Rehearsal(
            Settings() if enforcement is None else enforcement.settings,
            Budget() if enforcement is None else enforcement.limits.budget,
        )
        self.tally = Tally()

    def take(self, record: Record) -> list[list[Event]]:
        """The events to print, by step."""
        steps = self.replay.take(record)
        wanted = self._dry_run.take(record, steps, self.replay.engine)
        events = [(*step.events, *more) for step, more in zip(steps, wanted, strict=True)]
        self.tally.add(record, steps)
        self.tally.wanted += sum(event.kind == EventKind.INTENDED for step in events for event in step)
        return [[event for event in step if event.kind not in NOT_SHOWN] for step in events]


def main(options: argparse.Namespace) -> int:
    before = Side(options.config)
    after = Side(options.diff) if options.diff else None
    line = _json_line if options.json else _text_line
    sides = [before] if after is None else [before, after]
    tallies = [side.tally for side in sides]
    box: dict[str, Any] | None = None
    try:
        with TraceReader(options.trace) as trace:
            box = trace.box
            for side, event in _printed(trace, before, after):
                print(line(side, event))
    except BrokenPipeError:  # of the output
        raise
    except OSError as error:
        raise CommandError(f"cannot read {options.trace}: {error.strerror}", NO_INPUT) from error
    except TraceError as error:
        _conclude(tallies, box, as_json=options.json)
        judged = "; the part before it was judged" if error.line > 1 else ""
        raise CommandError(f"{error}{judged}", DAMAGED) from error
    _conclude(tallies, box, as_json=options.json)
    if any(side.replay.is_coarse for side in sides):
        print("the trace has more than 28 hours without any reading: later gaps were judged once each", file=sys.stderr)
    return 0


def _given(config: Path) -> Site:

    try:
        return Site.of(load(Sources(file=config, required=True)))
    except ConfigError as error:
        raise faulty(error) from error


def _printed(trace: TraceReader, before: Side, after: Side | None) -> Iterator[tuple[str, Event]]:
    """Yields each event that is to be printed, with its side: "" without a second configuration, else < or >."""
    for record in trace:
        mine = before.take(record)
        if after is None:
            yield from (("", event) for step in mine for event in step)
            continue
        for step, other in zip(mine, after.take(record), strict=True):
            yield from _difference(step, other)


def _difference(mine: Sequence[Event], theirs: Sequence[Event]) -> Iterator[tuple[str, Event]]:
    yield from (("<", event) for event in mine if event not in theirs)
    yield from ((">", event) for event in theirs if event not in mine)


def _json_line(side: str, event: Event) -> str:
    return json.dumps(status.event(event) | ({"side": side} if side else {}))


def _text_line(side: str, event: Event) -> str:
    at = when(rfc3339(event.at.wall))
    if event.kind == EventKind.INTENDED:
        return f"{side:<2}{at}  {_intent(event)}".strip()
    about = "-" if event.key is None else clean(str(event.key))
    return f"{side:<2}{at}  {event.kind:<12} {about}  {event_data(event.data)}".strip()


def _intent(event: Event) -> str:
    """Text of an intent, such as: would exclude: gpuwarden: failure gpu=3 xid=79."""
    intent, reason = clean(event.data.get("intent", "")), clean(event.data.get("reason", ""))
    if breaker := event.data.get("breaker"):
        return f"would not {intent}: breaker open ({clean(breaker)}): {reason}"
    return f"would {intent}: {reason}" if reason else f"would {intent}"


def _conclude(tallies: Sequence[Tally], box: dict[str, Any] | None, *, as_json: bool) -> None:
    if box is not None:
        print(json.dumps({"box": box}) if as_json else _box_text(box), file=sys.stdout if as_json else sys.stderr)
    sides = ("<", ">") if len(tallies) > 1 else ("",)
    for side, tally in zip(sides, tallies, strict=True):
        summary = _summary(tally)
        if as_json:
            print(json.dumps({"summary": summary} | ({"side": side} if side else {})))
            continue
        health = ", ".join(f"{name} for {format_duration(round(spent))}" for name, spent in summary["seconds"].items())
        counts = (
            f"{summary['passes']} passes, {summary['host_events']} host events, {summary['boots']} boots, "
            f"{summary['intents']} intents"
        )
        print(f"{side:<2}{counts}: {health or 'nothing was judged'}".strip(), file=sys.stderr)
        for finding in summary["findings"]:
            print(
                f"{side:<2}still present at the end: {clean(finding['severity'])} {clean(finding['id'])}".strip(),
                file=sys.stderr,
            )


def _box_text(box: dict[str, Any]) -> str:
    """Format the header of a black box, whose values are untrusted."""
    names = box.get("findings")
    findings = ", ".join(clean(str(name)) for name in names) if isinstance(names, list) else ""
    missing = f"; missing: {clean(str(box['missing']))}" if box.get("missing") else ""
    verdict = f"verdict then: {clean(str(box.get('health')))} ({findings})"
    return f"black box, frozen for {clean(str(box.get('finding')))}; {verdict}{missing}"


def _summary(tally: Tally) -> dict[str, Any]:
    findings = () if tally.last is None else tally.last.verdict.findings
    return {
        "passes": tally.passes,
        "host_events": tally.host_events,
        "boots": tally.boots,
        "intents": tally.wanted,
        "seconds": {str(health): round(spent, 3) for health, spent in tally.seconds.items()},
        "findings": [{"id": str(f.key), "severity": str(f.severity), "latched": f.latched} for f in findings],
    }
