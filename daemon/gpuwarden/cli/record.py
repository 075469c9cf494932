"""`gpuwarden record`: the collectors' readings, into a file."""

from __future__ import annotations

from pathlib import Path

from gpuwarden.cli.parser import Parser, duration, folder

HELP = """
Writes a trace of the readings of this node's GPUs, PCI bus and kernel log. `gpuwarden replay` judges it, here or on another
host, by the same rules or others. A running daemon supplies its own readings, so that the GPUs are not read twice; without a
daemon, and with --simulate, this command reads them itself.

--anonymise substitutes other names for UUIDs, serial numbers, pids, boot ids, users, jobs, file servers, IP addresses and the
name of this host, and leaves out the output of site checks; a name gets the same substitute throughout a trace. PCI addresses,
mount points, models and versions stay.

exit code: 0 at the end of its time or after SIGINT or SIGTERM; 73 when the file cannot be written; 69, 75 or 77 when the
daemon is gone, busy or does not allow it

examples:
  gpuwarden record -o node7.trace --for 1h
  gpuwarden record -o for-the-vendor.trace --anonymise --for 10m
  gpuwarden record -o try.trace --simulate 8 --for 1m
"""

MAIN = "gpuwarden.cli.record_main"


def arguments(parser: Parser) -> None:
    parser.add_argument("-o", "--output", metavar="F", type=Path, required=True, help="the file to create (gzip)")
    parser.add_argument(
        "--for",
        metavar="DURATION",
        dest="seconds",
        type=duration(),
        help="how long to record (default: until interrupted)",
    )
    parser.add_argument(
        "--anonymise", action="store_true", help="replace the names of boards, processes, users and hosts"
    )
    parser.add_config()
    parser.add_simulate()
    parser.add_run_dir()
    parser.add_argument(
        "--state-dir", metavar="D", type=folder, help="directory of the ledger (default: /var/lib/gpuwarden)"
    )
