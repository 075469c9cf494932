"""The documents for tools: heartbeat, status, GPUs, findings, events. Pure functions of a snapshot and `now`.
Keys are a contract: they may be added, but not renamed. Times are RFC 3339 in UTC. Unknown values are null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from gpuwarden.base.durations import format_duration
from gpuwarden.features import parts
from gpuwarden.health.conditions import condition
from gpuwarden.health.model import Event, Finding, GpuVerdict, Health, Latch
from gpuwarden.health.runbooks import UNKNOWN_RUNBOOK, address
from gpuwarden.health.to_do import to_do
from gpuwarden.health.unknown_reasons import UNKNOWN_REASONS
from gpuwarden.health.xid.witnesses import UNKNOWN_SLOT
from gpuwarden.publish import notices
from gpuwarden.publish.metrics import enforcement, pods
from gpuwarden.publish.returning import comes_back_when
from gpuwarden.publish.snapshot import CollectorStatus, Snapshot
from gpuwarden.publish.times import rfc3339, when
from gpuwarden_collectors.base import PassOutcome
from gpuwarden_collectors.facts import GpuFacts, Stamp
from gpuwarden_collectors.kernel_log.belief import FACILITY, PACKET_FILTER

Document = dict[str, Any]
_FEATURES = parts("status")
_NAMELESS: Mapping[str, Callable[[Event], Event]] = {
    kind: function for feature in parts("events").values() for kind, function in feature.NAMELESS.items()
}

MAIN_READINGS = tuple(
    """
    temperature temperature_memory power_usage_mw power_limit_mw power_enforced_limit_mw clock_sm_mhz
    clock_sm_application_mhz clock_memory_application_mhz performance_state utilization_gpu utilization_memory
    memory_total_bytes memory_used_bytes ecc_mode ecc_corrected_volatile ecc_uncorrected_volatile
    remapped_rows_pending remapped_rows_failure pcie_generation pcie_width mig_mode compute_mode persistence_mode
    gsp_mode recovery_action""".split()
)
"""Readings of `GpuReadings` that are shown with the health of a GPU."""

ENDS_WHEN = {
    Latch.NONE: "it is no longer seen",
    Latch.RESET: "the GPU was reset, the node rebooted or an operator acknowledged it (gpuwarden ack), and it is no longer seen",
    Latch.REBOOT: "the node was rebooted or an operator acknowledged it (gpuwarden ack), and it is no longer seen",
    Latch.ACKNOWLEDGE: "an operator acknowledged it (gpuwarden ack), and it is no longer seen",
}


def to_json(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def _plain(values: Mapping[str, Any]) -> Document:
    """Replace NaN and infinity, which JSON does not have, by null."""
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in values.items()}


def _age(since: Stamp | None, now: Stamp) -> float | None:
    return None if since is None else round(max(0.0, now.boottime - since.boottime), 3)


def _reasons(snapshot: Snapshot, now: Stamp) -> list[str]:
    """Return the verdict's reasons. An outdated verdict is an additional reason."""
    grew_old = snapshot.observed is not None and not snapshot.fresh(now)
    return [*snapshot.verdict.reasons, *(["observation_too_old"] if grew_old else [])]


def heartbeat(snapshot: Snapshot, now: Stamp) -> tuple[int, Document]:
    """Return the HTTP status (200 while the node may take work, else 503) and the document."""
    service, imminent = snapshot.service, snapshot.enforced.notice
    schedulable = snapshot.schedulable(now)
    document = {
        "node": service.node,
        "status": snapshot.health(now).value,
        "schedulable": schedulable,
        "reasons": _reasons(snapshot, now),
        "sequence": snapshot.sequence,
        "observed_at": when(snapshot.observed),
        "age_seconds": _age(snapshot.observed, now),
        "boot_id": service.boot_id,
        "started_at": when(service.started),
        "version": service.version,
        "mode": service.mode,
        "simulated": service.simulated,
        "gpus": {"expected": snapshot.verdict.expected, "present": snapshot.verdict.present},
        "notice": None if imminent is None else notices.notice_document(imminent),
        "excluded_by": list(snapshot.excluded_by),
    }
    return (200 if schedulable else 503), document


def status(snapshot: Snapshot, now: Stamp) -> Document:
    _, document = heartbeat(snapshot, now)
    del document["gpus"]
    keys, failed = _of_features(snapshot)
    verdict = snapshot.verdict
    return document | {
        "ready": snapshot.ready,
        "unknown": list(verdict.unknown),
        "unknown_because": list(_unknown_because(snapshot, now)),
        "expected": {"count": verdict.expected, "from": verdict.expected_from},
        "present": verdict.present,
        "gpus": gpus(snapshot, now)["gpus"],
        "findings": [_finding(snapshot, finding) for finding in verdict.findings],
        "incidents": incidents(snapshot),
        "lemons": lemons(snapshot),
        "silenced": [_finding(snapshot, f) | {"silenced_by": f.silenced_by} for f in verdict.silenced],
        "collectors": [_collector(collector, now) for collector in snapshot.collectors],
        "actions": enforcement.document(snapshot),
        "pods": pods.document(snapshot),
        "notices": [notices.notice_document(notice) for notice in snapshot.enforced.notices],
        "notice_sources": [notices.source_document(source) for source in snapshot.notice_sources],
        "errors": [*_errors(snapshot), *failed],
        **keys,
    }


def _of_features(snapshot: Snapshot) -> tuple[Document, list[str]]:
    """Return the keys of features, and the errors of failed features, whose keys are missing from the document."""
    keys: Document = {}
    failed = []
    for name, feature in _FEATURES.items():
        try:
            keys |= feature.document(snapshot)
        except Exception as error:  # noqa: BLE001 - any exception of a feature
            failed.append(f"feature: {name}: its part of the status failed: {type(error).__name__}: {error}"[:300])
    return keys, failed


def _unknown_because(snapshot: Snapshot, now: Stamp) -> Iterable[Document]:
    """Yield the reasons for unknown health, with remedies, except those that a finding states already."""
    codes = {finding.key.code for finding in snapshot.verdict.findings}
    for code in dict.fromkeys((*snapshot.verdict.unknown, *_reasons(snapshot, now))):
        if code in UNKNOWN_REASONS and code not in codes:
            reason, runbook = UNKNOWN_REASONS[code], f"{snapshot.service.runbooks}/{UNKNOWN_RUNBOOK}"
            yield {"reason": code, "meaning": reason.meaning, "to_do": reason.to_do, "runbook": runbook}


def scraped(last: tuple[Stamp, str] | None, now: Stamp) -> Document | None:
    """Return the last request for the metrics. The client's name is not verified."""
    if last is None:
        return None
    at, by = last
    return {"age_seconds": _age(at, now), "by": "".join(filter(str.isprintable, by))[:80]}


def gpus(snapshot: Snapshot, now: Stamp) -> Document:
    facts = {} if snapshot.nvml is None else {gpu.slot: gpu for gpu in snapshot.nvml.gpus}
    fresh = snapshot.fresh(now)
    rows = [_gpu(gpu, facts.get(gpu.slot) if fresh else None, fresh=fresh) for gpu in snapshot.verdict.gpus]
    return {"simulated": snapshot.service.simulated, "gpus": rows}


def findings(snapshot: Snapshot) -> Document:
    rows = [_finding(snapshot, finding) for finding in snapshot.verdict.findings]
    return {"simulated": snapshot.service.simulated, "findings": rows, "incidents": incidents(snapshot)}


def incidents(snapshot: Snapshot) -> list[Document]:
    """List each fault as its first finding and the ids of its consequences: findings, silenced ones, recorded lines."""
    return [
        {"cause": str(incident.cause), "consequences": [str(key) for key in incident.consequences]}
        for incident in snapshot.verdict.incidents
    ]


def events(snapshot: Snapshot, recorded: Iterable[Event]) -> Document:
    return {"simulated": snapshot.service.simulated, "events": [event(entry) for entry in recorded]}


def public_events(snapshot: Snapshot, recorded: Iterable[Event]) -> Document:
    """Return events for any client, with names of users and jobs only if they may be published."""
    return events(snapshot, recorded if snapshot.service.publish_jobs else map(_nameless, recorded))


def _nameless(entry: Event) -> Event:
    without_names = _NAMELESS.get(entry.kind)
    return entry if without_names is None else without_names(entry)


def event(entry: Event) -> Document:
    return {
        "at": rfc3339(entry.at.wall),
        "kind": str(entry.kind),
        "id": None if entry.key is None else str(entry.key),
        "check": None if entry.key is None else entry.key.code,
        "pci_bus_id": None if entry.key is None else entry.key.subject.slot or None,
        "boot_id": entry.boot_id,
        "data": _plain(entry.data),
    }


def _gpu(gpu: GpuVerdict, facts: GpuFacts | None, *, fresh: bool) -> Document:
    """Return the status of one GPU. If the observation is outdated, a health other than a failure becomes unknown."""
    readings = {} if facts is None else {name: getattr(facts.readings, name) for name in MAIN_READINGS}
    health = gpu.health if fresh or gpu.health is Health.FAILURE else Health.UNKNOWN
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "pci_bus_id": gpu.slot,
        "name": gpu.name,
        "serial": gpu.serial,
        "health": health.value,
        "expected": gpu.expected,
        "present": gpu.present,
        "reasons": list(gpu.reasons),
        "readings": _plain({name: value for name, value in readings.items() if value is not None}),
    }


def lemons(snapshot: Snapshot) -> list[Document]:
    """Return the number of the last 28 days with each kind of event; `pci_bus_id` is null for the node as a whole."""
    rows = snapshot.verdict.lemons
    return [{"pci_bus_id": row.slot or None, "what": row.what, "days": row.days} for row in rows]


def _finding(snapshot: Snapshot, finding: Finding) -> Document:
    subject = finding.key.subject
    gpu = next((gpu for gpu in snapshot.verdict.gpus if gpu.slot == subject.slot), None)
    return {
        "id": str(finding.key),
        "check": finding.key.code,
        "severity": finding.severity.value,
        "title": finding.title,
        "gpu": None if gpu is None else gpu.index,
        "uuid": None if gpu is None else gpu.uuid,
        "pci_bus_id": subject.slot or None,
        "detail": detail(finding),
        "advice": finding.advice.value,
        "to_do": to_do(finding.key, finding.advice, finding.evidence),
        "runbook": address(finding.key.code, snapshot.service.runbooks),
        "evidence": _plain(finding.evidence),
        "first_seen": when(finding.first_seen),
        "last_seen": when(finding.last_seen),
        "count": finding.count,
        "latched": finding.latched,
        "confirmed": finding.confirmed,
        "shadow": finding.shadow,
        "ends_when": _ends_when(finding),
        "comes_back_when": comes_back_when(finding.severity, finding.advice, shadow=finding.shadow),
        "caused_by": None if finding.caused_by is None else str(finding.caused_by),
    }


def detail(finding: Finding) -> str:
    """Return what distinguishes findings of one check on one GPU or node: the Xid, the link, the mount."""
    subject = finding.key.subject
    return finding.key.detail or (f"{subject.kind} {subject.part}" if subject.part else "")


def _ends_when(finding: Finding) -> str:
    row = condition(finding.key.code)
    if row is not None and row.ends:
        return row.ends
    fall = finding.fall if finding.fall is not None or row is None else row.fall
    if finding.latch is Latch.NONE and fall:
        return f"it has not been seen for {format_duration(fall)}"
    return ENDS_WHEN[finding.latch]


def _collector(collector: CollectorStatus, now: Stamp) -> Document:
    """Return the status of one collector. `age_seconds`: time since the last pass that observed."""
    worker = None
    if collector.worker is not None:
        worker = asdict(collector.worker) | {"silent_since": when(collector.worker.silent_since)}
    return {
        "name": collector.name,
        "outcome": None if collector.outcome is None else collector.outcome.value,
        "age_seconds": _age(collector.last_success, now),
        "duration_seconds": collector.duration,
        "error": collector.error,
        "worker": worker,
    }


DISBELIEVED = {
    FACILITY: "written by a process (dmesg -x shows the facility)",
    PACKET_FILTER: "from the log rule of a packet filter",
    UNKNOWN_SLOT: "about a slot that holds no GPU and no switch",
}
"""Reasons for which a kernel log line is ignored, for people."""
_SAYS_SO = ("gpu_missing", "gpu_unresponsive", "gpu_reset_required")
"""Conditions of a GPU that imply that calls on it fail."""
_SHOWN = 3  # failed calls of one GPU


def _errors(snapshot: Snapshot) -> Iterable[str]:
    """Yield errors of the daemon, as text for people."""
    named = set()
    for collector in snapshot.collectors:
        if collector.outcome in (PassOutcome.FAILED, PassOutcome.TIMED_OUT):
            named.add(collector.name)
            yield f"{collector.name}: {collector.outcome.value.replace('_', ' ')}: {collector.error or 'no details given'}"
        if collector.worker is not None and (collector.worker.abandoned or collector.worker.parked):
            yield f"{collector.name}: a reader process could not be ended and was left behind: the host may need a reboot"
    yield from _failing_gpus(snapshot)
    for component, text in snapshot.errors.items():
        if component not in named:  # the kernel log is a collector too
            yield f"{component.replace('_', ' ')}: {text}"
    for destination, count in snapshot.dropped.items():
        if count:
            yield f"{destination}: {count} writes dropped, because they were not taken in time"
    if snapshot.log_gaps:
        yield f"kernel log: {snapshot.log_lost} records lost in {snapshot.log_gaps} gaps"
    yield from _disbelieved(snapshot)
    yield from _unmatched(snapshot)


def _failing_gpus(snapshot: Snapshot) -> Iterable[str]:
    said = {f.key.subject.slot for f in snapshot.verdict.findings if f.key.code in _SAYS_SO}
    for gpu in () if snapshot.nvml is None else snapshot.nvml.gpus:
        if gpu.slot not in said:
            yield from _failed_calls(gpu)


def _unmatched(snapshot: Snapshot) -> Iterable[str]:
    if snapshot.pods is not None and snapshot.pods.unmatched:
        ids = ", ".join(snapshot.pods.unmatched[: pods.EXAMPLES])
        yield f"pods: {len(snapshot.pods.unmatched)} ids that kubelet gave to pods fit no GPU here: {ids}"


def _disbelieved(snapshot: Snapshot) -> Iterable[str]:
    if any(snapshot.disbelieved.values()):
        counts = ", ".join(f"{n} {DISBELIEVED.get(why, why)}" for why, n in snapshot.disbelieved.items() if n)
        yield f"kernel log: lines that look like faults were ignored: {counts}; see SECURITY.md"


def _failed_calls(gpu: GpuFacts) -> Iterable[str]:
    failed = [f"{error.call}: {error.text or error.code}" for error in gpu.errors]
    if failed:
        more = f", and {len(failed) - _SHOWN} more" if len(failed) > _SHOWN else ""
        yield f"GPU {gpu.index} ({gpu.slot or 'address unknown'}): failed calls: {', '.join(failed[:_SHOWN])}{more}"
