"""Jobs in the status document: those that run, with what touched them, and the last ones that ended with a cause.

It holds no name of a user or a job, only the job's number in its scheduler, or the container's id; a pod's name with `publish_jobs`.
"""

from __future__ import annotations

from typing import Any

from gpuwarden.features.why.model import Cause, End, Epoch, Record
from gpuwarden.features.why.names import public_name
from gpuwarden.features.why.snapshot import of
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden.publish.times import rfc3339

Document = dict[str, Any]
RUNNING_MOST = 16
ENDED_MOST = 8


def document(snapshot: Snapshot) -> Document:
    shown, names = of(snapshot), snapshot.service.publish_jobs
    ended = [record for record in shown.ended if record.answer.cause is not Cause.NONE]
    return {
        "why": {
            "running": [
                _running(epoch, shown.ends.get(epoch.name), public_name(epoch, names=names))
                for epoch in shown.running[-RUNNING_MOST:]
            ],
            "ended": [_ended(record, public_name(record.epoch, names=names)) for record in ended[-ENDED_MOST:]],
        }
    }


def _running(epoch: Epoch, end: End | None, name: str) -> Document:
    last = epoch.touches[-1] if epoch.touches else None
    return {
        "job": name,
        "began": rfc3339(epoch.began.wall),
        "ended": None if end is None else rfc3339(end.at.wall),
        "gpus": list(epoch.slots),
        "touches": len(epoch.touches),
        "last_touch": None
        if last is None
        else {"what": last.what, "detail": last.detail, "at": rfc3339(last.at.wall), "pci_bus_id": last.slot},
    }


def _ended(record: Record, name: str) -> Document:
    answer = record.answer
    return {
        "job": name,
        "ended": rfc3339(record.end.at.wall),
        "cause": answer.cause.value,
        "certainty": answer.certainty.value,
        "code": answer.code,
        "pci_bus_id": answer.slot,
    }
