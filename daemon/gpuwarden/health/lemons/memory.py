"""Memory of lemons: on how many of the last 28 days a board, and so its node, had each kind of fault.

Few nodes cause most of the faults: 1.2 % of one fleet affected 13 % of its daily jobs (Meta RSC), three of 63 nodes had
half of all exclusions (Lablup). Each incident ends by itself or by a reset; only the count over weeks shows a lemon.

Days are counted, not occurrences: a storm of 10,000 lines, or a day of flapping, is one day. Only faults of a board, of
an NVSwitch or of the driver count; a full disk or an unmounted file system does not. A reset, reboot, exclusion or
requeue counts only while such a failure is active, so an epilog that resets every GPU after every job does not count.
The days of a board leave with it when it is replaced. `gpuwarden ack lemon_node` clears all days after a repair.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from gpuwarden.health.model import LemonDays

DAY = 86_400.0
WINDOW = 28
"""Days, as in the lemon study of Meta's research clusters."""
LEMON_FROM = 3
"""Days. Own choice. At the study's rate of 6.5 failures in 1,000 node-days a node has 0.18 in 28 days, and one of 1,100
nodes has three or more by chance. Of the study's nodes one in 83 was a lemon."""
KEPT = 1024  # (owner, what) pairs
NODE_OWNER = "node"


class What(StrEnum):
    """Kinds of counted events. The study's signals: Xids, times out of service, node failures, requeued jobs."""

    FAILURES = "failures"
    XIDS = "xids"  # of the failure class
    REMAPS = "remaps"  # rows of memory
    RESETS = "resets"
    REBOOTS = "reboots"
    EXCLUSIONS = "exclusions"
    REQUEUES = "requeues"


WEAK = (What.REQUEUES,)
"""Kinds too weak alone: jobs are requeued because of other nodes too."""

Lemons = Mapping[tuple[str, str], tuple[int, ...]]
"""By (board or `NODE_OWNER`, kind): days since 1970 with such an event, in order of occurrence."""


def counted(lemons: Lemons, pairs: Iterable[tuple[str, str]], wall: float) -> Lemons:
    """Return the lemons with this day added for each of `pairs`. Beyond `KEPT` pairs, the oldest are dropped."""
    day = int(wall // DAY)
    new_pairs = [pair for pair in dict.fromkeys(pairs) if day not in lemons.get(pair, ())]
    if not new_pairs:
        return lemons
    rest = {pair: days for pair, days in lemons.items() if pair not in new_pairs}
    added = {pair: (*lemons.get(pair, ()), day)[-WINDOW:] for pair in new_pairs}
    return dict(list({**rest, **added}.items())[-KEPT:])


def renamed(lemons: Lemons, old: str, new: str) -> Lemons:
    """Rename an owner, when a board that was known by its slot reports its UUID."""
    return {(new if owner == old else owner, kind): days for (owner, kind), days in lemons.items()}


def report(lemons: Lemons, boards: Mapping[str, str], wall: float) -> tuple[LemonDays, ...]:
    """Return the current counts above 0, by the slots of `boards` and for the node as a whole."""
    today = int(wall // DAY)
    slots = {board: slot for slot, board in boards.items()} | {NODE_OWNER: ""}
    rows: list[LemonDays] = []
    node: dict[str, set[int]] = {}
    for (owner, kind), days in lemons.items():
        recent = [day for day in days if 0 <= today - day < WINDOW] if owner in slots else []
        if not recent:
            continue
        node.setdefault(kind, set()).update(recent)
        if owner != NODE_OWNER:
            rows.append(LemonDays(what=kind, days=len(recent), slot=slots[owner]))
    return (*rows, *(LemonDays(what=kind, days=len(days)) for kind, days in node.items()))
