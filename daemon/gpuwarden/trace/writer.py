"""Records become lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from io import BufferedIOBase
from typing import Any

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
from gpuwarden_collectors.changes import changed
from gpuwarden_collectors.codec import to_wire
from gpuwarden_collectors.event_facts import HostEvent
from gpuwarden_collectors.facts import GpuFacts, MigInstance, NvmlFacts
from gpuwarden_collectors.gpu_readings import GpuReadings

TELEMETRY_EVERY, JUDGED_EVERY = 60.0, 15.0
"""Seconds between two that are written: of TELEMETRY, and of JUDGED, of which a minute then has four."""
_TELEMETRY_OF = (
    "power_usage",
    "power_instant",
    "energy",
    "clock_graphics",
    "clock_sm_mhz",
    "clock_memory_mhz",
    "clock_video",
    "violation_",
    "utilization_memory",
    "utilization_encoder",
    "utilization_decoder",
    "memory_free",
    "memory_used",
    "bar1_used",
    "bar1_free",
    "pcie_tx",
    "pcie_rx",
    "nvlink_tx",
    "nvlink_rx",
    "nvlink5_tx",
    "nvlink5_rx_bytes",
    "gpm_",
)
TELEMETRY = tuple(name for name in GpuReadings.__dataclass_fields__ if name.startswith(_TELEMETRY_OF))
"""Readings that change with every pass and that no condition depends on for less than minutes: nine tenths of a trace, if it held them
all."""
JUDGED = (
    "power_usage_mw",
    "clock_sm_mhz",
    "memory_used_bytes",
    "nvlink_tx_kib",
    "nvlink5_tx_bytes",
    "gpm_graphics_active",
    "gpm_tensor_active",
    "gpm_dram_active",
    "gpm_pcie_tx_mib",
    "gpm_pcie_rx_mib",
)
"""Readings of TELEMETRY on which conditions about minutes depend (`job_stalled`, `gpu_slow`)."""
_SELDOM = tuple(name for name in TELEMETRY if name not in JUDGED)
_OF_INSTANCES = tuple(name for name in MigInstance.__dataclass_fields__ if name.startswith(_TELEMETRY_OF))


@dataclass(frozen=True, slots=True)
class _Last:
    facts: Any = None
    worker: WorkerReport | None = None
    telemetry: float = float("-inf")
    judged: float = float("-inf")


class TraceWriter:
    """Writes to `file`, which stays its maker's to close. `names` may put other names into a line before it is written.

    `write` takes records in order of time, and raises OSError.
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
            content["passes"] = [self._pass(one) | {"at": round(one.finished.boottime, 6)} for one in record.passes]
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
            due, judged_due = at - last.telemetry >= TELEMETRY_EVERY, at - last.judged >= JUDGED_EVERY
            facts = _with_times_of_counters(observation.facts)
            if not due:
                facts = _with_old_telemetry(last.facts, facts, _SELDOM if judged_due else TELEMETRY)
            if facts != last.facts:
                content["facts"] = changed(FACTS[name], last.facts, facts)
            last = replace(
                last, facts=facts, telemetry=at if due else last.telemetry, judged=at if judged_due else last.judged
            )
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
    """Keep only the read times that the judge asks for: the others change with every pass."""
    if not isinstance(facts, NvmlFacts) or not any(gpu.read_at for gpu in facts.gpus):
        return facts
    times = [{name: gpu.read_at[name] for name in COUNTERS if name in gpu.read_at} for gpu in facts.gpus]
    pairs = zip(facts.gpus, times, strict=True)
    return replace(facts, gpus=tuple(replace(gpu, read_at=of_gpu) for gpu, of_gpu in pairs))


def _with_old_telemetry(old: Any, new: Any, names: Sequence[str]) -> Any:
    if not isinstance(old, NvmlFacts) or not isinstance(new, NvmlFacts) or len(old.gpus) != len(new.gpus):
        return new
    pairs = zip(old.gpus, new.gpus, strict=True)
    return replace(new, gpus=tuple(_with_telemetry_of(before, now, names) for before, now in pairs))


def _with_telemetry_of(old: GpuFacts, new: GpuFacts, names: Sequence[str]) -> GpuFacts:
    if (old.slot, old.answer) != (new.slot, new.answer):
        return new
    readings = replace(new.readings, **{name: getattr(old.readings, name) for name in names})
    return replace(new, readings=readings, mig=_instances_with_telemetry_of(old.mig, new.mig))


def _instances_with_telemetry_of(old: tuple[MigInstance, ...], new: tuple[MigInstance, ...]) -> tuple[MigInstance, ...]:
    if [(one.uuid, one.profile) for one in old] != [(one.uuid, one.profile) for one in new]:
        return new
    return tuple(
        replace(now, **{name: getattr(before, name) for name in _OF_INSTANCES})
        for before, now in zip(old, new, strict=True)
    )


def _event_line(event: Event) -> dict[str, Any]:
    at = [event.at.boottime, event.at.wall]
    key = None if event.key is None else str(event.key)
    return {"kind": event.kind, "at": at, "boot_id": event.boot_id, "key": key, "data": dict(event.data)}
