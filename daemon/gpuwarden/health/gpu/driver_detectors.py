"""Detectors for the driver, missing or silent GPUs, and the daemon itself."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gpuwarden.health.components import errors_of
from gpuwarden.health.dcgm import detectors as dcgm_detectors
from gpuwarden.health.detection import NOTHING, Detection, Detector, gpu_detection, in_two_passes, node_detection
from gpuwarden.health.inventory import (
    Presence,
    absent,
    all_unknown,
    answers_nvml,
    countable,
    driver_silent,
    expected_count,
    known_count,
    presences,
)
from gpuwarden.health.model import NODE, Advice, Evidence, Key, Severity, Sighting, Subject, gpu
from gpuwarden.health.state import State, counts
from gpuwarden.health.view import Sight
from gpuwarden.health.xid.witnesses import contradicted, is_fallen
from gpuwarden_collectors.base import PassOutcome
from gpuwarden_collectors.dcgm.facts import DcgmFacts
from gpuwarden_collectors.facts import CallError, GpuAnswer, GpuFacts, NvmlFacts, NvmlProblem
from gpuwarden_collectors.slurm.jobs_facts import JobsFacts

NODE_PROBLEMS = {
    NvmlProblem.LIBRARY_MISMATCH: "driver_library_mismatch",
    NvmlProblem.NO_PERMISSION: "device_permission",
    NvmlProblem.OTHER: "nvml_unavailable",
}


def problem(code: str) -> NvmlProblem | None:
    return next((p for p, c in NODE_PROBLEMS.items() if c == code), None)


CONTRADICTED = 10.0
"""Seconds for which only the bus may report a GPU as gone while NVML still has its answer: two passes, the second of
which confirms a lost GPU."""


def gpu_missing(state: State, sight: Sight) -> Detection:
    """Detect pinned GPUs that are gone, or unlisted for longer than a driver reload, a reset or a MIG change takes."""
    where = presences(state, sight)
    fell_off = _fallen_off(state)
    failing = sight.nvml is not None and (sight.nvml.problem is not None or all_unknown(state, sight))
    all_unlisted = driver_silent(state, sight) or failing
    sightings: list[Sighting] = []
    examined: set[Subject] = set()
    for slot, (presence, why) in where.items():
        if presence is Presence.UNSEEN or (presence is Presence.UNLISTED and all_unlisted):
            continue
        examined.add(gpu(slot))
        if presence is Presence.GONE:
            sightings.append(_missing(state, slot, why, CONTRADICTED if answers_nvml(slot, sight) else 0.0))
        elif presence is Presence.UNLISTED:
            twice = _in_two_passes(Key("gpu_missing", gpu(slot)), state, sight)
            grace = sight.rules.missing_grace if twice else math.inf
            sightings.append(_missing(state, slot, why, 0.0 if slot in fell_off else grace))
    if countable(sight):
        examined.add(NODE)
        sightings += _fewer_than_configured(state, sight)
    return Detection(tuple(sightings), frozenset(examined))


def _in_two_passes(key: Key, state: State, sight: Sight) -> bool:
    return in_two_passes(state.tracks.get(key), sight.view.nvml.started, sight.now)


def _fallen_off(state: State) -> set[str]:
    """Return the slots with an Xid 79 since the last boot and reset, unless PCI bus and NVML contradict it."""
    return {
        r.key.subject.slot
        for r in state.records.values()
        if is_fallen(r.key) and counts(state, r) and not contradicted(state, r.key)
    }


def _missing(state: State, slot: str, why: str, rise: float) -> Sighting:
    pin = state.pins[slot]
    evidence: Evidence = {"why": why, "uuid": pin.uuid, "serial": pin.serial, **_init_failed(state, slot)}
    return Sighting(Key("gpu_missing", gpu(slot)), evidence, rise=rise)


def _init_failed(state: State, slot: str = "") -> Evidence:
    """Return the driver's kernel log line that it could not initialise this GPU, or any GPU."""
    for record in state.records.values():
        if record.key.code == "gpu_init_failed" and slot in ("", record.key.subject.slot) and counts(state, record):
            return {"kernel_line": record.text}
    return {}


def _fewer_than_configured(state: State, sight: Sight) -> Iterator[Sighting]:
    """Yield a sighting if fewer GPUs were ever seen than configured. No slot is known, so the node is the subject."""
    expected = sight.rules.expected_gpus
    if expected is not None and (seen_count := known_count(state, sight)) < expected:
        why = "fewer GPUs than configured were ever seen here"
        evidence: Evidence = {"expected": expected, "known": seen_count, "why": why}
        yield Sighting(Key("gpu_missing", NODE), evidence, rise=sight.rules.missing_grace)


def driver_not_loaded(state: State, sight: Sight) -> Detection:
    """Detect that NVML has no GPU while the bus has some. The grace covers a slow boot or a driver reload."""
    if sight.view.nvml.outcome is None or (sight.nvml is None and not absent(sight)):
        return NOTHING
    problem = sight.nvml.problem if sight.nvml is not None else None
    if problem in NODE_PROBLEMS:
        return node_detection(())
    expected, _ = expected_count(state, sight)
    wanted = bool(expected) or bool(state.pins)
    if not wanted or not (driver_silent(state, sight) or (problem is not None and not state.pins)):
        return node_detection(())
    why = "the NVML library is not installed" if sight.nvml is None else sight.nvml.problem_text or "NVML lists no GPU"
    in_grace = sight.now.boottime < sight.rules.boot_grace
    rise = math.inf if in_grace else sight.rules.driver_grace
    evidence: Evidence = {"why": why, **_init_failed(state)}
    return node_detection((Sighting(Key("driver_not_loaded", NODE), evidence, rise=rise),))


LASTING = 600.0
"""Seconds after which a driver upgrade is no explanation: packages and driver are replaced within minutes. On a node
that keeps the old driver for its jobs, new ones fail (mozilla/translations#1167: about 50 tasks on one such node)."""
UNKNOWN_ERROR = 999
"""NVML_ERROR_UNKNOWN. Other initialisation errors name a cause, such as lack of memory, and do not fail the node."""


def nvml_problem(code: str) -> Detector:
    """Return a detector for one kind of problem of NVML as a whole."""

    def detect(state: State, sight: Sight) -> Detection:
        nvml = sight.nvml
        if nvml is None:
            return _worker_error(sight) if code == "nvml_unavailable" else NOTHING
        if code == "nvml_unavailable" and all_unknown(state, sight):
            why, fails = f"every GPU ends in an unknown error: {_calls(nvml.gpus[0].errors)}", True
        elif nvml.problem is problem(code):
            why = nvml.problem_text
            fails = code == "driver_library_mismatch" or nvml.problem_code == UNKNOWN_ERROR
        else:
            return node_detection(())
        evidence: Evidence = {"why": why, "driver": nvml.driver_version}
        return node_detection((_refusal(code, evidence, state, sight, fails=fails),))

    return detect


def _refusal(code: str, evidence: Evidence, state: State, sight: Sight, *, fails: bool) -> Sighting:
    """Return a failure if the problem lasts on a host and programs with GPUs fail too (`fails`); else a warning."""
    key = Key(code, NODE)
    if not fails or sight.rules.contained or _seen_for(key, state, sight) < LASTING:
        return Sighting(key, evidence, Severity.WARNING)
    return Sighting(key, evidence, Severity.FAILURE, Advice.REBOOT)


def _seen_for(key: Key, state: State, sight: Sight) -> float:
    """Return the seconds since the condition was first seen, or since the boot if it was seen before that."""
    track, now = state.tracks.get(key), sight.now.boottime
    if track is None:
        return 0.0
    return now - track.first_seen.boottime if track.first_seen.boottime <= now else now


def _worker_error(sight: Sight) -> Detection:
    """Detect that the NVML worker fails or dies (a hang is `driver_unresponsive`, no library `driver_not_loaded`)."""
    latest = sight.view.nvml.latest
    if latest is None or latest.outcome is not PassOutcome.FAILED:
        return NOTHING
    return node_detection((Sighting(Key("nvml_unavailable", NODE), {"why": latest.error}, Severity.WARNING),))


GSP_XIDS = ("119", "120", "175")
"""The GPU's system processor stopped, or waits for memory that does not answer (NVIDIA open kernel modules 595.45.04, kernel_gsp.c)."""


def driver_unresponsive(state: State, sight: Sight) -> Detection:
    """Detect a silent NVML: two missed deadlines and 20 s (the defaults), or one with an Xid of the GSP or a stuck worker."""
    latest = sight.view.nvml.latest
    if latest is None or latest.worker is None:
        return NOTHING
    worker = latest.worker
    if latest.outcome in (PassOutcome.OBSERVED, PassOutcome.ABSENT):
        return node_detection(())
    if worker.silent_since is None or worker.missed == 0:
        return NOTHING
    silence = sight.now.boottime - worker.silent_since.boottime
    waited = worker.missed >= sight.rules.unresponsive_misses and silence >= sight.rules.unresponsive_after
    certain = worker.stuck or worker.abandoned or _gsp_error(state, worker.silent_since.boottime)
    if not (waited or certain):
        return NOTHING
    evidence: Evidence = {
        **({"why": worker.silence} if worker.silence else {}),
        "silent_seconds": round(silence),
        "missed_deadlines": worker.missed,
        "worker_in_d_state": worker.stuck,
        "worker_left_behind": worker.abandoned or worker.parked,
    }
    return node_detection((Sighting(Key("driver_unresponsive", NODE), evidence),))


def _gsp_error(state: State, silent_since: float) -> bool:
    """Return True if an Xid of the GSP of this boot came at most a minute before the silence, or later."""
    return any(
        r.key.code == "xid" and r.key.detail in GSP_XIDS and counts(state, r) and r.last.boottime > silent_since - 60.0
        for r in state.records.values()
    )


def gpu_unresponsive(state: State, sight: Sight) -> Detection:
    """Detect listed GPUs that answer every call with a timeout or an unknown error, or at which the driver hangs.

    If all GPUs answer with an unknown error, NVML is at fault: see `nvml_unavailable`. A hang counts after the time
    allowed for a silent driver, regardless of shorter deadlines, or at once if the worker cannot be killed.
    """
    if all_unknown(state, sight):
        return NOTHING
    bad = (GpuAnswer.TIMEOUT, GpuAnswer.UNKNOWN, GpuAnswer.HUNG)
    sightings = [_no_answer(f, state, sight) for f in sight.gpus.values() if f.answer in bad]
    return gpu_detection(sightings, [f for f in sight.gpus.values() if f.answer is not GpuAnswer.LOST])


def _no_answer(facts: GpuFacts, state: State, sight: Sight) -> Sighting:
    key, hung = Key("gpu_unresponsive", gpu(facts.slot)), facts.answer is GpuAnswer.HUNG
    if not hung or not facts.errors:
        rise = None if _in_two_passes(key, state, sight) else math.inf
        return Sighting(key, {"answer": facts.answer.value, "calls": _calls(facts.errors)}, rise=rise)
    error = facts.errors[0]
    why = f"no answer from {facts.slot}" + (f" in {error.call}" if error.call else "")
    return Sighting(
        key,
        {"why": why, "silence": error.text},
        rise=0.0 if _long_silent(facts, sight) else sight.rules.unresponsive_after,
    )


def _long_silent(facts: GpuFacts, sight: Sight) -> bool:
    """Return True if a hung GPU has been silent for the time allowed for the driver, or its worker cannot be killed."""
    latest, started = sight.view.nvml.latest, sight.view.nvml.started
    worker = None if latest is None else latest.worker
    if worker is not None and (worker.stuck or worker.abandoned):
        return True
    silence = facts.silent + (0.0 if started is None else sight.now.boottime - started.boottime)
    return silence >= sight.rules.unresponsive_after


def gpu_reset_required(state: State, sight: Sight) -> Detection:
    """Detect GPUs that report that they need a reset. Only an answer clears it: a silent GPU has not been reset."""
    sightings = [
        Sighting(key, {"calls": _calls(f.errors)}, rise=None if _in_two_passes(key, state, sight) else math.inf)
        for slot, f in sight.gpus.items()
        if f.answer is GpuAnswer.RESET_REQUIRED and (key := Key("gpu_reset_required", gpu(slot)))
    ]
    return gpu_detection(sightings, sight.answering)


def _calls(errors: tuple[CallError, ...]) -> str:
    return ", ".join(f"{e.call}: {e.text or e.code}" for e in errors[:3])


def component_failed(code: str) -> Detector:
    """Return a detector for failures of the daemon's own components."""

    def detect(_: State, sight: Sight) -> Detection:
        return node_detection(_component_failures(code, sight))

    return detect


def _component_failures(code: str, sight: Sight) -> Iterator[Sighting]:
    for detail, text in errors_of(code, sight.view.errors):
        yield Sighting(Key(code, NODE, detail), {"why": text})


_UNREAD = (PassOutcome.FAILED, PassOutcome.TIMED_OUT)
_ELSEWHERE = {facts.collector for facts in (NvmlFacts, DcgmFacts, JobsFacts)}
"""Collectors whose failures have other conditions, or none."""


def collector_failed(_: State, sight: Sight) -> Detection:
    """Detect sources that exist on this host and cannot be read. NVML and DCGM have conditions for hangs."""
    return node_detection(_failures(sight))


def _failures(sight: Sight) -> Iterator[Sighting]:
    for name, seen in sight.view.passes.items():
        latest = seen.latest
        if name not in _ELSEWHERE and latest is not None and latest.outcome in _UNREAD:
            yield Sighting(Key("collector_failed", NODE, name), {"why": latest.error})
    yield from _component_failures("collector_failed", sight)
    yield from dcgm_detectors.unusable(sight)
