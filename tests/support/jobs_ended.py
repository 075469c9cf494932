"""Jobs that have ended, as the ledger of a node holds them."""

from __future__ import annotations

from gpuwarden.features.why.memory import ended
from gpuwarden.features.why.model import Answer, Cause, Certainty, End, Epoch, Record, Touch, Use
from gpuwarden.health.model import Event
from gpuwarden_collectors.base import host_clock
from gpuwarden_collectors.facts import Stamp


def ago(seconds: float) -> Stamp:
    now = host_clock()
    return Stamp(now.boottime - seconds, now.wall - seconds)


def job_ended(
    name: str = "slurm/4711",
    cause: Cause = Cause.HARDWARE,
    *,
    certainty: Certainty = Certainty.LIKELY,
    since: float = 300.0,
    touched: float | None = 320.0,
    slot: str = "0000:4e:00.0",
    uid: int | None = 1000,
    user: str = "alice",
    job_name: str = "train-70b",
) -> Event:
    """Return the event of a job that ended `since` seconds ago, by an Xid that was `touched` seconds ago."""
    touches = () if touched is None else (Touch(what="xid", detail="79", at=ago(touched), slot=slot, pid=77),)
    seen = touched is not None
    record = Record(
        epoch=Epoch(
            name=name, began=ago(since + 3600), boot_id="a-boot", uid=uid, user=user, job_name=job_name, slots=(slot,),
            touches=touches, use=Use(energy_j=7.2e6, energy_covers=1.0, busy=0.5, observed_gpu_seconds=3600.0),
        ),
        end=End(at=ago(since), known_from="epilog", state="FAILED", exit_code=1),
        answer=Answer(
            cause=cause, certainty=certainty, sentence=f"What ended {name} of {user}.",
            code="xid.79" if seen else "", slot=slot if seen else "",
        ),
    )  # fmt: skip
    return ended(record, "a-boot")
