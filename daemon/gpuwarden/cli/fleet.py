"""`gpuwarden fleet`: every node, from Prometheus. Needs no daemon where it runs."""

from __future__ import annotations

import argparse

from gpuwarden.cli import fleet_report_options
from gpuwarden.cli.parser import Parser, duration
from gpuwarden.cli.prometheus_options import URL, add_files, add_timeout
from gpuwarden.fleet.status import Status

HELP = """
Counts the nodes by health, from Prometheus, then shows those not healthy or not in service, the worst first: GPUs,
health and why, who excluded it from scheduling, its last heartbeat, and any termination notice. A node without a recent heartbeat
is unreachable.

With --report it shows figures of a period instead: availability, failures, time to repair, GPU-hours lost, and who excluded what.

exit code: that of the worst node shown: 0 healthy, 1 warning, 2 failure, 3 unknown or unreachable, no such node, or no
response from Prometheus; with --report 0; with --drift 0 if nothing differs, else 1

examples:
  gpuwarden fleet --prometheus http://prometheus.example:9090
  gpuwarden fleet --all
  gpuwarden fleet --status failure,unreachable --watch
  gpuwarden fleet --why
  gpuwarden fleet --drift
  gpuwarden fleet --report 30d --until 2026-11-01 --html october.html
  gpuwarden fleet --node 'gpu-1*' --json | jq -r '.nodes[] | select(.excluded_by == []) | .node'
"""

MAIN = "gpuwarden.cli.fleet_main"


def arguments(parser: Parser) -> None:
    parser.add_argument(
        "--prometheus", metavar="URL", help=f"address of Prometheus (default: $PROMETHEUS_URL, else {URL})"
    )
    add_files(parser)
    parser.add_argument(
        "--all",
        action="store_true",
        help="also show the healthy nodes; --node, --status and --json show them without it",
    )
    parser.add_argument("--status", metavar="S,…", type=_statuses, help=f"only nodes that are {', '.join(Status)}")
    parser.add_argument("--node", metavar="PATTERN", help="only nodes whose name or instance matches, such as 'gpu-1*'")
    parser.add_argument(
        "--why",
        action="store_true",
        help="also show what the failing and unreachable nodes (with --status: the chosen ones) have in common and the others lack",
    )
    parser.add_argument(
        "--drift",
        action="store_true",
        help="instead of the table: nodes whose driver, VBIOS, InfoROM, kernel or adapter firmware differs from that of most machines of "
        "their type and GPU model, or of their NVLink domain",
    )
    parser.add_argument("--cluster", metavar="NAME", help="only nodes whose label cluster has this value")
    parser.add_argument(
        "--termination-deadline",
        metavar="T",
        type=duration("100ms", "7d"),
        help="time after the last heartbeat at which the cloud or an autoscaler removes an unreachable node; WHY shows what is left (default: 20m)",
    )
    add_timeout(parser, "all queries together, with --report for each of them")
    parser.add_argument(
        "--watch",
        metavar="T",
        type=duration("100ms", "7d"),
        nargs="?",
        const="15s",
        help="repeat every T (15s) until interrupted",
    )
    fleet_report_options.arguments(parser)
    parser.add_json()


def _statuses(text: str) -> frozenset[Status]:
    try:
        return frozenset(map(Status, text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected some of {','.join(Status)}, found {text!r}") from None
