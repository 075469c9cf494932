"""What the nodes excluded for failures have in common with this one: a text beside the breaker's refusal, by which nothing is decided.

Queried in the background, and only while this node would be excluded and at least MARKED_LEAST others are; which limits
hold is the breaker's business. First the labels of this node (`gpuwarden_machine_info`, with those of its target), then
for each of them how many nodes have it, and how many of the excluded ones. Fisher's exact test, corrected for the number
of labels, decides what is shown. Only the values of this node are tested, which do not depend on who fails.
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
"""Two queries for each. A target has fewer, unless it is labelled by mistake."""
VALUE_SHOWN = 80  # characters
_NODES = "cluster, job, instance"
Query = Callable[[Mapping[str, str]], Results]


class Shared:
    """Queries what the excluded nodes have in common with this one.

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
        """Text of the last query that ended; "" where nothing is explained. `now`: seconds of CLOCK_BOOTTIME."""
        if self._running is not None and self._running.done():
            self._text = ""
            with contextlib.suppress(Exception):  # the text only explains
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
        with contextlib.suppress(ValueError):  # they were counted at two instants
            p = len(labels) * p_value(both, held, having, fleet.pool)
            others = f"{having - both} of {fleet.pool - held} others"
            best = min(
                best,
                (p, f"{both} of the {held} excluded have {name}={value[:VALUE_SHOWN]}, as this node has, and {others}"),
            )
    return best[1]
