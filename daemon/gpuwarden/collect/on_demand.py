"""A worker process that is started once there is something for it to read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Generic

from gpuwarden.collect.schedule import ThreadCollector
from gpuwarden_collectors.base import Facts, Observation, PassOutcome, WorkerReport
from gpuwarden_collectors.worker.worker import Worker


class OnDemandWorker(Generic[Facts]):
    """A worker for a source that may appear late. `presence` returns when the source is present; until then it raises
    SourceAbsent or CollectorError.

    Until then a pass reports that error. Afterwards every pass is the worker's, even if the source disappears again.
    """

    def __init__(self, presence: ThreadCollector[None], worker: Worker[Facts]) -> None:
        self._presence = presence
        self._worker = worker
        self._present = False

    async def observe(self) -> Observation[Facts]:
        if not self._present:
            seen: Observation[Any] = await self._presence.observe()
            if seen.outcome is not PassOutcome.OBSERVED:
                return replace(seen, worker=WorkerReport())
            self._present = True
        return await self._worker.observe()

    async def close(self) -> None:
        await self._worker.close()
