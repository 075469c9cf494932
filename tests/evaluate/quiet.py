"""A replay that passes over steps in which nothing can happen: a healthy node has fifteen of them for each one in which it may.

A step is passed over while everything that was seen is the very same as at the last one, nothing else arrived, nothing is on its way to be said (every track is raised), and that step itself said nothing; and for `MOST` seconds at
most, lest what follows from the passing of time alone be missed. The node is then judged less often and never otherwise.
"""

from __future__ import annotations

from typing import Any

from gpuwarden.health.judge import Step
from gpuwarden.health.view import COLLECTORS, Rules
from gpuwarden.replay import Replay
from gpuwarden.trace.records import Passed, Record
from gpuwarden_collectors.facts import Stamp

MOST = 57.0
WAKE = 1200.0
"""Seconds of uptime in which every step is made: the graces after a boot end within them."""


class QuietReplay(Replay):
    """`quiet`: steps are passed over; else it is any replay. `judged`: steps that were made."""

    def __init__(self, rules: Rules | None = None) -> None:
        super().__init__(rules)
        self._calm: tuple[Any, ...] = ()
        self._calm_since = 0.0
        self._last: Step | None = None
        self.quiet = False
        self.judged = 0

    def _arrives(self, record: Record) -> bool:
        if not isinstance(record, Passed):
            self._calm = ()
        return super()._arrives(record)

    def _step(self, at: Stamp) -> Step:
        seen = self._seen() if self.quiet else ()
        if self._last is not None and seen and seen == self._calm and 0 <= at.boottime - self._calm_since <= MOST:
            self._now = max(at, self._now)
            return Step(self.desk.state, (), self._last.verdict)
        self.judged += 1
        self._last = step = super()._step(at)
        still = not step.events and all(track.raised for track in step.state.tracks.values())
        self._calm = seen if still and at.boottime > WAKE else ()
        self._calm_since = at.boottime
        return step

    def _seen(self) -> tuple[Any, ...]:
        view = self.desk.view
        seen: list[Any] = [view.boot_id, *view.troubles.items()]
        for name in COLLECTORS:
            latest = view.seen(name).latest
            if latest is not None:
                seen += (latest.outcome, _Same(latest.facts), latest.worker)
        return tuple(seen)


class _Same:
    """Equal only to itself: comparing all readings of eight GPUs would take as long as judging them."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    __hash__ = object.__hash__
