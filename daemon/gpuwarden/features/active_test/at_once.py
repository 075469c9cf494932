"""The limit on how many nodes gpuwarden tests at once, so that nodes that return together do not all draw power.

A node first publishes its test, then counts the nodes under test in the order (start, name), which is the same on every
node; a node beyond the limit withdraws what it published. The second count decides, as with the breaker. A test is
published as

    a job named `gpuwarden-test`, of an idle node             since it started, for three hours at most
    a mark in a text field of the node, of one that returns   since the time in it, until the other time in it at most
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuwarden.policy.model import Held, earlier

TEST = "test"
_AGAIN = (30.0, 90.0)
_AGAIN_DOUBLED = 3


def asked_again(refusals: int) -> tuple[float, float]:
    """Return the least and the most seconds until a node that was refused this many times in a row asks again.

    Each request makes Slurm send the state of all nodes and jobs. The pause grows to 4 to 12 minutes: then five hundred
    waiting nodes make about one request per second, and a free place is taken at once.
    """
    longer = 2.0 ** min(max(0, refusals - 1), _AGAIN_DOUBLED)
    return _AGAIN[0] * longer, _AGAIN[1] * longer


def refusal(at_once: int, held: Iterable[Held], node: str) -> str:
    """Return why this node may not begin or continue a test now; "" if it may. `held`: all nodes under test, including
    this one if it has published its test.
    """
    before = len(earlier(held, node))
    if before < at_once:
        return ""
    return f"{before} nodes are tested now, and test.at_once allows {at_once}"
