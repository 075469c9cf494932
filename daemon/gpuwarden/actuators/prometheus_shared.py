"""Finds what the nodes excluded for failures have in common with this one, as a text next to the breaker's refusal.

The text is informative only. It is queried in the background, while this node would be excluded and at least
MARKED_LEAST others are. The first query returns the labels of this node (`gpuwarden_machine_info`, with those of its
target), the next ones, for each label, how many nodes and how many excluded nodes have it. Fisher's exact test,
corrected for the number of labels, decides what is shown. Only this node's values are tested, which do not depend on
which nodes fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping

from gpuwarden.base.fisher import CHANCE, MARKED_LEAST, p_value
from gpuwarden.base.threads import detached
from gpuwarden.policy.model import FleetCount
from gpuwarden.prometheus.client import Results, Sample
from gpuwarden.publish.metrics.machine import OF_THE_NODE

EVERY = 600.0
"""Seconds between two such queries."""
LABELS_MOST = 32
"""Most labels; two queries for each. A target has fewer, unless it is mislabelled."""
VALUE_SHOWN = 80  # characters
_NODES = "cluster, job, instance"
Query = Callable[[Mapping[str, str]], Results]


class Shared:
    """Queries the labels that this node shares with excluded nodes.

    `query` blocks, and raises PrometheusError. `us`: matchers of this node's `gpuwarden_node_info`; `match`: of all
    nodes. `held`: the expression of the nodes that are excluded for failures.
    """

    def __init__(self, query: Query, *, us: str, match: str, held: str, seen_for: str) -> None:
        self._query = query
        self._held = held
        self._us, self._match, self._seen_for = us, match, seen_for
        self._next = float("-inf")
        self._running: asyncio.Future[str] | None = None
        self._text = ""

    def text(self, fleet: FleetCount, now: float) -> str:
        """Text of the last completed query; "" without a result. `now`: seconds of CLOCK_BOOTTIME."""
        if self._running is not None and self._running.done():
            self._text = ""
            with contextlib.suppress(Exception):  # the text is informative only
                self._text = self._running.result()
            self._running = None
        if self._running is None and now >= self._next and len(fleet.held) >= MARKED_LEAST:
            self._next = now + EVERY
            self._running = detached("prometheus-shared", lambda: self._ask(fleet))
        return self._text if len(fleet.held) >= MARKED_LEAST else ""

    def _ask(self, fleet: FleetCount) -> str:
        info = f"gpuwarden_machine_info{{{self._match}}}"
        mine = self._query({"mine": f"{info} and on ({_NODES}) gpuwarden_node_info{{{self._us}}}"}).samples["mine"]
        if not mine:
            return ""
        labels = {n: v for n, v in mine[0].labels.items() if v and n not in OF_THE_NODE}
        labels = dict(sorted(labels.items())[:LABELS_MOST])
        counts = self._query({name: text for label in labels.items() for name, text in self._counts(*label).items()})
        return _best(labels, counts.samples, fleet)

    def _counts(self, name: str, value: str) -> dict[str, str]:
        more = f",{self._match}" if self._match else ""
        chosen = f"gpuwarden_machine_info{{{name}={json.dumps(value)}{more}}}[{self._seen_for}]"
        having = f"group by ({_NODES}) (last_over_time({chosen}))"
        return {
            f"having {name}": f"count({having})",
            f"held {name}": f"count({having} and on ({_NODES}) ({self._held}))",
        }


def _best(labels: Mapping[str, str], counts: Mapping[str, list[Sample]], fleet: FleetCount) -> str:
    held, best = len(fleet.held), (CHANCE, "")
    for name, value in labels.items():
        having, both = (int(of[0].value) if (of := counts[f"{prefix} {name}"]) else 0 for prefix in ("having", "held"))
        with contextlib.suppress(ValueError):  # inconsistent, because they were counted at two instants
            p = len(labels) * p_value(both, held, having, fleet.pool)
            others = f"{having - both} of {fleet.pool - held} others"
            best = min(
                best,
                (p, f"{both} of the {held} excluded have {name}={value[:VALUE_SHOWN]}, as this node has, and {others}"),
            )
    return best[1]
