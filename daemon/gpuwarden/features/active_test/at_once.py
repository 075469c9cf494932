"""How many nodes of a fleet gpuwarden tests at once, so that a hundred that come back together do not draw their power together.

A node makes its test visible to all, then counts who tests: in the order (since when, name of the node), which every node sees alike,
one beyond the limit takes back what it made visible. So the second count decides, as that of the breaker. Visible are

    a job named `gpuwarden-test`, of an idle node             since it started, for three hours at most
    a mark in a text field of the node, of one that returns   since the time in it, until the other time in it at most
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuwarden.policy.fleet_marks import Mark, marks
from gpuwarden.policy.model import Held, earlier

TEST = "test"
_AGAIN = (30.0, 90.0)
_AGAIN_DOUBLED = 3


def mark(now: float, until: float) -> str:
    return str(Mark(TEST, now, until))


def marked_since(text: str, now: float) -> float | None:
    """Return since when the node is tested, by a mark that counts; None for any other text."""
    return min((mark.since for mark in marks(text) if mark.what == TEST and mark.counts(now)), default=None)


def asked_again(refusals: int) -> tuple[float, float]:
    """Seconds, at least and at most, until a node that was refused so often in a row asks again.

    Each time Slurm sends it the state of all nodes and jobs. Up to 12 min: five hundred nodes that wait make one
    question a second, and a place that is free is taken at once.
    """
    longer = 2.0 ** min(max(0, refusals - 1), _AGAIN_DOUBLED)
    return _AGAIN[0] * longer, _AGAIN[1] * longer


def refusal(at_once: int, held: Iterable[Held], node: str) -> str:
    """Why this node may not be tested now, or may not go on; "" if it may. `held`: all nodes that are tested, this one
    too if it is visible.
    """
    before = len(earlier(held, node))
    if before < at_once:
        return ""
    return f"{before} nodes are tested now, and test.at_once allows {at_once}"
