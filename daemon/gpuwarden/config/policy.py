"""The keys of `[policy]` and `[breaker]`: when this node is taken out and brought back, and how many may be out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpuwarden.base.durations import format_duration
from gpuwarden.base.web_address import address_fault
from gpuwarden.config.secrets import SecretFile
from gpuwarden.policy.breaker import RECOUNT_LEAST
from gpuwarden.policy.model import Budget, Settings

Misfit = tuple[tuple[str, ...], str]

UNCOUNTED = (
    "set breaker.prometheus to the address of who scrapes the nodes, "
    'or breaker.uncounted = "allow" if every node may hold itself out'
)


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """`on_unknown` exclude: a node that was unknown for `unknown_after` is taken out as if it had failed.

    A node that failed comes back after `restore_passes` clean passes and `restore_after` since it was taken out, both, and at
    most `restores_per_day` times without a person. `lifted_for`: how long it is respected that somebody else lifted an
    exclusion of ours whose cause goes on. A node that nothing is wanted of is looked at every `look_every`, and one
    that is out, or should be, every `look_often`.
    """

    on_unknown: Literal["ignore", "exclude"] = "ignore"
    unknown_after: float = 900.0
    restore_passes: int = 12
    restore_after: float = 600.0
    restores_per_day: int = 3
    lifted_for: float = 300.0
    look_every: float = 1200.0
    look_often: float = 60.0


@dataclass(frozen=True, slots=True)
class BreakerOptions:
    """Of the nodes that share a budget `percent` may be held out for failures, at least one, and `count` within `window`.

    `recount_after` an exclusion it is counted once more. `prometheus`: the address of who scrapes all nodes, which counts
    where no scheduler does; `prometheus_match` chooses those that share the budget, as between the braces of a selector.
    `uncounted` allow: where nobody counts, every node may hold itself out.
    """

    percent: int = 25
    count: int = 10
    window: float = 3_600.0
    recount_after: float = 2.0
    uncounted: Literal["refuse", "allow"] = "refuse"
    prometheus: str = ""
    prometheus_match: str = ""
    prometheus_token: SecretFile | None = None
    prometheus_basic: SecretFile | None = None
    prometheus_ca: Path | None = None


def settings(options: PolicyOptions, *, enforce: bool) -> Settings:
    return Settings(
        enforce=enforce,
        unknown_after=options.unknown_after if options.on_unknown == "exclude" else None,
        restore_passes=options.restore_passes,
        restore_after=options.restore_after,
        restores_per_day=options.restores_per_day,
        lifted_for=options.lifted_for,
    )


def budget(options: BreakerOptions) -> Budget:
    return Budget(percent=options.percent, count=options.count, window=options.window)


_DURATIONS = (
    ("unknown_after", 60.0, 86_400.0, "a slow boot and a driver reload pass by themselves"),
    ("restore_after", 0.0, 7 * 86_400.0, "whatever is out longer waits for a person"),
    ("lifted_for", 0.0, 86_400.0, "a dead GPU must not stay in for longer because somebody hoped"),
    ("look_every", 60.0, 3_600.0, "each look is asked of the controller, by every node"),
    ("look_often", 5.0, 600.0, "each look is asked of the controller"),
)
_COUNTS = (
    ("policy", "restore_passes", 1, 100_000, "one clean pass at least"),
    ("policy", "restores_per_day", 0, 1_000, "0 leaves every restoration to a person"),
    ("breaker", "percent", 1, 100, "a share of the nodes that share the budget; one node is always allowed"),
    ("breaker", "count", 1, 100_000, "one node at least"),
)


def policy_misfits(policy: PolicyOptions, breaker: BreakerOptions) -> Iterator[Misfit]:
    """Values that are of the right kind and yet dangerous, by their keys."""
    for key, least, most, why in _DURATIONS:
        yield from _duration("policy", key, getattr(policy, key), (least, most), why)
    yield from _duration("breaker", "window", breaker.window, (60.0, 7 * 86_400.0), "failures come in minutes to days")
    why = "schedulers keep whole seconds, and whoever writes later must be seen to be later"
    yield from _duration("breaker", "recount_after", breaker.recount_after, (RECOUNT_LEAST, 60.0), why)
    yield from _prometheus_misfits(breaker)
    for table, key, fewest, largest, why in _COUNTS:
        value = getattr(policy if table == "policy" else breaker, key)
        if not fewest <= value <= largest:
            found = value if abs(value) < 10**9 else "a number far beyond"
            yield (f"{table}.{key}",), f"expected {fewest} to {largest}, found {found}: {why}"


_MATCHER = r'[a-zA-Z_][a-zA-Z0-9_]*\s*(?:=~|!~|!=|=)\s*"(?:[^"\\\n]|\\.)*"'
_MATCHERS = re.compile(rf"\s*{_MATCHER}(?:\s*,\s*{_MATCHER})*\s*")


def _prometheus_misfits(breaker: BreakerOptions) -> Iterator[Misfit]:
    if breaker.prometheus and (fault := address_fault(breaker.prometheus)):
        yield ("breaker.prometheus",), fault
    if breaker.prometheus_match and not _MATCHERS.fullmatch(breaker.prometheus_match):
        found = f"found {breaker.prometheus_match[:60]!r}"
        yield (
            ("breaker.prometheus_match",),
            f'expected label matchers such as \'cluster="a", job="gpuwarden"\', {found}',
        )
    if breaker.prometheus_token is not None and breaker.prometheus_basic is not None:
        keys = ("breaker.prometheus_token", "breaker.prometheus_basic")
        yield keys, "expected a bearer token or a password, found both: which of them is it?"


def _duration(table: str, key: str, value: float, bounds: tuple[float, float], why: str) -> Iterator[Misfit]:
    if not bounds[0] <= value <= bounds[1]:
        allowed = f"{format_duration(bounds[0])} to {format_duration(bounds[1])}"
        yield (f"{table}.{key}",), f"expected {allowed}, found {format_duration(value)}: {why}"
