"""The repair request in messages about exclusions: the advice, and its terms in HyperPod, Azure and NVSentinel. Pure.

gpuwarden orders no repair: a program of the site does, with one of these terms. They are empty if no repair is needed.
docs/use/exclusion.md links the pages that define the terms; of the three systems only NVSentinel publishes its source.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from gpuwarden.health.checkpoint import raised_again
from gpuwarden.health.memory import State, Track
from gpuwarden.health.model import NODE, Advice, Event, EventKind, Json, Key, Severity
from gpuwarden.policy.model import Why
from gpuwarden.publish.times import rfc3339

Document = dict[str, object]
Shadowed = Callable[[Event], bool]


class Terms(NamedTuple):
    """The terms of repair systems for an advice; "" or `NONE` if they have nothing to do."""

    hyperpod: str = ""
    """Reason of Slurm's state FAIL that SageMaker HyperPod acts on."""
    nvsentinel: str = "NONE"
    """RecommendedAction of NVSentinel's HealthEvent."""


TERMS = {
    Advice.RESET_GPU: Terms("Action:Reboot", "COMPONENT_RESET"),
    Advice.RESTART_SERVICE: Terms("", "NONE"),
    Advice.REBOOT: Terms("Action:Reboot", "RESTART_BM"),
    Advice.INSPECT_HARDWARE: Terms("Action:Replace", "CONTACT_SUPPORT"),
    Advice.CONTACT_SUPPORT: Terms("Action:Replace", "CONTACT_SUPPORT"),
}
_NO_TERMS = Terms()
HANDED_OVER = frozenset(terms.hyperpod for terms in TERMS.values() if terms.hyperpod)
"""Reasons of nodes that HyperPod repairs."""

_AZURE = "Resource.Hpc."
AZURE_REBOOT = f"{_AZURE}Reboot"
_REBOOTS = (Advice.RESET_GPU, Advice.REBOOT)
_REPAIRS = (Advice.INSPECT_HARDWARE, Advice.CONTACT_SUPPORT)
AZURE = {
    "xid.79": "XID79FallenOffBus",
    "xid.95": "XID95UncontainedECCError",
    "xid.94": "XID94ContainedECCError",
    "row_remap_failed": "HpcRowRemapFailure",
    "memory_unrepairable": "HpcRowRemapFailure",
    "retired_pages": "ECCPageRetirementTableFull",
    "xid.48": "XID48DoubleBitECC",
    "gpu_missing": "HpcMissingGpu",
    "xid": "GpuXIDError",
    "nvlink_down": "NvLink",
    "nvlink_errors": "NvLink",
    "thermal_limit": "HpcDcgmiThermalReport",
    "infiniband_down": "IBPortDown",
    "gpu_bandwidth_low": "GPUMemoryBWFailure",
    "gpu_unresponsive": "UnhealthyGPUNvidiasmi",
    "driver_unresponsive": "UnhealthyGPUNvidiasmi",
}
"""Azure's categories `Resource.Hpc.Unhealthy.…` by finding code, with or without its detail; the first match counts."""
AZURE_OTHERWISE = "HpcGenericFailure"

CHECK = "GpuwardenExclusion"
"""gpuwarden's only check name in NVSentinel: its healthy event ends the unhealthy one, for all findings."""
_SHOWN = 8  # findings
_TEXT_MOST = 200  # characters of one


def repair(
    event: Event, node: str, state: State, shadowed: Shadowed, overridden: Collection[Key] = frozenset()
) -> Document | None:
    """Return the repair request for this event; None unless it is an exclusion for a failure, or a restoration.

    `overridden`: findings that an operator overrode by restoring the node; they request no repair. Every restoration is
    reported, since an exclusion by an operator or for a termination may have begun as one for a failure.
    """
    if event.kind == EventKind.RESTORED:
        return {"nvsentinel": _health_event(event, node, [], _NO_TERMS.nvsentinel)}
    if event.kind != EventKind.EXCLUDED or event.data.get("why") != Why.FAILURE:
        return None
    failures = list(_failures(state, shadowed, overridden))
    advice = max((track.advice for track in failures), key=list(Advice).index, default=Advice.NONE)
    names = [str(track.key)[:_TEXT_MOST] for track in failures]
    action, board = TERMS.get(advice, _NO_TERMS).nvsentinel, ""
    if advice is Advice.RESET_GPU:
        board = _board_to_reset(failures, state)
        action = action if board else TERMS[Advice.REBOOT].nvsentinel
    return {
        "advice": advice.value,
        "findings": names[:_SHOWN],
        "hyperpod": TERMS.get(advice, _NO_TERMS).hyperpod,
        "azure": _azure(names, advice),
        "nvsentinel": _health_event(event, node, names, action, board),
    }


def _failures(state: State, shadowed: Shadowed, overridden: Collection[Key]) -> Iterable[Track]:
    """Yield each failure that excludes the node. Consequences of others request no repair."""
    for track in state.tracks.values():
        if not track.raised or track.severity is not Severity.FAILURE or track.key in state.moments.follows:
            continue
        if track.key in overridden:
            continue
        if not shadowed(raised_again(track, state.boot_id)):
            yield track


def _board_to_reset(failures: Iterable[Track], state: State) -> str:
    """Return the UUID of the one GPU whose reset is the repair; "" if several GPUs, or the links between them, need one.

    NVSentinel resets one GPU for an event, and neither drains nor repairs a node if an event does not name it.
    """
    subjects = {track.key.subject for track in failures if track.advice is Advice.RESET_GPU}
    subject = next(iter(subjects), NODE)
    pin = state.pins.get(subject.slot)
    return pin.uuid if len(subjects) == 1 and subject.kind == "gpu" and pin is not None else ""


def _azure(names: Iterable[str], advice: Advice) -> str:
    if advice in _REBOOTS:
        return AZURE_REBOOT
    if advice not in _REPAIRS:
        return ""
    codes = {name.partition("@")[0] for name in names}
    codes |= {code.partition(".")[0] for code in codes}
    return f"{_AZURE}Unhealthy.{next((AZURE[code] for code in AZURE if code in codes), AZURE_OTHERWISE)}"


def _health_event(event: Event, node: str, names: list[str], action: str, board: str = "") -> Document:
    """Return NVSentinel's HealthEvent as protobuf JSON. An unhealthy one is fatal unless it recommends NONE.

    `board`: UUID of the GPU that it is about. The healthy one names none, and so ends those of all GPUs.
    """
    bad = event.kind == EventKind.EXCLUDED
    reason: Json = event.data.get("reason", "")
    return {
        "version": 1,
        "agent": "gpuwarden",
        "componentClass": "GPU",
        "checkName": CHECK,
        "isFatal": bad and action != _NO_TERMS.nvsentinel,
        "isHealthy": not bad,
        "message": str(reason)[:_TEXT_MOST],
        "recommendedAction": action,
        "entitiesImpacted": [{"entityType": "GPU_UUID", "entityValue": board}] if board else [],
        "errorCode": [name.partition("@")[0] for name in names[:_SHOWN]],
        "generatedTimestamp": rfc3339(event.at.wall),
        "nodeName": node,
    }
