"""The mark of this node that it is tested before its return, and its turn among the nodes that gpuwarden tests (at_once.py).

    count   too many: not now
    write   the mark, into Comment, or Extra where somebody else's text is there
    pause   so that what is written later has a later second
    count   too many before this node: the mark is taken back

Where both fields hold texts of others, the node is tested without a mark: others do not count it, and it counts them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from gpuwarden.features.active_test.at_once import is_mark, mark, refusal
from gpuwarden.features.active_test.testers import read_testers
from gpuwarden_collectors.slurm.client import SlurmClient
from gpuwarden_collectors.slurm.errors import SlurmError
from gpuwarden_collectors.slurm.facts import NodeFacts
from gpuwarden_collectors.slurm.nodes import read_node
from gpuwarden_collectors.slurm.options import SlurmOptions


class GateMark:
    """Marks this node as tested. `at_once`: how many nodes may be tested at once. `slurm_user`: whose jobs count, too.
    `lasts`: seconds of a test at most. `pause`: seconds between the write and the second count, a second at least.
    """

    def __init__(
        self,
        client: SlurmClient,
        options: SlurmOptions,
        *,
        at_once: int,
        slurm_user: str,
        lasts: float,
        pause: float,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._commands = client.routine
        self._fields = ("Extra", "Comment") if options.detail == "comment" else ("Comment", "Extra")
        self._at_once = at_once
        self._user = slurm_user
        self._lasts = lasts
        self._pause = pause
        self._wall = wall

    async def enter(self) -> str:
        """Why this node may not be tested now; "" if it may, and then it is marked. Raises SlurmError."""
        name = await self._commands.node_name()
        if why := await self._refusal(name):
            return why
        node = await read_node(self._commands, name)
        texts = _texts(node)
        free = next((field for field in self._fields if not texts[field] or is_mark(texts[field])), None)
        if free is None:
            return ""
        now = self._wall()
        try:
            await self._write(name, free, mark(now, now + self._lasts))
            await asyncio.sleep(self._pause)
            why = await self._refusal(name)
        except (SlurmError, asyncio.CancelledError):  # it is not tested: a mark that stays would hold up the others
            with suppress(SlurmError):
                await self.leave()
            raise
        if why:
            await self.leave()
        return why

    async def leave(self) -> None:
        """Remove the mark, even one that an earlier daemon left. Raises SlurmError; the mark then expires by its time."""
        name = await self._commands.node_name()
        for field, text in _texts(await read_node(self._commands, name)).items():
            if is_mark(text):
                await self._write(name, field, "")

    async def _refusal(self, name: str) -> str:
        found = await read_testers(self._commands, self._user, self._wall())
        return refusal(self._at_once, found.held, name)

    async def _write(self, name: str, field: str, text: str) -> None:
        undone = f"cannot mark {name} as tested" if text else f"cannot remove the mark of the test of {name}"
        await self._commands.change(undone, "scontrol", "update", f"NodeName={name}", f"{field}={text}")


def _texts(node: NodeFacts) -> dict[str, str]:
    return {"Comment": node.comment, "Extra": node.extra}
