"""`gpuwarden nvhcd`: the node health check for ft_launcher."""

from __future__ import annotations

from pathlib import Path

from gpuwarden.cli.parser import Parser

HELP = """
Answers the node health check of NVIDIA's ft_launcher (nvidia-resiliency-ext): a node that gpuwarden excludes fails the check.

Reads the files that the daemon publishes, and works while the daemon is stopped. Unknown health, a warning and mode observe
pass the check. systemd holds its socket, which must exist before jobs start: a client that finds none never tries again.

exit code: 0 after SIGTERM or SIGINT, 64 for bad usage, 69 when it cannot listen or h2 is not installed

examples:
  systemctl enable --now gpuwarden-nvhcd.socket
  gpuwarden nvhcd --socket /tmp/nvhcd.sock --run-dir .run/run
  ft_launcher --ft-node-health-check-endpoint unix:///run/gpuwarden/nvhcd.sock …
"""

MAIN = "gpuwarden.features.nvhcd.process"


def arguments(parser: Parser) -> None:
    parser.add_config()
    parser.add_run_dir()
    parser.add_argument(
        "--socket",
        metavar="PATH",
        type=Path,
        help="socket to listen on, if systemd passes none (default: nvhcd.sock in the run directory)",
    )
