"""`gpuwarden exclude`: an operator takes this node out of scheduling."""

from __future__ import annotations

import argparse

from gpuwarden.cli.client import order
from gpuwarden.cli.parser import Parser

HELP = """
Takes this node out of scheduling, in mode observe too, until `gpuwarden restore`. Running jobs continue. An exclusion by
another party is left as it is.

exit code: 0 when the node is excluded, or will be when the scheduler answers; 64 when it cannot be

examples:
  gpuwarden exclude --reason "replacing a fan"
"""


def arguments(parser: Parser) -> None:
    parser.add_argument("--reason", metavar="T", required=True, help="reason, for people who find the node excluded")
    parser.add_run_dir()


def main(options: argparse.Namespace) -> int:
    return order(options, "exclude", reason=options.reason)
