"""What `gpuwarden events` does: asks the daemon, or reads the ledger if none runs."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gpuwarden.cli.client import Daemon, NoDaemon
from gpuwarden.cli.events import LIMIT
from gpuwarden.cli.parser import UNAVAILABLE, CommandError
from gpuwarden.cli.text import clean, event_data, when
from gpuwarden.health.bookkeeping import OF_GATES, OF_TESTS, is_bookkeeping

POLL = 1.0  # seconds
OVERLAP = 30.0  # seconds of overlap between polls: an event may be listed slightly after its time

Event = dict[str, Any]
Read = Callable[[float], list[Event]]
"""Returns the events since a Unix time, in order, at most the newest LIMIT. Raises CommandError."""


def main(options: argparse.Namespace) -> int:
    show = _as_json if options.json else _as_text
    read = _reader(options)
    events = read(options.since)
    shown = [event for event in events if options.json or _is_news(event)][-(options.last or LIMIT) :]
    for event in shown:
        print(show(event))
    if len(events) >= LIMIT and len(shown) != options.last:
        print(f"there are earlier ones: only the newest {LIMIT} events were read", file=sys.stderr)
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
            events: list[Event] = daemon.call("events", since=since, limit=LIMIT, newest=True)
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
    """Yields events after `shown`, forever. Waits for a daemon that restarts."""
    seen = {_as_json(event) for event in shown}
    read_at = time.time()
    while True:
        sys.stdout.flush()
        time.sleep(POLL)
        # If the wall clock is set back, new events have earlier times.
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
