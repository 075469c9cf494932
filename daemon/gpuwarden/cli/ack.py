"""`gpuwarden ack`: an operator acknowledges a finding."""

from __future__ import annotations

import argparse

from gpuwarden.cli.client import order
from gpuwarden.cli.parser import Parser

HELP = """
Acknowledges a finding: it then ends as soon as its cause is no longer observed, without the reset or reboot that it would
otherwise need.

examples:
  gpuwarden status                              shows findings with their ids
  gpuwarden ack xid.79@gpu/0000:4e:00.0
"""


def arguments(parser: Parser) -> None:
    parser.add_argument("finding", metavar="FINDING", help="id of the finding, as status shows it")
    parser.add_run_dir()


def main(options: argparse.Namespace) -> int:
    return order(options, "ack", finding=options.finding)
