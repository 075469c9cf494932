"""Lists which processes of this host belong to Slurm's jobs, by slurmd. No answer does not mean that there are none.

A process belongs to its job as long as it lives, so the last list is used until slurmd lists again. Otherwise ranks
that are merely not listed would seem to have ended, and the job would be requeued while they save.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import field

from gpuwarden.base.threads import detached
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.process_stat import process_stat
from gpuwarden_collectors.slurm.client import Commands
from gpuwarden_collectors.slurm.departing import listpids
from gpuwarden_collectors.slurm.departing_facts import ListedPid
from gpuwarden_collectors.slurm.errors import SlurmError

LISTED_WITHIN = 0.5
"""Seconds that a scan waits for the list; a quiet host has it within 20 ms. A later list is for the next scan."""
SILENT_AFTER = 10.0
"""Seconds without a list after which that is reported: a list takes long on a host under load."""

_NEVER = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """The processes of Slurm's jobs. `pids`: those of all steps here, `started` when each began, in ticks since boot.
    `as_of`: loop time at which slurmd was asked for them, -inf if it never has answered. `error`: why there is no newer
    list; empty until SILENT_AFTER.
    """

    pids: Mapping[int, ListedPid] = field(default_factory=dict)
    started: Mapping[int, int] = field(default_factory=dict)
    as_of: float = _NEVER
    error: str = ""

    @property
    def known(self) -> bool:
        return self.as_of > _NEVER

    def still_there(self) -> dict[int, ListedPid]:
        """Return listed processes that still run: PIDs of ended ones may be reused. Reads /proc, some 20 us each."""
        return {pid: self.pids[pid] for pid, started in self.started.items() if _started(pid) == started}


class SlurmPids:
    """Lists the processes of Slurm's jobs. `last`: what is known without a query. `commands` do not wait for those that
    wait for the controller: slurmd's folder answers always.
    """

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self.last = Listed()
        self._error = ""
        self._listing: asyncio.Task[None] | None = None

    async def close(self) -> None:
        if self._listing is not None:
            self._listing.cancel()
            await asyncio.gather(self._listing, return_exceptions=True)

    async def listed(self) -> Listed:
        """Query slurmd for the processes of jobs. Returns the last list if it does not answer. Takes LISTED_WITHIN at
        most, and raises nothing.
        """
        clock = asyncio.get_running_loop().time
        if self._listing is None:
            self._listing = asyncio.create_task(self._list())
        await asyncio.wait((self._listing,), timeout=LISTED_WITHIN)
        last = self.last
        if last.known and clock() - last.as_of < SILENT_AFTER:
            return last
        why = self._error or f"no answer within {LISTED_WITHIN:g} s"
        error = f"slurmd does not list the processes of jobs here: {why}"
        return Listed(pids=last.pids, started=last.started, as_of=last.as_of, error=error)

    async def _list(self) -> None:
        asked = asyncio.get_running_loop().time()
        try:
            pids = await listpids(self._commands, await self._commands.node_name())
            started = await detached("listed", lambda: {pid: at for pid in pids if (at := _started(pid)) is not None})
            self.last, self._error = Listed(pids=pids, started=started, as_of=asked), ""
        except SlurmError as error:
            self._error = str(error)
        finally:
            self._listing = None


def _started(pid: int) -> int | None:
    """Return when the process began, in ticks since boot; None if it is gone. PIDs are those of this host's own /proc,
    whatever `paths.proc` is.
    """
    stat = process_stat("/proc", pid)
    return None if stat is None else stat.started
