"""A job as a document: what `gpuwarden why --json` prints, and what its text is made of. Pure.

Names of keys are a contract, as those of the status document. Times are RFC 3339 in UTC; unknown values are null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuwarden.features.why.model import LASTING, Answer, End, Epoch, Record, Touch, Use, user_name
from gpuwarden.health.conditions import condition
from gpuwarden.health.xid.catalogue import xid_row
from gpuwarden.publish.times import rfc3339, when
from gpuwarden_collectors.facts import Stamp

Document = dict[str, Any]
Indices = Mapping[str, int | None]
"""NVML's index of each GPU, by PCI address."""


def of_record(record: Record, indices: Indices, *, node: str = "", older: int = 0) -> Document:
    """Return the document of a job with a record. `older`: how many jobs of the same name ended before."""
    ended = {**_ended(record.epoch, record.end), "answer": _answer(record.answer, indices), "final": True}
    over_boot = record.end.known_from == "boot"
    return {**_epoch(record.epoch, indices, node, over_boot=over_boot), **ended, "older": older}


def of_running(
    epoch: Epoch,
    indices: Indices,
    now: Stamp,
    *,
    end: End | None = None,
    answer: Answer | None = None,
    node: str = "",
    older: int = 0,
) -> Document:
    """Return the document of a job without a record: what touched it so far. `end`: its end, if it has ended and its
    record is not made yet. `answer`: the answer if the record were made now; None if nothing would be its cause.
    """
    lasts = {"running": True, "ended": None, "seconds": max(_seconds(epoch.began, now), 0.0), "end": None}
    so_far = {"answer": None if answer is None else _answer(answer, indices), "final": False}
    return {
        **_epoch(epoch, indices, node),
        **(lasts if end is None else _ended(epoch, end)),
        **so_far,
        "older": older,
    }


def _ended(epoch: Epoch, end: End) -> Document:
    return {
        "running": False,
        "ended": rfc3339(end.at.wall),
        "seconds": max(_seconds(epoch.began, end.at, over_boot=end.known_from == "boot"), 0.0),
        "end": _end(end),
    }


def _seconds(began: Stamp, until: Stamp, *, over_boot: bool = False) -> float:
    """Return the time between them, by boot time; across a boot by wall time."""
    return round(until.wall - began.wall if over_boot else until.boottime - began.boottime, 3)


def _epoch(epoch: Epoch, indices: Indices, node: str, *, over_boot: bool = False) -> Document:
    return {
        "job": epoch.name,
        "kind": epoch.kind,
        "id": epoch.id,
        "node": node,
        "job_name": epoch.job_name,
        "user": epoch.user,
        "uid": epoch.uid,
        "gpus": [{"pci_bus_id": slot, "gpu": indices.get(slot)} for slot in epoch.slots],
        "began": rfc3339(epoch.began.wall),
        "touches": [_touch(touch, epoch, indices, over_boot=over_boot) for touch in epoch.touches],
        "use": _use(epoch.use),
    }


def _end(end: End) -> Document:
    return {
        "known_from": end.known_from,
        "state": end.state,
        "exit_code": end.exit_code,
        "signal": end.signal,
        "by": user_name(end.by),
    }


def _answer(answer: Answer, indices: Indices) -> Document:
    return {
        "cause": answer.cause.value,
        "certainty": answer.certainty.value,
        "sentence": answer.sentence,
        "code": answer.code,
        "pci_bus_id": answer.slot,
        "gpu": indices.get(answer.slot),
        "serial": answer.serial,
    }


def _touch(touch: Touch, epoch: Epoch, indices: Indices, *, over_boot: bool) -> Document:
    is_one = touch.what in LASTING and touch.count == 1  # repetitions do not fill the time between them
    over = touch.until if is_one else None
    others = touch.what == "oom_node" and touch.detail not in (epoch.name, *epoch.also)
    return {
        "what": touch.what,
        "detail": "" if others else touch.detail,  # not shown to this job's owner: whose process it was
        "text": _text(touch),
        "at": rfc3339(touch.at.wall),
        "until": when(touch.until),
        "after_seconds": _seconds(epoch.began, touch.at, over_boot=over_boot),
        "for_seconds": None if over is None else _seconds(touch.at, over, over_boot=over_boot),
        "pci_bus_id": touch.slot,
        "gpu": indices.get(touch.slot),
        "pid": None if others else touch.pid,
        "count": touch.count,
        "follows": touch.follows,
    }


def _text(touch: Touch) -> str:
    """Return the meaning of a touch, for people; empty if its name and detail suffice."""
    match touch.what:
        case "xid" if touch.detail.isascii() and touch.detail.isdigit() and len(touch.detail) < 5:
            return xid_row(int(touch.detail)).meaning
        case "finding" | "standing":
            row = condition(touch.detail.partition("@")[0].partition(".")[0])
            return "" if row is None else row.title
    return ""


def _use(use: Use) -> Document:
    return {
        "energy_joules": use.energy_j,
        "energy_covers": use.energy_covers,
        "busy": use.busy,
        "tensor": use.tensor,
        "memory_peak_bytes": use.memory_peak_bytes,
        "idle_gpu_seconds": use.idle_gpu_seconds,
        "throttled_gpu_seconds": use.throttled_gpu_seconds,
        "observed_gpu_seconds": use.observed_gpu_seconds,
    }
