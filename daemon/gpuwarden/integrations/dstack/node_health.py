"""What we say of this node to whoever asks dstack's agent: nothing, that it is well, a warning or a failure.

Pure. The rules, the first that fits:

    simulated GPUs                                          nothing
    a person took the node out                              failure, in both modes
    mode observe                                            nothing, whatever stands; but where there is no verdict, a
                                                            failure that we said before, since the mode is a guess then
    our exclusion stands                                    failure
    we said failure, and nobody can tell that it is over    failure
    we cannot tell how the node is                          warning
    failure that was not acted upon, warning                warning
    healthy                                                 well

It is over once a verdict that can be relied on knows how the node is and of no exclusion here, and there is no marker.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from gpuwarden.integrations.published import Published

NAME = "dstack"
"""Of the actuator: its marker, and its part of the verdict's `excluded_by`."""


class Level(IntEnum):
    """DCGM's levels of health, and dstack's: it takes no other number."""

    PASS = 0
    WARN = 10
    FAIL = 20


@dataclass(frozen=True, slots=True)
class Word:
    """`message` says why, and is empty for PASS."""

    level: Level
    message: str = ""


WELL = Word(Level.PASS)


def word(published: Published, *, before: Word | None, mode: str) -> Word | None:
    """None: we say nothing. `before`: what was said last; `mode`: the configured one, for as long as no verdict says it."""
    verdict, marker = published.verdict, published.marker
    if verdict is not None and verdict.simulated:
        return None
    if marker is not None and marker.cause == "person":
        return Word(Level.FAIL, marker.reason)
    failed = before is not None and before.level is Level.FAIL
    observes = (mode if verdict is None else verdict.mode) == "observe"
    if observes and not (failed and verdict is None):  # a configuration that cannot be read counts as mode observe
        return None
    if marker is not None:
        return Word(Level.FAIL, marker.reason)
    if failed and not _is_over(published):
        return before
    return _without_exclusion(published)


def _is_over(published: Published) -> bool:
    verdict = published.verdict
    if published.doubt or verdict is None or verdict.stale or verdict.state == "unknown":
        return False
    return not any(entry.partition(":")[0] == NAME for entry in verdict.excluded_by)


def _without_exclusion(published: Published) -> Word:
    verdict = published.verdict
    if verdict is None:
        return Word(Level.WARN, f"unknown: {published.missing}")
    if verdict.stale:
        return Word(Level.WARN, f"unknown: {verdict.stale}")
    if published.doubt:
        return Word(Level.WARN, f"unknown: {published.doubt}")
    if verdict.state == "healthy":
        return WELL
    held = ", not excluded: the budget of exclusions is spent" if verdict.breaker and verdict.state == "failure" else ""
    return Word(Level.WARN, f"gpuwarden: {verdict.state} {verdict.reason}{held}".rstrip())
