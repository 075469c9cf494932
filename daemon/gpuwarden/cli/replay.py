"""`gpuwarden replay`: what a trace comes to, under the rules of its time or under others."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpuwarden.cli.parser import CommandError, Parser
from gpuwarden.cli.sources import faulty
from gpuwarden.cli.text import clean, when
from gpuwarden.config import ConfigError, load
from gpuwarden.config_sources import Sources
from gpuwarden.durations import format_duration
from gpuwarden.health.judge import Step
from gpuwarden.health.model import Event, EventKind
from gpuwarden.health.view import Rules
from gpuwarden.publish import status
from gpuwarden.publish.times import rfc3339
from gpuwarden.replay import Replay, Tally
from gpuwarden.trace.reader import TraceError, TraceReader

HELP = """
Judges a trace through the same code as the daemon, as fast as it goes, and prints what changed, when and why. Without
--config the rules are those under which it was recorded. Nothing is read or written but the trace and the files named.

A trace that is damaged is judged up to the fault, which is told.

exit code: 0, or 65 when the trace is damaged, of a newer format or no trace at all

examples:
  gpuwarden replay node7.trace
  gpuwarden replay node7.trace --config strict.toml --json | jq 'select(.kind == "raised")'
  gpuwarden replay node7.trace --config now.toml --diff next.toml
"""

DAMAGED, NO_INPUT = 65, 66  # EX_DATAERR, EX_NOINPUT of sysexits.h

UNTOLD = (EventKind.STARTED, EventKind.RISING, EventKind.SUBSIDED, EventKind.GPU_PINNED)
"""Steps on the way to what is told."""
ONLY_IN_JSON = ("first_boottime", "first_wall", "latch")


def arguments(parser: Parser) -> None:
    parser.add_argument("trace", metavar="F", type=Path, help="what `gpuwarden record` wrote")
    parser.add_argument("--config", metavar="F", type=Path, help="judge by this configuration")
    parser.add_argument(
        "--diff",
        metavar="F2",
        type=Path,
        help="print where this configuration says something else: < only before, > only with it",
    )
    parser.add_json()


def main(options: argparse.Namespace) -> int:
    before = Replay(_rules(options.config))
    after = Replay(_rules(options.diff)) if options.diff else None
    tell = _json_line if options.json else _text_line
    tallies = (Tally(), Tally())
    try:
        with TraceReader(options.trace) as trace:
            for side, event in _told(trace, before, after, tallies):
                print(tell(side, event))
    except OSError as error:
        raise CommandError(f"cannot read {options.trace}: {error.strerror}", NO_INPUT) from error
    except TraceError as error:
        _conclude(tallies if after else tallies[:1], as_json=options.json)
        told = "; what was before it is judged above" if error.line > 1 else ""
        raise CommandError(f"{error}{told}", DAMAGED) from error
    _conclude(tallies if after else tallies[:1], as_json=options.json)
    return 0


def _rules(config: Path | None) -> Rules | None:
    if config is None:
        return None
    from gpuwarden.site import Site  # noqa: PLC0415 - it knows all collectors, and the rules of the trace need none

    try:
        return Site.of(load(Sources(file=config, required=True))).rules
    except ConfigError as error:
        raise faulty(error) from error


def _told(
    trace: TraceReader, before: Replay, after: Replay | None, tallies: tuple[Tally, Tally]
) -> Iterator[tuple[str, Event]]:
    """Each event that is to be printed, and on which side: "" without a second configuration, else < or >."""
    for record in trace:
        steps = before.take(record)
        tallies[0].add(record, steps)
        if after is None:
            yield from (("", event) for step in steps for event in _events(step))
            continue
        others = after.take(record)
        tallies[1].add(record, others)
        for step, other in zip(steps, others, strict=True):
            yield from _difference(step, other)


def _events(step: Step) -> Iterator[Event]:
    return (event for event in step.events if event.kind not in UNTOLD)


def _difference(step: Step, other: Step) -> Iterator[tuple[str, Event]]:
    mine, theirs = list(_events(step)), list(_events(other))
    yield from (("<", event) for event in mine if event not in theirs)
    yield from ((">", event) for event in theirs if event not in mine)


def _json_line(side: str, event: Event) -> str:
    return json.dumps(status.event(event) | ({"side": side} if side else {}))


def _text_line(side: str, event: Event) -> str:
    told = {name: value for name, value in event.data.items() if name not in ONLY_IN_JSON and value not in ("", None)}
    data = " ".join(f"{clean(name)}={clean(value)}" for name, value in told.items())
    about = "-" if event.key is None else clean(str(event.key))
    return f"{side:<2}{when(rfc3339(event.at.wall))}  {event.kind:<12} {about}  {data}".strip()


def _conclude(tallies: tuple[Tally, ...], *, as_json: bool) -> None:
    sides = ("<", ">") if len(tallies) > 1 else ("",)
    for side, tally in zip(sides, tallies, strict=True):
        summary = _summary(tally)
        if as_json:
            print(json.dumps({"summary": summary} | ({"side": side} if side else {})))
            continue
        health = ", ".join(f"{name} for {format_duration(round(spent))}" for name, spent in summary["seconds"].items())
        looked = f"{summary['passes']} passes, {summary['host_events']} host events, {summary['boots']} boots"
        print(f"{side:<2}{looked}: {health or 'nothing was judged'}".strip(), file=sys.stderr)
        for finding in summary["findings"]:
            print(
                f"{side:<2}still there at the end: {clean(finding['severity'])} {clean(finding['id'])}".strip(),
                file=sys.stderr,
            )


def _summary(tally: Tally) -> dict[str, Any]:
    findings = () if tally.last is None else tally.last.verdict.findings
    return {
        "passes": tally.passes,
        "host_events": tally.host_events,
        "boots": tally.boots,
        "seconds": {str(health): round(spent, 3) for health, spent in tally.seconds.items()},
        "findings": [{"id": str(f.key), "severity": str(f.severity), "latched": f.latched} for f in findings],
    }
