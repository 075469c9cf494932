"""`gpuwarden inventory`: the GPUs expected in this machine."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

from gpuwarden.cli.client import Daemon
from gpuwarden.cli.parser import Parser
from gpuwarden.cli.text import clean, table

HELP = """
Shows the GPUs expected in this machine, or accepts those present now as the expected ones.

The daemon learns every GPU that it finds in a slot, and reports it missing when it is gone. It also learns NVLinks that were
ever active, and InfiniBand and RoCE ports with their speed. Run `accept` after hardware was removed for good, on a board that
splits the PCIe lanes of its slots, and when a GPU has other settings than its siblings on purpose.

examples:
  gpuwarden inventory show
  gpuwarden inventory show --json
  gpuwarden inventory accept
"""


def arguments(parser: Parser) -> None:
    parser.add_argument(
        "action",
        choices=("show", "accept"),
        help="show: list the expected GPUs; accept: from now on expect exactly what is present",
    )
    parser.add_run_dir()
    parser.add_json()


def main(options: argparse.Namespace) -> int:
    daemon = Daemon.chosen(options.run_dir)
    result = daemon.call("inventory" if options.action == "show" else "accept")
    if options.json:
        json.dump(result, sys.stdout, indent=2)
        print()
    elif options.action == "show":
        print("\n".join(_shown(result)))
    else:
        keys = ("given_up", "slower", "fewer_links", "narrower", "other_settings", "unlicensed")
        gone, slower, fewer, narrower, other, unlicensed = (", ".join(map(clean, result.get(key, ()))) for key in keys)
        changes = [f"no longer expected: {gone}"] if gone else []
        changes += [f"now expected at their lower speed: {slower}"] if slower else []
        changes += [f"inactive NVLinks are no longer expected of: {fewer}"] if fewer else []
        changes += [f"the present number of PCIe lanes is accepted for: {narrower}"] if narrower else []
        changes += [f"settings that differ from those of the other GPUs are accepted for: {other}"] if other else []
        changes += [f"a vGPU licence is no longer expected of: {unlicensed}"] if unlicensed else []
        print("\n".join(changes) or "nothing to accept: every expected GPU is present")
    return 0


def _shown(inventory: list[dict[str, Any]]) -> Iterator[str]:
    if not inventory:
        yield "no GPU is expected, and none was found"
        return
    yield from table(("PCI BUS ID", "BELONGS HERE", "NOW", "UUID", "NAME"), [_row(gpu) for gpu in inventory])


def _row(gpu: dict[str, Any]) -> list[str]:
    since = time.strftime("since %Y-%m-%d", time.gmtime(gpu["first_seen"]))
    why = f": {clean(gpu['why'])}" if gpu["why"] else ""
    now = f"{clean(gpu['presence'])}{why}"
    belongs = since if gpu["expected"] else "no"
    return [clean(gpu["pci_bus_id"]), belongs, now, clean(gpu["uuid"]) or "-", clean(gpu["name"]) or "-"]
