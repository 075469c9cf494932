"""Writes the records of a trace as lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import BufferedIOBase
from typing import Any, TypeVar

from gpuwarden.health.detectors import COUNTERS
from gpuwarden.health.model import Event
from gpuwarden.trace.records import (
    FACTS,
    FORMAT,
    Accepted,
    Acknowledged,
    ActiveTested,
    Began,
    ErrorsChanged,
    HostEventsSeen,
    Passed,
    Record,
    RulesChanged,
)
from gpuwarden_collectors.base import Observation, PassOutcome, WorkerReport
from gpuwarden_collectors.changes import NOTHING, Without, changed
from gpuwarden_collectors.codec import to_wire
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.event_facts import HostEvent
from gpuwarden_collectors.facts import GpuFacts, MigInstance, NvmlFacts
from gpuwarden_collectors.gpu_readings import GpuReadings

TELEMETRY_EVERY, JUDGED_EVERY = 60.0, 15.0
"""Seconds between two writes of TELEMETRY, and of JUDGED, which is written four times a minute."""
_TELEMETRY_OF = tuple(
    """
    power_usage power_instant energy clock_graphics clock_sm_mhz clock_memory_mhz clock_video violation_
    utilization_memory utilization_encoder utilization_decoder memory_free memory_used bar1_used bar1_free pcie_tx
    pcie_rx nvlink_tx nvlink_rx nvlink5_tx nvlink5_rx_bytes gpm_""".split()
)
TELEMETRY = tuple(name for name in GpuReadings.__dataclass_fields__ if name.startswith(_TELEMETRY_OF))
"""Readings that change with every pass, and that no condition uses at a resolution below minutes. Written with every
pass they would be nine tenths of a trace."""
JUDGED = tuple(
    """
    power_usage_mw clock_sm_mhz memory_used_bytes nvlink_tx_kib nvlink5_tx_bytes gpm_graphics_active
    gpm_tensor_active gpm_dram_active gpm_pcie_tx_mib gpm_pcie_rx_mib""".split()
)
"""Readings of TELEMETRY on which conditions about minutes depend (`job_stalled`, `gpu_slow`)."""
_SELDOM_READ = tuple(name for name in TELEMETRY if name not in JUDGED)
_OF_INSTANCES = tuple(name for name in MigInstance.__dataclass_fields__ if name.startswith(_TELEMETRY_OF))
_SELDOM: Without = {GpuReadings: frozenset(_SELDOM_READ), MigInstance: frozenset(_OF_INSTANCES)}
_MOST: Without = {**_SELDOM, GpuReadings: frozenset(TELEMETRY)}
Reading = TypeVar("Reading", GpuReadings, MigInstance)


@dataclass(frozen=True, slots=True)
class _Last:
    """The state of a collector in the trace."""

    facts: Any = None
    """Facts of its newest pass. The TELEMETRY in the trace is that of `seldom` and `judged`."""
    worker: WorkerReport | None = None
    seldom: Any = None
    """Facts whose TELEMETRY, except JUDGED, is in the trace."""
    seldom_at: float = float("-inf")
    judged: Any = None
    """Facts whose JUDGED readings are in the trace."""
    judged_at: float = float("-inf")


class TraceWriter:
    """Writes a trace to `file`, which the caller closes. `names` may replace names in a line before it is written.

    `write` expects records in order of time, and raises OSError.
    """

    def __init__(self, file: BufferedIOBase, *, version: str, names: Callable[[Any], Any] | None = None) -> None:
        self._file = file
        self._names = names
        self._last: dict[str, _Last] = {}
        self._offset: float | None = None
        self._line({"trace": FORMAT, "gpuwarden": version, "anonymised": names is not None})

    def write(self, record: Record) -> None:
        line = self._content(record) | {"at": round(record.at.boottime, 6)}
        offset = record.at.wall - record.at.boottime
        if isinstance(record, Began) or self._offset is None or abs(offset - self._offset) >= 0.001:
            self._offset = offset
            line["wall"] = round(record.at.wall, 6)
        self._line(line)

    def _line(self, content: Any) -> None:
        named = content if self._names is None else self._names(content)
        self._file.write(json.dumps(named, separators=(",", ":")).encode() + b"\n")

    def _content(self, record: Record) -> dict[str, Any]:
        match record:
            case Began():
                return self._began(record)
            case Passed(observation):
                return self._pass(observation)
            case HostEventsSeen(events=events):
                return {"events": [to_wire(event, HostEvent) for event in events]}
            case ActiveTested(events=taken):
                return {"tested": [_event_line(event) for event in taken]}
        return _single_key(record)

    def _began(self, record: Began) -> dict[str, Any]:
        self._last.clear()
        content: dict[str, Any] = {"began": record.boot_id}
        if record.life:
            content |= {"life": record.life, "part": record.part}
        content["rules"] = to_wire(record.rules)
        if record.memory is not None:
            content["memory"] = [_event_line(event) for event in record.memory]
        if record.passes:
            content["passes"] = [
                self._pass(completed) | {"at": round(completed.finished.boottime, 6)} for completed in record.passes
            ]
        return content

    def _pass(self, observation: Observation[Any]) -> dict[str, Any]:
        name, at = observation.collector, observation.finished.boottime
        last = self._last.get(name, _Last())
        content: dict[str, Any] = {"pass": name, "took": round(at - observation.started.boottime, 6)}
        if observation.outcome is not PassOutcome.OBSERVED:
            content["outcome"] = observation.outcome.value
        if observation.error:
            content["error"] = observation.error
        if observation.worker != last.worker:
            content["worker"] = changed(WorkerReport | None, last.worker, observation.worker)
            last = replace(last, worker=observation.worker)
        if observation.facts is not None:
            facts = _with_times_of_counters(observation.facts)
            seldom = at - last.seldom_at >= TELEMETRY_EVERY or not _alike(last.facts, facts)
            judged = seldom or at - last.judged_at >= JUDGED_EVERY
            before, without = last.facts, _MOST
            if judged:
                before, without = _with(before, last.judged, JUDGED), _SELDOM
                last = replace(last, judged=facts, judged_at=at)
            if seldom:
                before, without = _with(before, last.seldom, _SELDOM_READ, _OF_INSTANCES), NOTHING
                last = replace(last, seldom=facts, seldom_at=at)
            if change := changed(FACTS[name], before, facts, without):
                content["facts"] = change
            last = replace(last, facts=facts)
        self._last[name] = last
        return content


def _single_key(record: ErrorsChanged | RulesChanged | Acknowledged | Accepted) -> dict[str, Any]:
    match record:
        case ErrorsChanged(errors=errors):
            return {"errors": dict(errors)}
        case RulesChanged(rules=rules):
            return {"ruled": to_wire(rules)}
        case Acknowledged(finding=finding, by=by):
            return {"acknowledged": finding, "by": by}
        case Accepted():
            return {"accepted": True}


def _with_times_of_counters(facts: Any) -> Any:
    """Keep only the read times that the judge uses, since the others change with every pass."""
    if not isinstance(facts, NvmlFacts) or not any(gpu.read_at for gpu in facts.gpus):
        return facts
    times = [{name: gpu.read_at[name] for name in COUNTERS if name in gpu.read_at} for gpu in facts.gpus]
    pairs = zip(facts.gpus, times, strict=True)
    return replace(facts, gpus=tuple(replace(gpu, read_at=of_gpu) for gpu, of_gpu in pairs))


def _alike(old: Any, new: Any) -> bool:
    """Return True if both have the same GPUs, instances and answers: only then TELEMETRY may be omitted."""
    return isinstance(old, NvmlFacts) and isinstance(new, NvmlFacts) and _all(old) == _all(new)


def _all(facts: NvmlFacts) -> list[Any]:
    return [(gpu.slot, gpu.answer, *((mig.uuid, mig.profile) for mig in gpu.mig)) for gpu in facts.gpus]


def _with(facts: Any, other: Any, readings: Sequence[str], of_instances: Sequence[str] = ()) -> Any:
    """Return the facts with these readings of `other`, or unchanged if the two are not alike."""
    if not _alike(facts, other):
        return facts
    gpus = zip(facts.gpus, other.gpus, strict=True)
    return replace(facts, gpus=tuple(_gpu_with(gpu, of, readings, of_instances) for gpu, of in gpus))


def _gpu_with(gpu: GpuFacts, of: GpuFacts, readings: Sequence[str], of_instances: Sequence[str]) -> GpuFacts:
    instances = zip(gpu.mig, of.mig, strict=True) if of_instances else ()
    mig = tuple(_taking(instance, other, of_instances) for instance, other in instances)
    return replace(gpu, readings=_taking(gpu.readings, of.readings, readings), mig=mig if of_instances else gpu.mig)


def _taking(reading: Reading, other: Reading, names: Sequence[str]) -> Reading:
    return replace(reading, **{name: getattr(other, name) for name in names})


def _event_line(event: Event) -> dict[str, Any]:
    at = [event.at.boottime, event.at.wall]
    key = None if event.key is None else str(event.key)
    return {"kind": event.kind, "at": at, "boot_id": event.boot_id, "key": key, "data": dict(event.data)}
