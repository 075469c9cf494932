"""The memory of lemons: on how many of the last 28 days what went wrong with a board, and so with its node.

Few nodes cause most of the faults: 1.2 % of one fleet touched 13 % of its daily jobs (Meta RSC), three of 63 nodes had
half of all exclusions (Lablup). Each incident ends by itself or by a reset; only the count over weeks shows the lemon.

Days are counted, not occurrences: a storm of 10,000 lines, or a day of flapping, is one. What counts belongs to a board or
to an NVSwitch; a full disk or an unmounted file system makes no lemon. A reset, reboot, exclusion or requeue counts only
while such a failure stood, so an epilog that resets every GPU after every job counts for nothing. A board that is replaced
takes its days along; `gpuwarden ack lemon_node` forgets all of them after a repair.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from gpuwarden.health.model import LemonDays

DAY = 86_400.0
WINDOW = 28
"""Days. As in the lemon study of Meta's research clusters."""
LEMON_FROM = 3
"""Days. Own choice: at the 6.5 failures in 1,000 node-days of the same study a node has 0.18 in 28 days, and three or more
by chance on one of 1,100 nodes; its lemons were one of 83."""
KEPT = 1024  # (owner, what) pairs
NODE_OWNER = "node"


class What(StrEnum):
    """What is counted. Signals of the same study: Xids, times out of service, failures of the node, requeued jobs."""

    FAILURES = "failures"
    XIDS = "xids"  # of the failure class
    REMAPS = "remaps"  # rows of memory
    RESETS = "resets"
    REBOOTS = "reboots"
    EXCLUSIONS = "exclusions"
    REQUEUES = "requeues"


WEAK = (What.REQUEUES,)
"""Too weak a sign alone: jobs are requeued for the sake of other nodes too."""

Lemons = Mapping[tuple[str, str], tuple[int, ...]]
"""By (board or `NODE_OWNER`, what): the days since 1970 on which it came, in the order in which they came."""


def counted(lemons: Lemons, pairs: Iterable[tuple[str, str]], wall: float) -> Lemons:
    """Lemons with this day added for each of `pairs`. Beyond `KEPT` pairs, those that came longest ago are forgotten."""
    day = int(wall // DAY)
    new_pairs = [pair for pair in dict.fromkeys(pairs) if day not in lemons.get(pair, ())]
    if not new_pairs:
        return lemons
    rest = {pair: days for pair, days in lemons.items() if pair not in new_pairs}
    added = {pair: (*lemons.get(pair, ()), day)[-WINDOW:] for pair in new_pairs}
    return dict(list({**rest, **added}.items())[-KEPT:])


def renamed(lemons: Lemons, old: str, new: str) -> Lemons:
    """A board that was known by its slot has given its UUID."""
    return {(new if owner == old else owner, kind): days for (owner, kind), days in lemons.items()}


def report(lemons: Lemons, boards: Mapping[str, str], wall: float) -> tuple[LemonDays, ...]:
    """The counts now, by the slots of `boards` and for the node as a whole; none that is 0."""
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
