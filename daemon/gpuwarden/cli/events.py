"""`gpuwarden events`: from the daemon, or from the ledger if none runs."""

from __future__ import annotations

import argparse
import time
from datetime import datetime

from gpuwarden.base.durations import parse_duration
from gpuwarden.cli.parser import Parser, folder

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

MAIN = "gpuwarden.cli.events_main"

LIMIT = 10_000
"""Most events per read."""


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
