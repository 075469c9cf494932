"""`gpuwarden check`: one reading of the GPUs, without a daemon."""

from __future__ import annotations

from gpuwarden.cli.parser import Parser, folder

HELP = """
Reads the GPUs of this node once, without a daemon, and prints their health. Reads the ledger if there is one, and writes
nothing.

exit code: 0 healthy, 1 warning, 2 failure, 3 unknown; 64 when the configuration has a fault

examples:
  gpuwarden check
  gpuwarden check --json
  gpuwarden check --simulate 8
"""

MAIN = "gpuwarden.cli.check_main"


def arguments(parser: Parser) -> None:
    parser.add_json()
    parser.add_config()
    parser.add_simulate()
    parser.add_argument(
        "--state-dir", metavar="D", type=folder, help="directory of the ledger (default: /var/lib/gpuwarden)"
    )
