"""Prometheus counts for the breaker where no scheduler does: of the nodes that it scrapes, who is held out for a failure.

It sees a write only with the next scrape of that node. So who fails within one scrape interval of the others does not see
them, and holds itself out; the second count comes when every write before it has been scraped, and there whoever stands
beyond the budget steps back. docs/exclusion.md has the arithmetic.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Mapping
from pathlib import Path

from gpuwarden.actuators.base import BudgetUnknown
from gpuwarden.base.threads import detached
from gpuwarden.config.policy import BreakerOptions
from gpuwarden.config.secrets import SecretError, SecretFile
from gpuwarden.policy.model import Census, Held
from gpuwarden.prometheus.access import Access, AccessError, Hints, access
from gpuwarden.prometheus.client import Answers, PrometheusError, Sample, ask
from gpuwarden_collectors.base import Clock

FRESH = 60.0
"""Seconds: an answer that knows less of this node itself says nothing of the others."""
ANSWERS_WITHIN = 10.0
READ_WITHIN = 5.0
"""Seconds for the files of credentials, beside those for the answer."""
SEEN_FOR = "20m"
"""For so long a node that fell silent counts on, as one of the pool and as one that is held out."""
LARGEST = 8 << 20
"""Bytes of one answer; 2,000 nodes held out, a quarter of 8,000, have 0.4 MB."""
POOL_ASSUMED = 500
"""Nodes, until it is known: first writes are spread over ten seconds then."""
POOL_FIRST_AFTER = 600.0
"""Seconds; looks are 20 minutes apart by default, and not in step."""
POOL_AGE = 86_400.0  # seconds
_NODES = "cluster, job, instance"
_HINTS = Hints("is breaker.prometheus right?", "give breaker.prometheus_token or breaker.prometheus_basic")


def queries(node: str, boot_id: str, match: str) -> dict[str, str]:
    """`ours`: when this very daemon was scraped last. First, for its answer tells the time of the others."""
    more = f",{match}" if match else ""
    us = f"node={json.dumps(node)},boot_id={json.dumps(boot_id)}"
    out = f'{{cause="failure"{more}}}'
    return {
        "ours": f"max by ({_NODES}) (timestamp(gpuwarden_node_info{{{us}{more}}}))",
        "pool": f"count(group by ({_NODES}) (last_over_time(gpuwarden_node_info{{{match}}}[{SEEN_FOR}])))",
        "held": f"max by ({_NODES}) (last_over_time(gpuwarden_excluded{out}[{SEEN_FOR}])) == 1",
        "since": f"min by ({_NODES}) (last_over_time(gpuwarden_excluded_since_timestamp_seconds{out}[{SEEN_FOR}]))",
    }


class PrometheusCounter:
    def __init__(self, options: BreakerOptions, *, node: str, boot_id: str, clock: Clock) -> None:
        self._options = options
        self._queries = queries(node, boot_id, options.prometheus_match)
        self._clock = clock
        self._pool = POOL_ASSUMED
        self._pool_due = clock().boottime + POOL_FIRST_AFTER
        self._sizing: asyncio.Future[Answers] | None = None
        self._asking: asyncio.Future[Answers] | None = None
        self._chance = random.Random()  # noqa: S311 - spreads load, guards nothing

    @property
    def pool(self) -> int | None:
        """It is asked for beside, with a look long after the start and about once a day, so that a fleet does not ask at once."""
        now = self._clock().boottime
        if now >= self._pool_due:
            self._pool_due = now + POOL_AGE * self._chance.uniform(0.9, 1.1)
            self._sizing = detached("prometheus-pool", self._ask)
            self._sizing.add_done_callback(self._sized)
        return self._pool

    def _sized(self, sizing: asyncio.Future[Answers]) -> None:
        with contextlib.suppress(PrometheusError, AccessError, SecretError, BudgetUnknown):
            self._pool = census_of(sizing.result(), self._clock().wall).pool

    async def census(self) -> Census:
        """Whoever asks while it is asked gets the same answer. Raises BudgetUnknown."""
        if self._asking is None or self._asking.done():
            self._asking = detached("prometheus", self._ask)
            self._asking.add_done_callback(lambda asked: asked.exception())  # also if all who waited have given up
        # `ask` has a deadline, and heeds it whatever the server does; a file of credentials may hang.
        await asyncio.wait((self._asking,), timeout=ANSWERS_WITHIN + READ_WITHIN)
        if not self._asking.done():
            raise BudgetUnknown("the credentials of Prometheus cannot be read: does their file system hang?")
        try:
            found = census_of(self._asking.result(), self._clock().wall)
        except (PrometheusError, AccessError, SecretError) as error:
            raise BudgetUnknown(str(error)) from error
        self._pool, self._pool_due = found.pool, self._clock().boottime + POOL_AGE
        return Census(
            node=found.node, pool=found.pool, held=found.held, now=found.now,
            visible_after=FRESH * self._chance.uniform(1.0, 1.25),
        )  # fmt: skip

    def _ask(self) -> Answers:
        return ask(access_of(self._options), self._queries, ANSWERS_WITHIN, largest=LARGEST)


def access_of(options: BreakerOptions) -> Access:
    """To be read anew each time: tokens are renewed in their files. Raises AccessError, SecretError."""
    return access(
        options.prometheus, token=_path(options.prometheus_token), basic=_path(options.prometheus_basic),
        ca=options.prometheus_ca, hints=_HINTS,
    )  # fmt: skip


def _path(secret: SecretFile | None) -> Path | None:
    return None if secret is None else secret.path()


def census_of(answers: Answers, wall: float) -> Census:
    """Raises BudgetUnknown if nothing can be counted by it. `wall`: our clock."""
    if answers.warnings:
        raise BudgetUnknown(f"Prometheus may know of a part of the nodes only: {answers.warnings[0]}")
    ours, pool = answers.samples["ours"], answers.samples["pool"]
    if not ours or not pool:
        raise BudgetUnknown(
            "Prometheus does not know this node in this boot: is it scraped, and does prometheus_match fit it?"
        )
    newest = max(ours, key=lambda sample: sample.value)
    if abs(newest.at - wall) > FRESH:
        raise BudgetUnknown(f"the answer is of {wall - newest.at:.0f} s ago: a cache answers, or a clock is wrong")
    if newest.at - newest.value > FRESH:
        raise BudgetUnknown(
            f"Prometheus has not scraped this node for {newest.at - newest.value:.0f} s, {FRESH:g} s may be"
        )
    since = {_name(sample): sample.value for sample in answers.samples["since"]}
    # Who is scraped by two jobs must not stand before itself.
    also = {_name(sample) for sample in ours} - {_name(newest)}
    names = (name for name in map(_name, answers.samples["held"]) if name not in also)
    held = tuple(Held(since.get(name, 0.0), name) for name in names)
    return Census(node=_name(newest), pool=max(1, int(pool[0].value)), held=held, now=newest.at)


def _name(sample: Sample) -> str:
    """As every node of the pool sees it."""
    labels: Mapping[str, str] = sample.labels
    return "/".join(labels.get(name, "") for name in ("cluster", "job", "instance"))
