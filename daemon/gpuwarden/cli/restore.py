"""`gpuwarden restore`: an operator brings this node back into scheduling."""

from __future__ import annotations

import argparse

from gpuwarden.cli.client import order
from gpuwarden.cli.parser import Parser

HELP = """
Lifts gpuwarden's exclusions of this node, in mode observe too: an operator's, and one for a failure that has ended. An exclusion
by another party is left as it is.

While a failure is active, only an operator's exclusion ends: the node stays out, and the scheduler shows the failure's reason.
Without an operator's exclusion, nothing is done. With --force the node comes back despite its active failures; the output lists
each failure and its effect on jobs. These failures do not exclude the node again until they have ended once, until the next
boot, or until `gpuwarden exclude`; a new failure does. Until then `gpuwarden status`, the metric
gpuwarden_failures_overridden and the alert GpuwardenFailureOverridden show it.

With `test.return_gate` a node that was out for a failure comes back only after a test found nothing on its GPUs. Without a passed
test, nothing is done, and the output shows the state of the test; --untested and --force skip the test.

exit code: 0 when the node is back, or will be as soon as the scheduler answers; 1 when an operator's exclusion ended and the node
stays out for an active failure; 64 when nothing is done

examples:
  gpuwarden restore
  gpuwarden restore --force
  gpuwarden restore --untested
"""


def arguments(parser: Parser) -> None:
    parser.add_argument("--force", action="store_true", help="despite active failures: jobs start on the node")
    parser.add_argument("--untested", action="store_true", help="without the test that test.return_gate requires")
    parser.add_run_dir()


def main(options: argparse.Namespace) -> int:
    return order(options, "restore", force=options.force, untested=options.untested)
