"""`gpuwarden notify-termination`: an operator or a script announces that this machine is about to end."""

from __future__ import annotations

import argparse

from gpuwarden.base.durations import parse_duration
from gpuwarden.cli.client import order
from gpuwarden.cli.parser import Parser

HELP = """
Announces to the daemon that this machine will end. From termination.horizon (10 minutes) before the end the heartbeat reports
it, and in mode enforce the node is taken out of scheduling. The notice is in force until it is cancelled or the machine
reboots. --cancel ends an operator's notice; if there is none, gpuwarden ignores the cloud's current notice until the cloud
withdraws it. The command prints how many jobs are signalled to save, and why others are not; in mode observe, what would be
done.

exit code: 0, 64 when there is nothing to cancel, or 75 when one user announces too often

examples:
  gpuwarden notify-termination --in 120
  gpuwarden notify-termination --in 2h --reason "host maintenance"
  gpuwarden notify-termination --cancel
"""


def arguments(parser: Parser) -> None:
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument(
        "--in", dest="within", metavar="S", type=_seconds, help="time until the end, in seconds or such as 2h"
    )
    group.add_argument("--cancel", action="store_true", help="cancel the notice")
    parser.add_argument("--reason", metavar="T", default="", help="who announces it, and why")
    parser.add_run_dir()


def _seconds(text: str) -> float:
    try:
        return float(int(text)) if text.isascii() and text.isdigit() and len(text) < 9 else parse_duration(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected seconds or a duration such as 2h, found {text[:60]!r}") from None


def main(options: argparse.Namespace) -> int:
    if options.cancel:
        return order(options, "notify-termination", cancel=True)
    return order(options, "notify-termination", within=options.within, reason=options.reason)
