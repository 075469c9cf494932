"""What the shim has to do, in its own words (`GET /api/tasks`, dstack 0.18.34 and later).

A task goes from pending to terminated; then dstack's server takes note of how it ended and removes it, within seconds. So a host
without tasks is idle. One whose tasks have all ended is idle after a while: the server was told to keep them, or cannot come.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from gpuwarden.actuators.base import ActuatorUnavailable
from gpuwarden.actuators.dstack_shim.firewall import OURS
from gpuwarden.base.addresses import Address
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.cloud.metadata import Metadata, MetadataError

ANSWERS_WITHIN = 2.0
"""Seconds."""
COLLECTED_WITHIN = 60.0
"""Seconds that tasks which have ended are left to dstack's server, which looks at a host every 14 s or somewhat later (dstack 0.22)."""
ENDED = "terminated"


class TasksUnknown(ActuatorUnavailable):
    """Whether a job is on this host cannot be asked, and why."""

    def __init__(self, why: str) -> None:
        super().__init__(f"whether a job is on this host cannot be asked: {why}")


@dataclass(frozen=True, slots=True)
class Tasks:
    """How many there are, by their state, and which have ended."""

    states: Mapping[str, int]
    ended: frozenset[str] = frozenset()

    @property
    def running(self) -> str:
        """Those that have not ended, for people; "" if all have."""
        return ", ".join(f"{count} {state}" for state, count in sorted(self.states.items()) if state != ENDED)


class Shim:
    """At `address`. It is asked from an address by which the firewall knows us."""

    def __init__(self, address: Address, clock: Clock) -> None:
        self._http = Metadata(f"http://{address}", ANSWERS_WITHIN, source=OURS)
        self._clock = clock
        self._ended: frozenset[str] = frozenset()
        self._since = 0.0  # when just these were first seen, by CLOCK_BOOTTIME

    async def busy(self) -> str:
        """Why it is to be left alone for now; "" if it is idle. Raises TasksUnknown."""
        tasks, now = await self._tasks(), self._clock().boottime
        if tasks.ended != self._ended:
            self._ended, self._since = tasks.ended, now
        if tasks.running:
            return f"dstack's agent is stopped when no task is left on this host ({tasks.running})"
        waits = tasks.ended and now < self._since + COLLECTED_WITHIN
        return "dstack's server has yet to take note of how the last task ended" if waits else ""

    async def _tasks(self) -> Tasks:
        try:
            reply = await self._http.get("/api/tasks")
        except MetadataError as error:
            raise TasksUnknown(str(error)) from error
        finally:
            await self._http.close()  # kept open, it would hold the agent up when it is stopped
        if reply.status != 200:
            raise TasksUnknown(f"its agent answers {reply.status}")
        return parsed(reply.body)

    async def close(self) -> None:
        await self._http.close()


def parsed(body: bytes) -> Tasks:
    """`tasks` with their states; before dstack 0.19.26 `ids` alone. Raises TasksUnknown."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    match found:
        case {"tasks": list(tasks)}:
            pairs = [_pair(task) for task in tasks]
            return Tasks(
                Counter(state for _, state in pairs), frozenset(name for name, state in pairs if state == ENDED)
            )
        case {"ids": list(ids)}:
            return Tasks({"unknown": len(ids)} if ids else {})
    raise TasksUnknown("its agent answers something else than a list of tasks")


def _pair(task: object) -> tuple[str, str]:
    """Its id, and its state if that is a word."""
    match task:
        case {"id": str(name), "status": str(state)} if state.isalpha():
            return name, state
    return "", "unknown"
