"""`gpuwarden why`: why a job ended, what touched it, and what it used."""

from __future__ import annotations

from gpuwarden.cli.parser import Parser, folder
from gpuwarden.cli.prometheus_options import add_files, add_timeout

HELP = """
Shows why a job on this node ended, with the certainty of that answer; what touched its GPUs, its processes and the node while it
ran; and what it used of its GPUs. For a running job it shows what touched it so far.

JOB is a number of Slurm (4711), or slurm/4711, container/0123456789ab, pod/namespace/name, session/4711 (processes that no
scheduler placed). Without it: the job that the command runs in, else the newest of your jobs here. If a number was given twice, the
newest job is shown. You see your own jobs; root and members of control.group see all. Where no daemon runs, it reads the ledger.

To print one line at the end of a batch script's output; without || true, set -e would make its exit code that of this command:
  trap 'gpuwarden why --short || true' EXIT

With --prometheus it asks Prometheus for all nodes of the job instead, in order of time, so that the first line is where it began.

exit code: 0 the job is shown; 3 no such job, or none that you may see, or no response from Prometheus; 64 bad usage; 69 no daemon
runs here; 75 the daemon is busy, try again; 77 not allowed

examples:
  gpuwarden why
  gpuwarden why 4711
  gpuwarden why container/3f9a0c1b2d4e --json | jq -r .answer.cause
  gpuwarden why 4711 --state-dir /mnt/var/lib/gpuwarden
  gpuwarden why 4711 --prometheus http://prometheus.example:9090
"""

MAIN = "gpuwarden.features.why.command_main"


def arguments(parser: Parser) -> None:
    parser.add_argument(
        "job", metavar="JOB", nargs="?", help="the job (default: the one that this command runs in, else your newest)"
    )
    parser.add_argument("--short", action="store_true", help="one line: the answer and its certainty")
    parser.add_json()
    parser.add_run_dir()
    parser.add_argument(
        "--state-dir", metavar="D", type=folder, help="read the ledger in this directory, without a daemon"
    )
    parser.add_argument(
        "--prometheus",
        metavar="URL",
        nargs="?",
        const="",
        help="ask Prometheus for all nodes of the job (without URL: $PROMETHEUS_URL, else http://127.0.0.1:9090)",
    )
    parser.add_argument(
        "--cluster", metavar="NAME", help="with --prometheus: only nodes whose label cluster has this value"
    )
    add_files(parser)
    add_timeout(parser, "all queries to Prometheus together")
