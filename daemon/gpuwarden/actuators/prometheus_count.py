"""Counts nodes excluded for failures with Prometheus, for the breaker, if no scheduler counts them.

Prometheus learns of an exclusion with the next scrape of that node. Therefore nodes that fail within one scrape
interval do not count each other and all exclude themselves; the second count follows after all earlier writes have been
scraped, and then a node beyond the budget rolls back. docs/use/exclusion.md has the arithmetic.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gpuwarden.actuators.base import BudgetUnknown
from gpuwarden.actuators.prometheus_shared import Shared
from gpuwarden.base.threads import detached
from gpuwarden.config.policy import BreakerOptions
from gpuwarden.config.secrets import SecretError, SecretFile
from gpuwarden.health.domain import domain_of_labels
from gpuwarden.policy.model import FleetCount, Held
from gpuwarden.prometheus.access import Access, AccessError, Hints, access
from gpuwarden.prometheus.client import PrometheusError, Results, Sample, query
from gpuwarden_collectors.base import Clock

FRESH = 60.0
"""Most seconds of age of this node's own sample; an older result is not used."""
RESPONSE_WITHIN = 10.0
READ_WITHIN = 5.0
"""Seconds for the files of credentials, in addition to those for the query."""
SEEN_FOR = "20m"
"""How long a node that no longer answers is counted, both in the pool and among the excluded nodes."""
LARGEST = 8 << 20
"""Bytes of one result; 2,000 excluded nodes, a quarter of 8,000, have 0.4 MB."""
POOL_ASSUMED = 500
"""Number of nodes assumed until it is known: first writes are then spread over ten seconds."""
POOL_FIRST_AFTER = 600.0
"""Seconds; reads are 20 minutes apart by default, and not in step."""
POOL_AGE = 86_400.0  # seconds
_NODES = "cluster, job, instance"
_HINTS = Hints("is breaker.prometheus right?", "give breaker.prometheus_token or breaker.prometheus_basic")


def queries(node: str, boot_id: str, match: str) -> dict[str, str]:
    """The queries of one count. `own` (the last scrape of this daemon) is first: its result sets the others' time."""
    more = f",{match}" if match else ""
    us = _us(node, boot_id, match)
    out = f'{{cause="failure"{more}}}'
    held = f"max by ({_NODES}) (last_over_time(gpuwarden_excluded{out}[{SEEN_FOR}])) == 1"
    return {
        "own": f"max by ({_NODES}) (timestamp(gpuwarden_node_info{{{us}}}))",
        "pool": f"count(group by ({_NODES}) (last_over_time(gpuwarden_node_info{{{match}}}[{SEEN_FOR}])))",
        "held": held,
        "domains": f'last_over_time(gpuwarden_machine_info{{cluster_uuid!=""{more}}}[{SEEN_FOR}]) and on ({_NODES}) ({held})',
        "since": f"min by ({_NODES}) (last_over_time(gpuwarden_excluded_since_timestamp_seconds{out}[{SEEN_FOR}]))",
    }


def _us(node: str, boot_id: str, match: str) -> str:
    """Return the PromQL matchers that select the series of this daemon alone."""
    return f"node={json.dumps(node)},boot_id={json.dumps(boot_id)}{f',{match}' if match else ''}"


class PrometheusCounter:
    def __init__(self, options: BreakerOptions, *, node: str, boot_id: str, clock: Clock) -> None:
        self._options = options
        self._queries = queries(node, boot_id, options.prometheus_match)
        self._clock = clock
        self._pool = POOL_ASSUMED
        self._pool_due = clock().boottime + POOL_FIRST_AFTER
        self._sizing: asyncio.Future[Results] | None = None
        self._querying: asyncio.Future[Results] | None = None
        us, match = _us(node, boot_id, options.prometheus_match), options.prometheus_match
        self._shared = Shared(self._ask, us=us, match=match, held=self._queries["held"], seen_for=SEEN_FOR)
        self._chance = random.Random()  # noqa: S311 - spreads load, guards nothing

    @property
    def pool(self) -> int | None:
        """Last known number of nodes in the pool.

        Queried in the background, first some time after the start and then about once a day, so that a fleet does not
        query at the same time.
        """
        now = self._clock().boottime
        if now >= self._pool_due:
            self._pool_due = now + POOL_AGE * self._chance.uniform(0.9, 1.1)
            self._sizing = detached("prometheus-pool", self._request)
            self._sizing.add_done_callback(self._sized)
        return self._pool

    def _sized(self, sizing: asyncio.Future[Results]) -> None:
        with contextlib.suppress(PrometheusError, AccessError, SecretError, BudgetUnknown):
            self._pool = fleet_count_of(sizing.result(), self._clock().wall).pool

    async def fleet_count(self) -> FleetCount:
        """Count the fleet. Concurrent callers share one query. Raises BudgetUnknown."""
        if self._querying is None or self._querying.done():
            self._querying = detached("prometheus", self._request)
            self._querying.add_done_callback(lambda done: done.exception())  # retrieves it even if no caller is left
        # `query` keeps its deadline even if the server hangs; reading a credential file may hang.
        await asyncio.wait((self._querying,), timeout=RESPONSE_WITHIN + READ_WITHIN)
        if not self._querying.done():
            raise BudgetUnknown("the credentials of Prometheus cannot be read: does their file system hang?")
        try:
            fleet = fleet_count_of(self._querying.result(), self._clock().wall)
        except (PrometheusError, AccessError, SecretError) as error:
            raise BudgetUnknown(str(error)) from error
        self._pool, self._pool_due = fleet.pool, self._clock().boottime + POOL_AGE
        shared = self._shared.text(fleet, self._clock().boottime)
        return replace(fleet, shared=shared, visible_after=FRESH * self._chance.uniform(1.0, 1.25))

    def _request(self) -> Results:
        return self._ask(self._queries)

    def _ask(self, queries: Mapping[str, str]) -> Results:
        return query(access_of(self._options), queries, RESPONSE_WITHIN, largest=LARGEST)


def access_of(options: BreakerOptions) -> Access:
    """Read the access to Prometheus, for each query anew, since tokens are renewed. Raises AccessError, SecretError."""
    return access(
        options.prometheus,
        token=_path(options.prometheus_token),
        basic=_path(options.prometheus_basic),
        ca=options.prometheus_ca,
        hints=_HINTS,
    )


def _path(secret: SecretFile | None) -> Path | None:
    return None if secret is None else secret.path()


def fleet_count_of(results: Results, wall: float) -> FleetCount:
    """Count the fleet from the results. Raises BudgetUnknown. `wall`: this host's clock, Unix time."""
    if results.warnings:
        raise BudgetUnknown(f"Prometheus may have only a part of the nodes: {results.warnings[0]}")
    own, pool = results.samples["own"], results.samples["pool"]
    if not own or not pool:
        raise BudgetUnknown(
            "Prometheus has no sample of this node in this boot: is it scraped, and does prometheus_match match it?"
        )
    newest = max(own, key=lambda sample: sample.value)
    if abs(newest.at - wall) > FRESH:
        raise BudgetUnknown(f"the result is {wall - newest.at:.0f} s old: a cache answers, or a clock is wrong")
    if newest.at - newest.value > FRESH:
        raise BudgetUnknown(
            f"Prometheus has not scraped this node for {newest.at - newest.value:.0f} s; the limit is {FRESH:g} s"
        )
    since = {_name(sample): sample.value for sample in results.samples["since"]}
    # A node that is scraped by two jobs must not rank before itself.
    also = {_name(sample) for sample in own} - {_name(newest)}
    names = (name for name in map(_name, results.samples["held"]) if name not in also)
    domains = {_name(sample): domain_of_labels(sample.labels) for sample in results.samples.get("domains", ())}
    held = tuple(Held(since.get(name, 0.0), name, domains.get(name, "")) for name in names)
    return FleetCount(node=_name(newest), pool=max(1, int(pool[0].value)), held=held, now=newest.at)


def _name(sample: Sample) -> str:
    """Name of the sample's node, the same to every node of the pool."""
    labels: Mapping[str, str] = sample.labels
    return "/".join(labels.get(name, "") for name in ("cluster", "job", "instance"))
