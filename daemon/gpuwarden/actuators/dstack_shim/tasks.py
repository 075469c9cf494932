"""What the shim has to do, in its own words (`GET /api/tasks`, dstack 0.18.34 and later).

A task goes from pending to terminated; then dstack's server takes note of how it ended and removes it, within seconds. So a host
without tasks is idle. One whose tasks have all ended is idle after a while: the server was told to keep them, or cannot come.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from gpuwarden.actuators.dstack_shim.gate import OURS
from gpuwarden.addresses import Address
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.cloud.metadata import Metadata, MetadataError

ANSWERS_WITHIN = 2.0
"""Seconds."""
COLLECTED_WITHIN = 60.0
"""Seconds that tasks which have ended are left to dstack's server: it looks at a host at least every 14 s (dstack 0.22)."""
ENDED = "terminated"
UNKNOWN = "whether a job is on this host cannot be asked"


@dataclass(frozen=True, slots=True)
class Tasks:
    """How many there are, by their state. `trouble`: they are not known, and why."""

    states: Mapping[str, int]
    trouble: str = ""

    @property
    def running(self) -> str:
        """Those that have not ended, for people; "" if all have."""
        return ", ".join(f"{count} {state}" for state, count in sorted(self.states.items()) if state != ENDED)


class Shim:
    """At `address`. It is asked from an address by which the gate knows us."""

    def __init__(self, address: Address, clock: Clock) -> None:
        self._http = Metadata(f"http://{address}", ANSWERS_WITHIN, source=OURS)
        self._clock = clock
        self._ended: float | None = None  # since when there are only tasks that have ended, by CLOCK_BOOTTIME

    async def busy(self) -> str:
        """Why it is to be left alone for now; "" if it is idle. Raises nothing."""
        tasks = await self.tasks()
        if tasks.trouble or tasks.running or not tasks.states:
            self._ended = None
            if tasks.trouble:
                return f"{UNKNOWN}: {tasks.trouble}"
            return (
                f"dstack's agent is stopped when no task is left on this host ({tasks.running})"
                if tasks.running
                else ""
            )
        now = self._clock().boottime
        self._ended = now if self._ended is None else self._ended
        left = self._ended + COLLECTED_WITHIN > now
        return "dstack's server has yet to take note of how the last task ended" if left else ""

    async def tasks(self) -> Tasks:
        """Raises nothing."""
        try:
            reply = await self._http.get("/api/tasks")
        except MetadataError as error:
            return Tasks({}, str(error))
        finally:
            await self._http.close()  # kept open, it would hold the agent up when it is stopped
        if reply.status != 200:
            return Tasks({}, f"its agent answers {reply.status}")
        return parsed(reply.body)

    async def close(self) -> None:
        await self._http.close()


def parsed(body: bytes) -> Tasks:
    """`tasks` with their states; before dstack 0.19.26 `ids` alone."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    match found:
        case {"tasks": list(tasks)}:
            states = [task.get("status") if isinstance(task, dict) else None for task in tasks]
            return Tasks(
                Counter(state if isinstance(state, str) and state.isalpha() else "unknown" for state in states)
            )
        case {"ids": list(ids)}:
            return Tasks({"unknown": len(ids)} if ids else {})
    return Tasks({}, "its agent answers something else than a list of tasks")
