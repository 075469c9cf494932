"""Between the GPUs and the judge: of what costs the driver much the reader gives what it read last, as the table of readings says.

Only the counters that are judged, and those of all GPUs in one pass: a quiet node then gives other facts in one pass of eleven.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from gpuwarden.health.detectors import COUNTERS
from gpuwarden_collectors.facts import GpuAnswer, GpuFacts, NvmlFacts
from gpuwarden_collectors.nvml.due import Due, period
from gpuwarden_collectors.nvml.readings import CALLS, FIELDS, MINUTE, SINCE_LOAD, Trigger

TRIGGERS: dict[str, Trigger | None] = {
    name: row.trigger for row in CALLS for name in row.into if name in COUNTERS and row.cadence is MINUTE
} | {row.into: row.trigger for row in FIELDS if row.into in COUNTERS and row.cadence is MINUTE}
"""By counter that is read each minute: what has it read in each pass."""


@dataclass(slots=True)
class _Known:
    """What is known of one GPU. `source`, `given`: what it was at the last pass, and what was reported of it."""

    source: GpuFacts
    given: GpuFacts
    values: dict[str, Any] = field(default_factory=dict)
    read_at: dict[str, float] = field(default_factory=dict)
    triggered: frozenset[str] = frozenset()


class AsRead:
    """`due` is called with the time, and says whether its pass reads the counters of all GPUs."""

    def __init__(self, interval: float) -> None:
        self.due = Due(period(MINUTE, interval), 1.0)
        self._known: dict[str, _Known] = {}
        self._source: NvmlFacts | None = None
        self._last = NvmlFacts()

    def facts(self, facts: NvmlFacts, now: float) -> NvmlFacts:
        """Return the facts as the reader gives them at `now`: the same object as before where nothing changed and nothing was read."""
        if (
            facts is self._source
            and not self.due(now)
            and not any(gpu_record.triggered for gpu_record in self._known.values())
        ):
            return self._last
        here = {gpu.slot for gpu in facts.gpus}
        self._known = {slot: gpu_record for slot, gpu_record in self._known.items() if slot in here}
        current = replace(facts, gpus=tuple([self._gpu(gpu, now, due=self.due(now)) for gpu in facts.gpus]))
        if self.due(now):
            self.due.read(now)
        self._source = facts
        if current != self._last:
            self._last = current
        return self._last

    def _gpu(self, gpu: GpuFacts, now: float, *, due: bool) -> GpuFacts:
        if gpu.answer is not GpuAnswer.OK:
            self._known.pop(gpu.slot, None)
            return gpu
        gpu_record = self._known.get(gpu.slot)
        if gpu_record is None or (gpu_record.source is not gpu and _is_another(gpu_record.source, gpu)):
            gpu_record, due = _Known(gpu, gpu), True
            self._known[gpu.slot] = gpu_record
        reasons = {"clock_event_reasons": gpu.readings.clock_event_reasons}
        triggered = frozenset(
            name for name, trigger in TRIGGERS.items() if trigger is not None and trigger.holds(reasons)
        )
        read = TRIGGERS.keys() if due else triggered | gpu_record.triggered
        gpu_record.triggered = triggered
        if not read and gpu_record.source is gpu:
            return gpu_record.given
        for name in read:
            gpu_record.values[name] = getattr(gpu.readings, name)
            gpu_record.read_at[name] = now
        times = {name: at for name, at in gpu_record.read_at.items() if gpu_record.values[name] is not None}
        if gpu_record.source is not gpu or any(
            getattr(gpu_record.given.readings, name) != gpu_record.values[name] for name in read
        ):
            readings = replace(gpu.readings, **gpu_record.values)
            readings = gpu_record.given.readings if readings == gpu_record.given.readings else readings
        else:
            readings = gpu_record.given.readings
        gpu_record.source, gpu_record.given = gpu, replace(gpu, readings=readings, read_at=times)
        return gpu_record.given


def _is_another(before: GpuFacts, now: GpuFacts) -> bool:
    """Another board, or one that counts again from zero: all of it is read at once."""
    pairs = ((getattr(before.readings, name), getattr(now.readings, name)) for name in SINCE_LOAD)
    counts_again = any(old is not None and new is not None and new < old for old, new in pairs)
    return before.uuid != now.uuid or counts_again
