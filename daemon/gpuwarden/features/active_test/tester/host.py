"""The GPUs before and after a test, read in a process with a deadline: the driver's library is never loaded into this one."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from gpuwarden_collectors.active_test.host_facts import HostFacts
from gpuwarden_collectors.base import PassOutcome
from gpuwarden_collectors.nvml.options import NvmlOptions
from gpuwarden_collectors.worker.life import WorkerLimits
from gpuwarden_collectors.worker.worker import Worker

AFTER_WITHIN = 15.0
"""Seconds for the reading after a test: by then the library is initialised."""
_TERM_GRACE = 1.0


class HostUnread(Exception):  # noqa: N818 - a state of the host
    """The GPUs cannot be read. The message says why and what to do."""


class HostReadings:
    """One worker process for both readings. Must be used from the main thread; `close` ends it."""

    def __init__(self, options: NvmlOptions) -> None:
        self._within = options.init_deadline
        self._worker: Worker[HostFacts] = Worker(
            HostFacts.collector,
            "gpuwarden_collectors.active_test.host:HostReader",
            HostFacts,
            limits=WorkerLimits(deadline=AFTER_WITHIN, init_deadline=options.init_deadline, term_grace=_TERM_GRACE),
            on_event=lambda _: None,
            options=replace(options, gpm=False),
        )

    async def read(self) -> HostFacts:
        """Read the host in one pass. Raises HostUnread; takes as long as the driver, at most the deadline of its initialisation."""
        give_up = asyncio.get_running_loop().time() + self._within
        seen = await self._worker.observe()
        while seen.outcome is PassOutcome.TIMED_OUT and asyncio.get_running_loop().time() < give_up:
            seen = await self._worker.observe()
        if seen.facts is None:
            raise HostUnread(f"{seen.error or 'NVML gives no answer'}; see gpuwarden doctor")
        if (problem := seen.facts.nvml.problem) is not None:
            raise HostUnread(
                f"NVML gives no GPUs: {seen.facts.nvml.problem_text or problem.value}; see gpuwarden doctor"
            )
        return seen.facts

    async def close(self) -> None:
        await self._worker.close()
