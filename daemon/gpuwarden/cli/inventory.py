"""`gpuwarden inventory`: which GPUs belong in this machine."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from gpuwarden.cli.client import Daemon
from gpuwarden.cli.parser import Parser
from gpuwarden.cli.text import clean, table, when

HELP = """
Shows the GPUs that belong in this machine, or accepts those that are in it now.

The daemon learns every GPU it ever sees in a slot and misses it when it is gone. After GPUs were taken out for good,
accept what is there.

examples:
  gpuwarden inventory show
  gpuwarden inventory show --json
  gpuwarden inventory accept
"""


def arguments(parser: Parser) -> None:
    parser.add_argument(
        "action", choices=("show", "accept"), help="show: list them; accept: from now on only those present belong here"
    )
    parser.add_run_dir()
    parser.add_json()


def main(options: argparse.Namespace) -> int:
    daemon = Daemon.chosen(options.run_dir, os.environ)
    result = daemon.ask("inventory" if options.action == "show" else "accept")
    if options.json:
        json.dump(result, sys.stdout, indent=2)
        print()
    elif options.action == "show":
        _show(result)
    else:
        gone = result["unpinned"]
        print(f"no longer expected: {', '.join(map(clean, gone))}" if gone else "nothing to accept: all expected GPUs are here")
    return 0


def _show(inventory: dict[str, Any]) -> None:
    count, source = inventory["expected"]["count"], inventory["expected"]["from"]
    print(f"expected: {count} GPUs ({clean(source)})" if count is not None else "expected: not known yet")
    rows = [
        [clean(gpu["pci_bus_id"]), clean(gpu["uuid"]), clean(gpu["name"]), when(gpu["first_seen"]), _here(gpu)]
        for gpu in inventory["gpus"]
    ]
    if rows:
        print("\n".join(table(("PCI BUS ID", "UUID", "NAME", "SINCE", "NOW"), rows)))


def _here(gpu: dict[str, Any]) -> str:
    return "present" if gpu["present"] else "MISSING"
