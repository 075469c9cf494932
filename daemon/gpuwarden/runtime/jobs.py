"""The daemon and the jobs of its node: the notice in a file and on a socket, signals to jobs, and their acknowledgements."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from gpuwarden.engine.enforcement import Enforcement
from gpuwarden.engine.journal import Projection
from gpuwarden.evacuation.acknowledgements import Acknowledgements
from gpuwarden.evacuation.active_notices import ActiveNotices, active_notices
from gpuwarden.evacuation.driver import Evacuation
from gpuwarden.evacuation.gpu_processes import GpuProcesses, gpu_processes
from gpuwarden.health.model import Event, Verdict
from gpuwarden.publish.metrics.exposition import Holder
from gpuwarden.publish.notices import NoticeFile, Notices, document
from gpuwarden.publish.snapshot import Evacuations, Snapshot
from gpuwarden.publish.sockets.jobs import Acknowledged, Caller, JobSocket, Membership
from gpuwarden.publish.sockets.unix_socket import VerbError
from gpuwarden.publish.status import heartbeat, to_json
from gpuwarden.runtime.wiring import Site
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.facts import NvmlFacts, Stamp

Append = Callable[[Sequence[Event]], None]


class Service(Protocol):
    """The daemon's knowledge of its node, as far as jobs need it."""

    enforcement: Enforcement
    verdict: Verdict
    holder: Holder


class Jobs:
    """Jobs on this node, and their evacuation. With simulated GPUs no job is signalled.

    `append` hands events to the journal, from which a step follows soon; after `write` no step follows.
    """

    def __init__(
        self,
        site: Site,
        service: Service,
        *,
        append: Append,
        write: Append,
        committed: Callable[[], Awaitable[bool]],
        clock: Clock,
        passed: socket.socket | None = None,
    ) -> None:
        """Make the socket for jobs, or use `passed` if systemd listens on it already."""
        self._site = site
        self._service = service
        self._clock = clock
        self._gpu_processes: GpuProcesses = {}
        self.notices = Notices()
        self._file = NoticeFile(site.config.run.dir, clock)
        self._socket = JobSocket(
            site.config.run.dir,
            status=self._status,
            notices=self.notices,
            current=self._current,
            membership_of=self._membership_of,
            acknowledged=self._acknowledged,
            clock=clock,
            passed=passed,
        )
        self._evacuation = None if site.simulation is not None else self._made(append, write, committed)
        self._door: asyncio.Task[None] | None = None

    def _made(self, append: Append, write: Append, committed: Callable[[], Awaitable[bool]]) -> Evacuation:
        config, boot_id = self._site.config, self._site.boot_id
        return Evacuation(
            self._site.evacuation,
            self._site.job_scan(self._on_gpus, self._clock),
            Acknowledgements(config.run.dir, config.paths.proc, boot_id=boot_id, clock=self._clock),
            self._site.approval,
            active=self._active,
            enforce=config.mode == "enforce",
            append=append,
            write=write,
            committed=committed,
            names=config.publish.publish_jobs,
            boot_id=boot_id,
            clock=self._clock,
        )

    # --- life

    async def start(self) -> None:
        await self._socket.start()
        self._door = asyncio.create_task(self._socket.run())

    def run(self) -> None:
        """Start the evacuation. Must be called once the actions of an earlier daemon are known."""
        if self._evacuation is not None:
            self._evacuation.run()

    async def stop(self) -> None:
        if self._door is not None:
            self._door.cancel()
        await self._socket.stop()
        if self._evacuation is not None:
            await self._evacuation.stop()

    def close(self, timeout: float) -> None:
        """End the thread that writes the file. Blocks."""
        self._file.close(timeout)

    # --- the state

    @property
    def projections(self) -> tuple[Projection, ...]:
        return () if self._evacuation is None else (self._evacuation,)

    @property
    def outputs(self) -> tuple[Callable[[Iterable[Event]], None], ...]:
        """Outputs of the journal that jobs need."""
        return () if self._evacuation is None else (self._evacuation.appended,)

    def step(self, facts: NvmlFacts | None) -> None:
        """Follow the processes on the GPUs; what begins, or is over, is appended."""
        if self._evacuation is not None:
            self._gpu_processes = gpu_processes(self._gpu_processes, () if facts is None else facts.gpus)
            self._evacuation.follow()

    def _active(self, now: Stamp) -> ActiveNotices:
        enforcement, config = self._service.enforcement, self._site.config
        return active_notices(
            enforcement.state,
            self._service.verdict,
            enforcement.node_states,
            self._gpu_processes,
            scheduled=config.slurm.enabled,
            ignore_gpus=config.jobs.failing_gpu == "ignore",
            horizon=config.termination.horizon,
            instance=self._site.instance,
            now=now,
        )

    # --- what is published

    def publish(self, snapshot: Snapshot) -> None:
        body, imminent = to_json(document(snapshot)), snapshot.enforced.notice is not None
        self.notices.show(body, imminent=imminent)
        self._file.publish(body, imminent=imminent)

    async def signalled(self) -> str:
        """Text that names the jobs that were signalled for the imminent ends, or would be; empty while none is imminent."""
        return "" if self._evacuation is None else await self._evacuation.signalled()

    def settled(self) -> bool:
        """Return True if no job is left to signal for an imminent end, or to acknowledge."""
        return self._evacuation is None or self._evacuation.settled()

    def shown(self, now: Stamp) -> Evacuations:
        shown = Evacuations() if self._evacuation is None else self._evacuation.shown()
        return replace(shown, error="; ".join(filter(None, (shown.error, self.error(now)))))

    def error(self, now: Stamp) -> str:
        """Why jobs cannot read the notice, or not answer it."""
        return self._file.error(now) or self._socket.error(now)

    def _status(self) -> dict[str, Any]:
        return heartbeat(self._service.holder.snapshot, self._clock())[1]

    # --- what jobs send

    def _on_gpus(self) -> frozenset[int]:
        return frozenset().union(*self._gpu_processes.values())

    def _current(self) -> Collection[str]:
        return () if self._evacuation is None else self._evacuation.current()

    async def _membership_of(self, caller: Caller) -> Membership | None:
        return None if self._evacuation is None else await self._evacuation.membership_of(caller)

    def _acknowledged(self, given: Acknowledged) -> None:
        if self._evacuation is None:
            raise VerbError("with simulated GPUs there is nothing to acknowledge")
        self._evacuation.acknowledged(given)
