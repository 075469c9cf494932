"""Detects that a node is a lemon, from its memory of 28 days (`memory.py`)."""

from __future__ import annotations

from gpuwarden.health.detection import Detection, node_detection
from gpuwarden.health.lemons.memory import LEMON_FROM, WEAK, WINDOW, report
from gpuwarden.health.memory import LEMON_NODE, State, board
from gpuwarden.health.model import NODE, Json, Key, LemonDays, Sighting
from gpuwarden.health.view import Sight

BOARDS_NAMED = 4


def lemon_days(state: State, sight: Sight) -> tuple[LemonDays, ...]:
    """Return the number of days with each kind of fault, for every expected GPU and for the node."""
    return report(state.lemons, {slot: board(state, slot) for slot in state.pins}, sight.now.wall)


def lemon_node(state: State, sight: Sight) -> Detection:
    """Detect a node with one kind of fault on too many different days, on its present boards or the node itself."""
    if not state.lemons:
        return node_detection(())
    rows = lemon_days(state, sight)
    node = [row for row in rows if not row.slot]
    if not any(row.days >= LEMON_FROM and row.what not in WEAK for row in node):
        return node_detection(())
    evidence: dict[str, Json] = {f"days_with_{row.what}": row.days for row in node}
    evidence |= {"of_days": WINDOW, "gpus": _worst_boards([row for row in rows if row.slot])}
    return node_detection((Sighting(Key(LEMON_NODE, NODE), evidence),))


def _worst_boards(rows: list[LemonDays]) -> str:
    days: dict[str, int] = {}
    for row in rows:
        days[row.slot] = max(days.get(row.slot, 0), row.days)
    worst = sorted(days, key=lambda slot: (-days[slot], slot))[:BOARDS_NAMED]
    return ", ".join(f"{slot} on {days[slot]}" for slot in worst)
