"""A replay that passes over what can change nothing: of a healthy node's passes one in ten is judged.

A pass is passed over while it says the very same as the one before it, but for the time at which that was read, and the last step
reported nothing and left nothing that goes on from pass to pass (`_still`); and for `MOST` seconds at most. What was passed over
last of each collector is handed to the engine before anything else is. The node is judged less often and never otherwise: what
follows from the passing of time alone is reported up to `MOST` seconds late, everything else in the same step.
"""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter
from typing import Any

from gpuwarden.features.why import model as why
from gpuwarden.health.conditions import condition
from gpuwarden.health.gpu.settings import FORGOTTEN, SET_BY_JOBS
from gpuwarden.health.gpu.speed_detectors import BRAKED_LOW
from gpuwarden.health.judge import Step
from gpuwarden.health.memory import State, Track
from gpuwarden.health.view import Rules, Seen
from gpuwarden.replay.replay import Replay
from gpuwarden.trace.records import Passed, Record
from gpuwarden_collectors.facts import GpuFacts, NvmlFacts, Stamp
from gpuwarden_collectors.host_facts import PluginFacts, PluginResult

MOST = 117.0
WAKE = 1200.0
"""Seconds of uptime in which every step is made: the graces after a boot end within them."""
LONG_RISE = 3600.0
"""Seconds. What must be seen for so long has no shorter wait beside it, and is of readings alone."""
LONG_FALL = 600.0
"""Seconds without a sighting, or a line, after which a finding may take hours to end, or has a latch."""


class QuietReplay(Replay):
    """`quiet`: passes are passed over; else it is any replay. `judged`: steps that were made."""

    def __init__(self, rules: Rules | None = None) -> None:
        super().__init__(rules)
        self.quiet = False
        self.judged = 0
        self._calm_since: float | None = None
        self._held: dict[str, Passed] = {}

    def passes_over(self, record: Record) -> bool:
        """Return True if the record can change nothing. It is kept, and need not be taken."""
        if not isinstance(record, Passed) or not self._says_the_same(record):
            return False
        self._held[record.observation.collector] = record
        if record.observation.collector == "nvml":
            self._now = max(record.at, self._now)
        return True

    def take(self, record: Record) -> list[Step]:
        if self.passes_over(record):
            return []
        for held in self._held.values():
            self.engine.observed(held.observation)
        self._held.clear()
        return super().take(record)

    def _says_the_same(self, record: Passed) -> bool:
        since, new = self._calm_since, record.observation
        if not self.quiet or since is None or not 0 <= record.at.boottime - since <= MOST:
            return False
        old = self.engine.view.passes.get(new.collector, Seen()).latest
        if old is None or (old.outcome, old.worker) != (new.outcome, new.worker):
            return False
        return old.facts is new.facts or _same_but_times(old.facts, new.facts)

    def _step(self, at: Stamp) -> Step:
        self.judged += 1
        step = super()._step(at)
        still = not step.events and at.boottime > WAKE and _still(step.state, at)
        self._calm_since = at.boottime if still else None
        return step


def _values_but(kind: type, time: str) -> Any:
    return attrgetter(*(field.name for field in fields(kind) if field.name != time))


_of_node, _of_gpu, _of_check = (
    _values_but(NvmlFacts, "gpus"),
    _values_but(GpuFacts, "read_at"),
    _values_but(PluginResult, "at"),
)


def _same_but_times(old: object, new: object) -> bool:
    """Return True if only times differ. Objects are mostly compared by identity: comparing all readings of eight GPUs
    takes as long as judging them.
    """
    if isinstance(old, NvmlFacts) and isinstance(new, NvmlFacts):
        return _of_node(old) == _of_node(new) and list(map(_gpu, old.gpus)) == list(map(_gpu, new.gpus))
    if isinstance(old, PluginFacts) and isinstance(new, PluginFacts):
        return old.names == new.names and list(map(_of_check, old.results)) == list(map(_of_check, new.results))
    return False


def _gpu(facts: GpuFacts) -> object:
    return _of_gpu(facts), facts.read_at.keys()


def _still(state: State, at: Stamp) -> bool:
    """Nothing is on its way to be reported, and nothing is counted in passes instead of seconds.

    What `why` remembers of jobs for their records is neither: it has something for as long as the daemon runs.
    """
    tracks = all(
        _settled(track, state, at) if track.raised else _rises_for_long(track, at) for track in state.tracks.values()
    )
    counted = any(key[1] == BRAKED_LOW or s.grown != s.samples[-1][1] for key, s in state.moments.windows.items())
    counted = counted or any(s.grown != s.samples[-1][1] for s in state.moments.host_windows.values())
    failing = any(vital.failing for vital in state.moments.vital.values())
    learning = state.moments.reading_time.at >= 0 and state.moments.reading_time.usual is None
    confirming = any(since is not None for since in state.moments.unconfirmed.values())
    going_on = any(moment for name, moment in state.moments.features.items() if name != why.NAME)
    return tracks and not (counted or failing or learning or confirming or going_on)


def _settled(track: Track, state: State, at: Stamp) -> bool:
    """Return True if the track is seen, or has no end that comes soon, and no line came lately."""
    record = state.records.get(track.key)
    of_late = record is not None and 0 <= at.boottime - record.last.boottime <= LONG_FALL
    return not of_late and (track.clean_since is None or at.boottime - track.clean_since.boottime > LONG_FALL)


def _rises_for_long(track: Track, at: Stamp) -> bool:
    """Return True if the track was seen at `at` and cannot be raised before the next step."""
    row = condition(track.key.code)
    rise = FORGOTTEN if track.key.detail == SET_BY_JOBS else 0.0 if row is None else row.rise
    left = rise - (at.boottime - track.first_seen.boottime)
    return rise >= LONG_RISE and track.clean_since is None and left > MOST
