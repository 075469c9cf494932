"""`gpuwarden reload`: the running daemon reads its configuration again."""

from __future__ import annotations

import argparse

from gpuwarden.cli.client import order
from gpuwarden.cli.parser import Parser

HELP = """
Makes the daemon read its configuration again, as SIGHUP does. The rules of conditions and Xids ([checks], [xids], [sxids]),
the number of GPUs, [policy] and the numbers of [breaker] take effect at once; for everything else it lists the keys that
need a restart.

With a fault anywhere nothing changes: every fault is listed, and the daemon goes on as before.

exit code: 0, or 64 when the configuration has a fault

examples:
  gpuwarden reload
"""


def arguments(parser: Parser) -> None:
    parser.add_run_dir()


def main(options: argparse.Namespace) -> int:
    return order(options, "reload")
