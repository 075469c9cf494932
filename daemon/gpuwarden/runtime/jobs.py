"""What the jobs of this node read: the notice in a file and on a socket, and the state of the node."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import Any

from gpuwarden.config.model import Config
from gpuwarden.publish.notices import NoticeFile, Notices, document
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden.publish.sockets.jobs import JobSocket, JobVerb
from gpuwarden.publish.status import heartbeat, to_json
from gpuwarden.runtime.part import Service
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.facts import Stamp


class Jobs:
    """Serves jobs. `verbs`: requests of features on the job socket. `passed`: that socket if systemd has created it;
    otherwise it is created here.
    """

    def __init__(
        self,
        config: Config,
        service: Service,
        verbs: Mapping[str, JobVerb],
        clock: Clock,
        passed: socket.socket | None = None,
    ) -> None:
        self._service = service
        self._clock = clock
        self.notices = Notices()
        self._file = NoticeFile(config.run.dir, clock)
        self._socket = JobSocket(
            config.run.dir, status=self._status, notices=self.notices, verbs=verbs, clock=clock, passed=passed
        )
        self._door: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._socket.start()
        self._door = asyncio.create_task(self._socket.run())

    async def stop(self) -> None:
        if self._door is not None:
            self._door.cancel()
        await self._socket.stop()

    def close(self, timeout: float) -> None:
        """End the thread that writes the file. Blocks."""
        self._file.close(timeout)

    def publish(self, snapshot: Snapshot) -> None:
        body, imminent = to_json(document(snapshot)), snapshot.enforced.notice is not None
        self.notices.show(body, imminent=imminent)
        self._file.publish(body, imminent=imminent)

    def error(self, now: Stamp) -> str:
        """Why jobs cannot read the notice, or cannot acknowledge it; "" if they can."""
        return self._file.error(now) or self._socket.error(now)

    def _status(self) -> dict[str, Any]:
        return heartbeat(self._service.holder.snapshot, self._clock())[1]
