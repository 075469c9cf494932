"""`gpuwarden check`: one reading of the GPUs, without a daemon."""

from __future__ import annotations

import argparse
import os

from gpuwarden.cli.parser import Parser, folder
from gpuwarden.cli.sources import configuration
from gpuwarden.cli.status import show

HELP = """
Reads the GPUs of this node once, without a daemon, and prints their health. Reads the ledger if there is one, and writes
nothing.

exit code: 0 healthy, 1 warning, 2 failure, 3 unknown; 64 when the configuration has a fault

examples:
  gpuwarden check
  gpuwarden check --json
  gpuwarden check --simulate 8
"""


def arguments(parser: Parser) -> None:
    parser.add_json()
    parser.add_config()
    parser.add_simulate()
    parser.add_argument(
        "--state-dir", metavar="D", type=folder, help="directory of the ledger (default: /var/lib/gpuwarden)"
    )


def main(options: argparse.Namespace) -> int:
    config = configuration(options, os.environ)
    from gpuwarden.oneshot.check import check_once  # noqa: PLC0415 - a fault in the configuration is reported before asyncio is loaded

    return show(check_once(config), as_json=options.json)
