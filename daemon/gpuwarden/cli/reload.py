"""`gpuwarden reload`: the running daemon reads its configuration again."""

from __future__ import annotations

import argparse
import os

from gpuwarden.cli.client import Daemon
from gpuwarden.cli.parser import Parser
from gpuwarden.cli.text import clean

HELP = """
Makes the daemon read its configuration again, as SIGHUP does. What is said of conditions and Xids ([checks], [xids], [sxids]),
the number of GPUs, [policy] and the numbers of [breaker] hold at once; for everything else it says which keys wait for a restart.

With a fault anywhere nothing is taken over: every fault is told, and the daemon goes on as before.

exit code: 0, or 64 when the configuration has a fault

examples:
  gpuwarden reload
"""


def arguments(parser: Parser) -> None:
    parser.add_run_dir()


def main(options: argparse.Namespace) -> int:
    print(clean(Daemon.chosen(options.run_dir, os.environ).ask("reload")))
    return 0
