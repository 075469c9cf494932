"""`gpuwarden reload`: the running daemon reads its configuration again."""

from __future__ import annotations

import argparse

from gpuwarden.cli.client import order
from gpuwarden.cli.parser import Parser

HELP = """
Makes the daemon read its configuration again, as SIGHUP does. These take effect at once: [checks], [xids], [sxids], [expected],
[disk], [memory], [swap], [policy], inventory.expected_gpus, jobs.stalled_after, and percent, count, domain, window and
recount_after of [breaker]. All other changed keys are listed: they need a restart.

If the configuration has a fault, nothing changes: every fault is listed, and the daemon continues as before.

exit code: 0, or 64 when the configuration has a fault

examples:
  gpuwarden reload
"""


def arguments(parser: Parser) -> None:
    parser.add_run_dir()


def main(options: argparse.Namespace) -> int:
    return order(options, "reload")
