"""`gpuwarden exclusions`: gpuwarden's own exclusions of this node, from the ledger, with or without a daemon."""

from __future__ import annotations

from gpuwarden.cli.parser import Parser, folder

HELP = """
Lists gpuwarden's own exclusions of this node, from the ledger. It needs no daemon, and changes nothing: check before you
remove gpuwarden from a node, because nothing else lifts its exclusions.

exit code: 0 when gpuwarden excludes nothing, 1 when an exclusion is or may be in force, 69 when the ledger cannot be read

examples:
  gpuwarden exclusions
  gpuwarden exclusions --json
"""

MAIN = "gpuwarden.cli.exclusions_main"


def arguments(parser: Parser) -> None:
    parser.add_argument(
        "--state-dir",
        metavar="D",
        type=folder,
        help="directory of the ledger (default: as configured, else /var/lib/gpuwarden)",
    )
    parser.add_json()
