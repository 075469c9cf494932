"""`gpuwarden doctor`: whether gpuwarden can work on this host, and what to change."""

from __future__ import annotations

from gpuwarden.cli.parser import Parser, folder

HELP = """
Checks this host, Slurm, Kubernetes and Prometheus, and lists what works, what does not, and what to do about it. Changes
nothing.

Each row is ok, warn or fail. All checks run at once, each with its own deadline; together they take at most a minute and a
half. Run as root, it checks as the user of the running daemon, with that daemon's capabilities; if none
runs, as the user that its unit names. A source that is disabled is shown as disabled.

exit code: 0 all rows ok, 1 a row warns, 2 a row fails

examples:
  gpuwarden doctor
  gpuwarden doctor --json
"""

MAIN = "gpuwarden.cli.doctor_main"


def arguments(parser: Parser) -> None:
    parser.add_config()
    parser.add_run_dir()
    parser.add_argument(
        "--state-dir",
        metavar="D",
        type=folder,
        help="directory of the ledger (default: that of the running daemon, else state.dir)",
    )
    parser.add_json()
