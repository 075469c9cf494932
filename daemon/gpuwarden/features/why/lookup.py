"""Finds the job that is meant: the newest of a name or of a user, among those that the asker may see. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from gpuwarden.features.why.model import Epoch, Record
from gpuwarden_collectors.dataclass import dataclass

May = Callable[[Epoch, Record | None], bool]
"""Returns whether the asker may see this job. The record is given if it has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A job: its record if it has ended, else its epoch."""

    epoch: Epoch
    record: Record | None = None
    """None while it runs."""
    older: int = 0
    """Number of others of the same name that ended before."""


def newest(
    running: Iterable[Epoch], ended: Iterable[Record], may: May, names: Collection[str] | None = None
) -> Found | None:
    """Return the job of one of these names (None: of any) that began last; running jobs take precedence over ended
    ones.

    A pod has several names. A record that is given twice counts once.
    """
    records = {
        (record.epoch.name, record.epoch.began.wall): record
        for record in ended
        if _meant(record.epoch, may, names, record)
    }
    epochs = [epoch for epoch in running if _meant(epoch, may, names)]
    if epochs:
        epoch = max(epochs, key=lambda job: job.began.wall)
        return Found(epoch=epoch, older=_count(epoch.name, records.values()))
    if not records:
        return None
    record = max(records.values(), key=lambda job: job.end.at.wall)
    return Found(epoch=record.epoch, record=record, older=_count(record.epoch.name, records.values()) - 1)


def _meant(epoch: Epoch, may: May, names: Collection[str] | None, record: Record | None = None) -> bool:
    return (names is None or not {epoch.name, *epoch.also}.isdisjoint(names)) and may(epoch, record)


def _count(name: str, records: Iterable[Record]) -> int:
    return sum(record.epoch.name == name for record in records)
