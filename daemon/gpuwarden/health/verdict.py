"""Builds the verdict from state and sight: findings, health of GPUs and node, and what could not be observed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from gpuwarden.health.conditions import condition
from gpuwarden.health.inhibition import root_causes
from gpuwarden.health.inventory import Presence, absent, expected_count, presences
from gpuwarden.health.lemons.detectors import lemon_days
from gpuwarden.health.memory import State, Track
from gpuwarden.health.model import Finding, GpuVerdict, Health, Key, Latch, Pin, Severity, Verdict
from gpuwarden.health.severity import NO_RULE, fall, in_shadow
from gpuwarden.health.view import Sight
from gpuwarden_collectors.dataclass import replace
from gpuwarden_collectors.facts import GpuAnswer, GpuFacts, NvmlProblem


def verdict(state: State, sight: Sight) -> Verdict:
    raised = [track for track in state.tracks.values() if track.raised]
    shadows = frozenset({track.key.code for track in raised if in_shadow(track.key.code, sight.rules)})
    causes = root_causes(raised, shadows) if raised else {}
    rooted = ((track, causes.get(track.key) if causes else None) for track in raised)
    findings = sorted((_finding(track, root, state, sight) for track, root in rooted), key=_worst_first)
    loud = tuple(f for f in findings if not f.silenced_by)
    counted = [f for f in findings if not f.shadow]
    expected, source = expected_count(state, sight)
    gpus = tuple(_gpus(state, sight, counted))
    unknown = tuple(_unknown(state, sight, expected, gpus))
    if unknown:
        gpus = tuple(replace(g, reasons=unknown) if g.health is Health.UNKNOWN and not g.reasons else g for g in gpus)
    return Verdict(
        at=sight.now,
        health=_node_health(counted, unknown),
        reasons=tuple(dict.fromkeys((*_codes(f for f in counted if not f.silenced_by), *unknown))),
        unknown=unknown,
        findings=loud,
        silenced=tuple(f for f in findings if f.silenced_by),
        incidents=state.moments.incidents,
        gpus=gpus,
        expected=expected,
        expected_from=source,
        present=sum([g.present for g in gpus]),
        lemons=lemon_days(state, sight),
    )


def _codes(findings: Iterable[Finding]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(f"{f.key.code}.{f.key.detail}" if f.key.detail else f.key.code for f in findings))


def _worst_first(finding: Finding) -> tuple[bool, float, str, str, str, str, str]:
    key, subject = finding.key, finding.key.subject
    mild = finding.severity is not Severity.FAILURE
    return mild, finding.first_seen.wall, key.code, key.detail, subject.kind, subject.slot, subject.part


def _finding(track: Track, root: Key | None, state: State, sight: Sight) -> Finding:
    key = track.key
    row, rule = condition(key.code), sight.rules.checks.get(key.code, NO_RULE)
    latched = track.latched or (track.latch is not Latch.NONE and track.clean_since is not None)
    follows = state.moments.follows.get(key) if state.moments.follows else None
    return Finding(
        key=key,
        severity=track.severity,
        title=row.title if row else key.code,
        advice=track.advice,
        evidence=track.evidence,
        first_seen=track.first_seen,
        last_seen=track.last_seen,
        count=track.count,
        latch=track.latch,
        latched=latched,
        silenced_by="" if root is None else str(root),
        caused_by=None if follows is None else follows[0],
        shadow=in_shadow(key.code, sight.rules),
        fall=None if row is None else fall(state, row, rule, track),
        confirmed=key not in state.moments.unconfirmed,
    )


def _unknown(state: State, sight: Sight, expected: int | None, gpus: Sequence[GpuVerdict]) -> Iterable[str]:
    """Yield the reasons for which the GPUs cannot be judged now; none if they can, or if no GPU is expected."""
    if expected == 0:
        return
    if expected is None:
        yield "starting" if sight.view.nvml.outcome is None and sight.view.pci.outcome is None else "no_gpu_expected"
    elif sight.nvml is None and not absent(sight):
        yield "starting" if sight.view.nvml.at is None else "nvml_not_answering"
    elif sight.nvml is not None and sight.nvml.problem is not None:
        yield _CODE_OF[sight.nvml.problem]
    elif absent(sight):
        yield "nvml_not_installed"
    elif any(gpu.health is Health.UNKNOWN for gpu in gpus) or _nameless(sight) > len(state.given_up) + _gone(
        sight, gpus
    ):
        yield "gpu_not_answering"


_CODE_OF = {
    NvmlProblem.DRIVER_NOT_LOADED: "driver_not_loaded",
    NvmlProblem.LIBRARY_MISMATCH: "driver_library_mismatch",
    NvmlProblem.NO_PERMISSION: "device_permission",
    NvmlProblem.OTHER: "nvml_unavailable",
}
"""Reason for unknown health: the code of the condition for the same problem."""


def _nameless(sight: Sight) -> int:
    """Return how many GPUs NVML lists without even an address."""
    return 0 if sight.nvml is None else sum(not facts.slot for facts in sight.nvml.gpus)


def _gone(sight: Sight, gpus: Iterable[GpuVerdict]) -> int:
    """Return how many failed GPUs are gone and have no address at NVML: each may be one that it lists without."""
    return sum(gpu.health is Health.FAILURE and not gpu.present and gpu.slot not in sight.gpus for gpu in gpus)


def _gpus(state: State, sight: Sight, findings: Sequence[Finding]) -> Iterable[GpuVerdict]:
    """Yield a verdict for each GPU. `findings`: those that count, with consequences: each GPU keeps its faults."""
    where = presences(state, sight)
    here = {slot for slot, facts in sight.gpus.items() if facts.answer is not GpuAnswer.LOST}
    numbers = _last_numbers(sight)
    by_slot: dict[str, list[Finding]] = {}
    for finding in findings:
        by_slot.setdefault(finding.key.subject.slot, []).append(finding)
    for slot in sorted({*state.pins, *here}):
        presence, _ = where.get(slot, (Presence.PRESENT, ""))
        facts, pin = sight.gpus.get(slot), state.pins.get(slot) or Pin(slot=slot)
        if presence is Presence.FOREIGN:
            continue
        mine = by_slot.get(slot, ())
        loud = [f for f in mine if not f.silenced_by]
        yield _gpu(
            slot=slot,
            health=_gpu_health(mine, facts, presence),
            index=numbers.get(slot) if facts is None else facts.index,
            uuid=(facts and facts.uuid) or pin.uuid,
            name=(facts and facts.name) or pin.name,
            serial=(facts and facts.serial) or pin.serial,
            expected=slot in state.pins,
            present=_present(presence, sight),
            reasons=_codes(loud or mine) if mine else (),
        )


def _last_numbers(sight: Sight) -> Mapping[str, int]:
    """Return NVML's last known index of each GPU by slot, while NVML cannot be read and operators need it most."""
    last = sight.view.nvml.facts if sight.nvml is None else None
    return {} if last is None else {facts.slot: facts.index for facts in last.gpus}


_gpu = lru_cache(maxsize=1024)(GpuVerdict)
"""Cached, so that an unchanged GPU keeps one object."""


def _present(presence: Presence, sight: Sight) -> bool:
    """Return True if the GPU is seen now. While NVML cannot be read, a GPU that answers on the PCI bus is present."""
    return presence is Presence.PRESENT or (presence is Presence.UNSEEN and sight.devices is not None)


def _gpu_health(mine: Sequence[Finding], facts: GpuFacts | None, presence: Presence) -> Health:
    if any(f.severity is Severity.FAILURE for f in mine):
        return Health.FAILURE
    if presence is not Presence.PRESENT or facts is None or facts.answer is not GpuAnswer.OK:
        return Health.UNKNOWN
    return Health.WARNING if mine else Health.HEALTHY


def _node_health(findings: Sequence[Finding], unknown: Sequence[str]) -> Health:
    if any(f.severity is Severity.FAILURE for f in findings):
        return Health.FAILURE
    if unknown:
        return Health.UNKNOWN
    return Health.WARNING if findings else Health.HEALTHY
