"""What `gpuwarden exclusions` does."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from functools import reduce
from typing import Any

from gpuwarden.cli.ledger_events import ledger_path
from gpuwarden.cli.parser import UNAVAILABLE, CommandError
from gpuwarden.cli.text import clean, when
from gpuwarden.ledger.errors import LedgerError
from gpuwarden.ledger.reader import read_only
from gpuwarden.policy.fold import fold
from gpuwarden.policy.model import Act
from gpuwarden.policy.state import PolicyState
from gpuwarden.publish.times import rfc3339

EXCLUDED = 1


def main(options: argparse.Namespace) -> int:
    try:
        with read_only(ledger_path(options.state_dir)) as ledger:
            state = reduce(fold, ledger.memory().events, PolicyState())
    except LedgerError as error:
        raise CommandError(str(error), UNAVAILABLE) from error
    exclusions = list(_exclusions(state))
    if options.json:
        print(json.dumps({"exclusions": exclusions}, indent=2))
    else:
        print("\n".join(map(_line, exclusions)) or "gpuwarden excludes this node nowhere")
    return EXCLUDED if exclusions else 0


def _exclusions(state: PolicyState) -> Iterator[dict[str, Any]]:
    """Yield gpuwarden's exclusions. One with `asked` may be in force: it was written, but not read back."""
    for hold in state.holds.values():
        yield _row(hold.actuator, hold.why.value, hold.reason, hold.since or hold.at.wall, asked=False)
    for intent in state.pending.values():
        if intent.act is Act.EXCLUDE and intent.actuator not in state.holds:
            yield _row(intent.actuator, intent.why.value, intent.reason, intent.at.wall, asked=True)


def _row(actuator: str, why: str, reason: str, since: float, *, asked: bool) -> dict[str, Any]:
    return {"actuator": actuator, "cause": why, "reason": reason, "since": rfc3339(since), "asked": asked}


def _line(row: dict[str, Any]) -> str:
    state = "may be in force, requested" if row["asked"] else "in force since"
    return f"{clean(row['actuator'])}: {state} {when(row['since'])}, for {row['cause']}: {clean(row['reason'])}"
