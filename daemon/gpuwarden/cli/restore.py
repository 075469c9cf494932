"""`gpuwarden restore`: an operator brings this node back into scheduling."""

from __future__ import annotations

import argparse

from gpuwarden.cli.client import order
from gpuwarden.cli.parser import Parser

HELP = """
Lifts gpuwarden's exclusions of this node, in mode observe too: an operator's, and one for a failure that has ended. An exclusion
by another party is left as it is.

While a failure is active, only an operator's exclusion ends: the node stays out, and the scheduler shows the failure's reason. Where
there is nothing but the failure, nothing is done. With --force the node comes back in spite of its active failures, and the answer
lists each of them and what jobs have to expect. They do not exclude the node again until they have ended once, until the next
boot, or until `gpuwarden exclude`; a new failure does. While it lasts, `gpuwarden status`, the metric
gpuwarden_failures_overridden and the alert GpuwardenFailureOverridden show it.

With `test.return_gate` a node that was out for a failure comes back only after a test found nothing on its GPUs. Where none has passed,
nothing is done, and the answer says where the test stands; with --untested, or --force, the node comes back without it.

exit code: 0 when the node is back, or will be as soon as the scheduler answers; 1 when an operator's exclusion ended and the node
stays out for an active failure; 64 when nothing is done

examples:
  gpuwarden restore
  gpuwarden restore --force
  gpuwarden restore --untested
"""


def arguments(parser: Parser) -> None:
    parser.add_argument(
        "--force", action="store_true", help="in spite of active failures: jobs are started on the node"
    )
    parser.add_argument(
        "--untested", action="store_true", help="without the test that test.return_gate wants before a return"
    )
    parser.add_run_dir()


def main(options: argparse.Namespace) -> int:
    return order(options, "restore", force=options.force, untested=options.untested)
