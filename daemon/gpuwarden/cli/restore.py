"""`gpuwarden restore`: a person brings this node back into scheduling."""

from __future__ import annotations

import argparse
import os

from gpuwarden.cli.client import Daemon
from gpuwarden.cli.parser import Parser
from gpuwarden.cli.text import clean

HELP = """
Lifts whatever exclusion of gpuwarden's stands, in mode observe too: an operator's, and one for a failure. What is found now does
not exclude the node again until it has ended once, or until the next boot; a new finding does. An exclusion that somebody else
made is left as it is.

exit code: 0 when it is done or will be as soon as the scheduler answers, 64 when it cannot be

examples:
  gpuwarden restore
"""


def arguments(parser: Parser) -> None:
    parser.add_run_dir()


def main(options: argparse.Namespace) -> int:
    print(clean(Daemon.chosen(options.run_dir, os.environ).ask("restore")))
    return 0
