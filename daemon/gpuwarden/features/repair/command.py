"""`gpuwarden repair`: what gpuwarden would do to repair a finding, and what forbids it; or the order to do it."""

from __future__ import annotations

import argparse
import json
from typing import Any

from gpuwarden.cli.client import Daemon
from gpuwarden.cli.parser import UNKNOWN, Parser
from gpuwarden.cli.text import clean

HELP = """
Orders the next step to repair a finding of this node. The preconditions are those of automatic repair, except quiet hours.
With --dry-run it only shows the step, and everything that forbids it now.

The step continues without this command: gpuwarden status and gpuwarden events show its result.

exit code: 0 the step has begun, or nothing forbids it; 3 something forbids it; 64 no such finding, or bad usage

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
    answer = Daemon.chosen(options.run_dir).call("repair", finding=options.finding, dry_run=options.dry_run)
    print(json.dumps(answer) if options.json else "\n".join(_lines(answer)))
    return UNKNOWN if answer["forbidden_by"] or answer["not_ordered"] else 0


def _lines(answer: dict[str, Any]) -> list[str]:
    lines = [f"{clean(answer['finding'])}: {clean(answer['title'])}"]
    if answer["ladder"]:
        lines.append(f"steps: {', then '.join(map(clean, answer['ladder']))}")
    if answer["step"] is not None:
        lines.append(f"next: {clean(answer['step'])} (try {answer['try']} of 2 within a day)")
    lines += [
        f"forbidden: {clean(obstacle['why'])} [{clean(obstacle['precondition'])}]"
        for obstacle in answer["forbidden_by"]
    ]
    if answer["not_ordered"]:
        lines.append(f"not begun: {clean(answer['not_ordered'])}")
    elif answer["ordered"]:
        lines.append("the step begins: gpuwarden events shows its result")
    elif not answer["forbidden_by"]:
        lines.append("nothing forbids it")
    return [*lines, *(f"note: {clean(note)}" for note in answer["notes"])]
