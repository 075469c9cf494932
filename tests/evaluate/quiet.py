"""A replay that passes over what can change nothing: of a healthy node's passes one in five is judged.

A pass is passed over while it says the very same as the one before it, the last step reported nothing, and nothing is on its
way to be reported (every track is raised); and for `MOST` seconds at most, lest what follows from the passing of time alone be
missed. What was passed over last of each collector is handed to the engine before anything else is. The node is judged less
often and never otherwise.
"""

from __future__ import annotations

from gpuwarden.health.judge import Step
from gpuwarden.health.view import Rules, Seen
from gpuwarden.replay.replay import Replay
from gpuwarden.trace.records import Passed, Record
from gpuwarden_collectors.facts import Stamp

MOST = 117.0
WAKE = 1200.0
"""Seconds of uptime in which every step is made: the graces after a boot end within them."""


class QuietReplay(Replay):
    """`quiet`: passes are passed over; else it is any replay. `judged`: steps that were made."""

    def __init__(self, rules: Rules | None = None) -> None:
        super().__init__(rules)
        self.quiet = False
        self.judged = 0
        self._calm_since: float | None = None
        self._held: dict[str, Passed] = {}

    def take(self, record: Record) -> list[Step]:
        if isinstance(record, Passed) and self._says_the_same(record):
            self._held[record.observation.collector] = record
            if record.observation.collector == "nvml":
                self._now = max(record.at, self._now)
            return []
        for held in self._held.values():
            self.engine.observed(held.observation)
        self._held.clear()
        return super().take(record)

    def _says_the_same(self, record: Passed) -> bool:
        """By identity: to compare all readings of eight GPUs would take as long as to judge them."""
        since, new = self._calm_since, record.observation
        if not self.quiet or since is None or not 0 <= record.at.boottime - since <= MOST:
            return False
        old = self.engine.view.passes.get(new.collector, Seen()).latest
        return old is not None and old.facts is new.facts and (old.outcome, old.worker) == (new.outcome, new.worker)

    def _step(self, at: Stamp) -> Step:
        self.judged += 1
        step = super()._step(at)
        still = not step.events and all(track.raised for track in step.state.tracks.values())
        self._calm_since = at.boottime if still and at.boottime > WAKE else None
        return step
