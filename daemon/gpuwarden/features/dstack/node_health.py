"""The health of this node that dstack gets: none, pass, warning or failure.

Pure. The rules, the first that fits:

    simulated GPUs                                          none
    an operator excluded the node                           failure, in both modes
    mode observe                                            none, whatever the exclusion; but without a verdict, a
                                                            failure reported before stays, since the mode is a guess then
    gpuwarden excludes the node                             failure
    failure reported before, not known to be over           failure
    health unknown                                          warning
    failure without exclusion, warning                      warning
    healthy                                                 pass

A failure is over once a valid verdict has a health other than unknown and no exclusion here, and there is no marker.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from gpuwarden.integrations.published import Published

NAME = "dstack"
"""Name of the actuator, in its marker and in the verdict's `excluded_by`."""


class Level(IntEnum):
    """DCGM's levels of health, which are dstack's: it accepts no other number."""

    PASS = 0
    WARN = 10
    FAIL = 20


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """The node's health in dstack's terms. `message` is the reason, empty for PASS."""

    level: Level
    message: str = ""


PASSING = NodeHealth(Level.PASS)


def node_health(published: Published, *, before: NodeHealth | None, mode: str) -> NodeHealth | None:
    """Return the health to report, or None: the shim's response passes unchanged.

    `before`: the health reported last; `mode`: the configured one, used until a verdict has it.
    """
    verdict, marker = published.verdict, published.marker
    if verdict is not None and verdict.simulated:
        return None
    if marker is not None and marker.cause == "person":
        return NodeHealth(Level.FAIL, marker.reason)
    failed = before is not None and before.level is Level.FAIL
    observes = (mode if verdict is None else verdict.mode) == "observe"
    if observes and not (failed and verdict is None):  # a configuration that cannot be read counts as mode observe
        return None
    if marker is not None:
        return NodeHealth(Level.FAIL, marker.reason)
    if failed and not _is_over(published):
        return before
    return _without_exclusion(published)


def _is_over(published: Published) -> bool:
    verdict = published.verdict
    if published.doubt or verdict is None or verdict.stale or verdict.state == "unknown":
        return False
    return not any(entry.partition(":")[0] == NAME for entry in verdict.excluded_by)


def _without_exclusion(published: Published) -> NodeHealth:
    verdict = published.verdict
    if verdict is None:
        return NodeHealth(Level.WARN, f"unknown: {published.missing}")
    if verdict.stale:
        return NodeHealth(Level.WARN, f"unknown: {verdict.stale}")
    if published.doubt:
        return NodeHealth(Level.WARN, f"unknown: {published.doubt}")
    if verdict.state == "healthy":
        return PASSING
    held = ", not excluded: the exclusion budget is used up" if verdict.breaker and verdict.state == "failure" else ""
    return NodeHealth(Level.WARN, f"gpuwarden: {verdict.state} {verdict.reason}{held}".rstrip())
