"""`gpuwarden status`: for people and, often, for scripts."""

from __future__ import annotations

import argparse
import json
import sys

from gpuwarden.cli.client import Daemon
from gpuwarden.cli.parser import HEALTH_CODES, UNKNOWN, CommandError, Parser
from gpuwarden.cli.status_text import status_text

HELP = """
Shows how the running daemon judges this node and each of its GPUs.

exit code: 0 healthy, 1 warning, 2 failure, 3 unknown or no daemon

examples:
  gpuwarden status
  gpuwarden status --json | jq -r '.findings[].id'
  gpuwarden status > /dev/null || echo 'check this node'
"""


def arguments(parser: Parser) -> None:
    parser.add_run_dir()
    parser.add_json()
    parser.add_argument("--verbose", action="store_true", help="also list the sources that this host does not have")


def main(options: argparse.Namespace) -> int:
    try:
        status = Daemon.chosen(options.run_dir).call("status")
    except CommandError as error:
        raise CommandError(str(error), UNKNOWN) from error
    return show(status, as_json=options.json, verbose=options.verbose)


def show(status: dict[str, object], *, as_json: bool, verbose: bool = False) -> int:
    """Print a status; return the exit code of its health."""
    if as_json:
        json.dump(status, sys.stdout, indent=2)
        print()
    else:
        print("\n".join(status_text(status, verbose=verbose)))
    return HEALTH_CODES.get(str(status.get("status")), UNKNOWN)
