"""The leaf switch of this node, which nodes that fail together may share. Slurm's topology names it; the
node cannot.
"""

from __future__ import annotations

import asyncio

from gpuwarden_collectors.slurm.client import SlurmClient
from gpuwarden_collectors.slurm.errors import SlurmError, Unreachable
from gpuwarden_collectors.slurm.topology import read_leaf_switch

AGAIN = 86_400.0
"""Seconds until the next request after an error, which is the usual answer: most sites have no topology."""
SOON = 600.0
"""Seconds until the next request after none was answered: a rack that comes back with its controller soon has labels
again."""


class LeafSwitch:
    """The leaf switch of this node.

    `known`: the configured switch, or that of Slurm's topology once the controller has answered; "" until then.
    """

    def __init__(self, configured: str, slurm: SlurmClient | None, *, soon: float = SOON) -> None:
        self.known = configured
        self._slurm = slurm
        self._soon = soon
        self._task: asyncio.Task[None] | None = None

    def run(self) -> None:
        if not self.known and self._slurm is not None:
            self._task = asyncio.create_task(self._read(self._slurm))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _read(self, slurm: SlurmClient) -> None:
        while True:
            try:
                self.known = await read_leaf_switch(slurm.routine)
            except Unreachable:
                await asyncio.sleep(self._soon)
            except SlurmError:
                await asyncio.sleep(AGAIN)
            else:
                return
