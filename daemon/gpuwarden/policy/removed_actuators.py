"""Actuators of earlier versions, whose exclusions nobody can lift any more.

What a ledger holds or wants of them is forgotten when it is recalled, after all of its events: what follows from these, such as
the end of an operator's order, stays as it was recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from gpuwarden.policy.state import PolicyState

REMOVED = {"dstack_shim": "dstack's agent may still be stopped for it: systemctl start dstack-shim"}
"""By name, what an operator does about an exclusion that still stands. Until the release in which no ledger has them."""

Item = TypeVar("Item")


def without_removed(state: PolicyState) -> tuple[PolicyState, dict[str, str]]:
    """The state without them, and the reasons of what was held or wanted there, by actuator."""
    begun = {name: intent.reason for name, intent in state.pending.items()}
    begun |= {name: hold.reason for name, hold in state.holds.items()}
    reasons = {name: begun[name] for name in REMOVED if name in begun}
    holds, pending, would = _kept(state.holds), _kept(state.pending), _kept(state.would)
    kept = replace(
        state, holds=holds, pending=pending, would=would, lifted=_kept(state.lifted),
        declined=state.declined - REMOVED.keys(),
        person=state.person if not reasons or holds or pending or would else {},
    )  # fmt: skip
    return kept, reasons


def _kept(items: Mapping[str, Item]) -> dict[str, Item]:
    return {name: item for name, item in items.items() if name not in REMOVED}
