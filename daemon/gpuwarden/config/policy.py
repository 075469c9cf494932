"""The keys of `[breaker]`: the limits of excluded nodes, and their count. `[policy]` is policy's own Settings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from gpuwarden.base.web_address import address_fault
from gpuwarden.config.secrets import SecretFile
from gpuwarden.policy.breaker import RECOUNT_LEAST
from gpuwarden.policy.model import Budget
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.options import Misfit, bounded

UNCOUNTED = (
    "set breaker.prometheus to the address of the Prometheus that scrapes the nodes, "
    'or breaker.uncounted = "allow" if every node may exclude itself'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerOptions(Budget):
    """Limit on the nodes that are excluded for failures, by `percent`, `count` and, of one NVLink domain, `domain`, and how they are counted ([exclusion.md](../use/exclusion.md#the-count-of-the-breaker))."""

    recount_after: float = bounded(
        2.0, RECOUNT_LEAST, 60.0, "schedulers keep whole seconds, and a later write must have a later time"
    )
    """Time from an exclusion to the second count, after which a node beyond the budget takes its exclusion back."""
    uncounted: Literal["refuse", "allow"] = "refuse"
    """If neither a scheduler nor Prometheus is configured to count: `refuse` is an error of the configuration in mode enforce, `allow` lets every node
    exclude itself.
    """
    prometheus: str = ""
    """The address of the Prometheus that scrapes all nodes. It supplies the count if no scheduler does."""
    prometheus_match: str = ""
    """Label matchers of the nodes that share the budget, such as `cluster="east"`. Empty: all nodes that this Prometheus has."""
    prometheus_token: SecretFile | None = None
    """A bearer token for Prometheus."""
    prometheus_basic: SecretFile | None = None
    """A line `USER:PASSWORD` for Prometheus."""
    prometheus_ca: Path | None = None
    """Certificates (PEM) to trust instead of the system's."""


_MATCHER = r'[a-zA-Z_][a-zA-Z0-9_]*\s*(?:=~|!~|!=|=)\s*"(?:[^"\\\n]|\\.)*"'
_MATCHERS = re.compile(rf"\s*{_MATCHER}(?:\s*,\s*{_MATCHER})*\s*")


def breaker_misfits(breaker: BreakerOptions) -> Iterator[Misfit]:
    """Yield values that have the right type but are invalid, by their keys."""
    if breaker.prometheus and (fault := address_fault(breaker.prometheus)):
        yield ("breaker.prometheus",), fault
    if breaker.prometheus_match and not _MATCHERS.fullmatch(breaker.prometheus_match):
        shown = f"found {breaker.prometheus_match[:60]!r}"
        message = f'expected label matchers such as \'cluster="a", job="gpuwarden"\', {shown}'
        yield ("breaker.prometheus_match",), message
    if breaker.prometheus_token is not None and breaker.prometheus_basic is not None:
        keys = ("breaker.prometheus_token", "breaker.prometheus_basic")
        yield keys, "set either a bearer token or a password, not both"
