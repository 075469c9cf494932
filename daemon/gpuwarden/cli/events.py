"""`gpuwarden events`: from the daemon, or from the ledger if none runs."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from gpuwarden.base.durations import parse_duration
from gpuwarden.cli.client import Daemon, NoDaemon
from gpuwarden.cli.parser import UNAVAILABLE, CommandError, Parser, folder
from gpuwarden.cli.text import clean, event_data, when
from gpuwarden.health.bookkeeping import OF_GATES, OF_TESTS, is_bookkeeping

HELP = """
Lists the events of this node: Xids, findings raised and cleared, boots, resets, acknowledgements. Without a running
daemon it reads them from the ledger, and changes nothing there. Events that are only counted appear only with --json.

examples:
  gpuwarden events                    the last 7 days
  gpuwarden events --last 20
  gpuwarden events --since 2h --follow
  gpuwarden events --state-dir /mnt/var/lib/gpuwarden
  gpuwarden events --since 2026-01-31T08:00 --json | jq 'select(.kind == "xid")'
"""

LIMIT = 10_000
POLL = 1.0  # seconds
OVERLAP = 30.0  # seconds by which polls overlap: an event may be listed a little after its time

Event = dict[str, Any]
Read = Callable[[float], list[Event]]
"""The events since a wall time, in order, at most LIMIT. Raises CommandError."""


def arguments(parser: Parser) -> None:
    parser.add_argument(
        "--since",
        metavar="T",
        type=_since,
        default="7d",
        help="how far back, such as 90s, 2h, 7d (the default), or a date or time such as 2026-01-31T08:00 (local)",
    )
    parser.add_argument(
        "--last", "--limit", metavar="N", type=_count, help="at most the newest N of them (default: all, 10000 at most)"
    )
    parser.add_argument("--follow", action="store_true", help="keep printing new events, until interrupted")
    parser.add_argument("--json", action="store_true", help="one JSON object on each line")
    parser.add_run_dir()
    parser.add_argument(
        "--state-dir", metavar="D", type=folder, help="read the ledger in this directory, without a daemon"
    )


def _count(text: str) -> int:
    if text.isascii() and text.isdigit() and 0 < int(text[:9]) <= LIMIT:
        return int(text)
    raise argparse.ArgumentTypeError(f"expected a whole number from 1 to {LIMIT}, found {text!r}")


def _since(text: str) -> float:
    try:
        return time.time() - parse_duration(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        expected = "a duration (2h) or a time (2026-01-31T08:00)"
        raise argparse.ArgumentTypeError(f"expected {expected}, found {text!r}") from None


def main(options: argparse.Namespace) -> int:
    show = _as_json if options.json else _as_text
    read = _reader(options)
    events = read(options.since)
    for event in [event for event in events if options.json or _is_news(event)][-(options.last or LIMIT) :]:
        print(show(event))
    if len(events) >= LIMIT:
        print(f"only the first {LIMIT} events are shown: give a later --since to see the last", file=sys.stderr)
    if options.follow:
        for event in _following(read, events):
            if options.json or _is_news(event):
                print(show(event), flush=True)
    return 0


def _is_news(event: Event) -> bool:
    return not is_bookkeeping(event["kind"], event["id"] or "", event["data"])


def _reader(options: argparse.Namespace) -> Read:
    daemon = Daemon.chosen(options.run_dir)

    def read(since: float) -> list[Event]:
        if options.state_dir is not None:
            return _from_ledger(options.state_dir, since)
        try:
            events: list[Event] = daemon.call("events", since=since, limit=LIMIT)
        except NoDaemon as error_of_daemon:
            try:
                return _from_ledger(None, since)
            except CommandError as error:
                raise CommandError(f"{error_of_daemon}, and {error}", UNAVAILABLE) from error
        return events

    return read


def _from_ledger(state_dir: Path | None, since: float) -> list[Event]:
    from gpuwarden.cli.ledger_events import ledger_events  # noqa: PLC0415 - SQLite and cattrs are for this case only

    return ledger_events(state_dir, since, LIMIT)


def _following(read: Read, shown: list[Event]) -> Iterator[Event]:
    """Yields what comes after `shown`, forever. Waits for a daemon that restarts meanwhile."""
    seen = {_as_json(event) for event in shown}
    read_at = time.time()
    while True:
        sys.stdout.flush()
        time.sleep(POLL)
        # The wall clock may be set back, and then events with earlier times than before are new.
        since = min(read_at, time.time()) - OVERLAP
        try:
            events = read(since)
        except CommandError:
            continue
        read_at = time.time()
        yield from (event for event in events if _as_json(event) not in seen)
        seen = {_as_json(event) for event in events}


def _as_json(event: Event) -> str:
    return json.dumps(event)


def _as_text(event: Event) -> str:
    data = event_data({name: value for name, value in event["data"].items() if name not in (*OF_TESTS, *OF_GATES)})
    return f"{when(event['at'])}  {clean(event['kind']):<14} {clean(event['id'] or '-')}  {data}".rstrip()
