"""`gpuwarden repair`: what gpuwarden would do to repair a finding, and what forbids it; or the order to do it."""

from __future__ import annotations

import argparse
import json
from typing import Any

from gpuwarden.cli.client import Daemon
from gpuwarden.cli.parser import UNKNOWN, Parser
from gpuwarden.cli.text import clean

HELP = """
Orders the next step that repairs a finding of this node, under the preconditions under which gpuwarden takes it by itself,
except for quiet hours. With --dry-run it only shows the step, and everything that forbids it now.

The step is begun and goes on without this command: gpuwarden status and gpuwarden events show what came of it.

exit code: 0 the step is begun, or nothing forbids it; 3 something forbids it; 64 no such finding, or bad usage

examples:
  gpuwarden status                                         shows findings with their ids
  gpuwarden repair xid.95@gpu/0000:4e:00.0 --dry-run
"""


def arguments(parser: Parser) -> None:
    parser.add_argument("finding", metavar="FINDING", help="id of the finding, as status shows it")
    parser.add_argument("--dry-run", action="store_true", help="do nothing: show the step and what forbids it")
    parser.add_json()
    parser.add_run_dir()


def main(options: argparse.Namespace) -> int:
    found = Daemon.chosen(options.run_dir).call("repair", finding=options.finding, dry_run=options.dry_run)
    print(json.dumps(found) if options.json else "\n".join(_lines(found)))
    return UNKNOWN if found["forbidden_by"] or found["not_ordered"] else 0


def _lines(found: dict[str, Any]) -> list[str]:
    lines = [f"{clean(found['finding'])}: {clean(found['title'])}"]
    if found["ladder"]:
        lines.append(f"steps: {', then '.join(map(clean, found['ladder']))}")
    if found["step"] is not None:
        lines.append(f"next: {clean(found['step'])} (try {found['try']} of 2 within a day)")
    lines += [
        f"forbidden: {clean(obstacle['why'])} [{clean(obstacle['precondition'])}]" for obstacle in found["forbidden_by"]
    ]
    if found["not_ordered"]:
        lines.append(f"not begun: {clean(found['not_ordered'])}")
    elif found["ordered"]:
        lines.append("it begins: gpuwarden events shows what comes of it")
    elif not found["forbidden_by"]:
        lines.append("nothing forbids it")
    return [*lines, *(f"note: {clean(note)}" for note in found["notes"])]
