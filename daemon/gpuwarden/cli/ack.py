"""`gpuwarden ack`: an operator has seen to a finding."""

from __future__ import annotations

import argparse
import os

from gpuwarden.cli.client import Daemon
from gpuwarden.cli.parser import Parser
from gpuwarden.cli.text import clean

HELP = """
Acknowledges a finding, so that it ends once its cause is no longer seen, without the reset or reboot it would wait for.

examples:
  gpuwarden status                              shows findings with their ids
  gpuwarden ack xid.79@gpu/0000:4e:00.0
"""


def arguments(parser: Parser) -> None:
    parser.add_argument("finding", metavar="FINDING", help="id of the finding, as status shows it")
    parser.add_run_dir()


def main(options: argparse.Namespace) -> int:
    print(clean(Daemon.chosen(options.run_dir, os.environ).ask("ack", finding=options.finding)))
    return 0
