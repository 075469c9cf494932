"""`gpuwarden slurm`: the calls of Slurm's scripts, and the jobs of each GPU."""

from __future__ import annotations

from gpuwarden.cli.parser import Parser

HELP = """
Lists the Slurm jobs on this node's GPUs; also has the calls that gpuwarden's scripts for Slurm make.

jobs         lists the jobs on each GPU
look         makes the daemon read everything at once (the epilog calls it); also removes old notes of ended jobs
healthcheck  makes the daemon act on its findings (HealthCheckProgram calls it): with [slurm] drain_by = "hook" the
             daemon drains only within two minutes after this call

examples:
  gpuwarden slurm jobs
  gpuwarden slurm jobs --json
  gpuwarden slurm healthcheck
"""

MAIN = "gpuwarden.features.slurm.command_main"


def arguments(parser: Parser) -> None:
    parser.add_argument("action", choices=("jobs", "look", "healthcheck"), help="see below")
    parser.add_run_dir()
    parser.add_json()
