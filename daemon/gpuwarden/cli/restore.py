"""`gpuwarden restore`: an operator brings this node back into scheduling."""

from __future__ import annotations

import argparse

from gpuwarden.cli.client import order
from gpuwarden.cli.parser import Parser

HELP = """
Lifts gpuwarden's exclusions of this node, in mode observe too: an operator's, and one for a failure. The current findings do
not exclude the node again until they have ended once, or until the next boot; a new finding does. An exclusion by another party
is left as it is.

exit code: 0 when it is done or will be as soon as the scheduler answers, 64 when it cannot be

examples:
  gpuwarden restore
"""


def arguments(parser: Parser) -> None:
    parser.add_run_dir()


def main(options: argparse.Namespace) -> int:
    return order(options, "restore")
