"""Limits how many nodes of a fleet do something at once, by marks in Slurm that all nodes read
(`policy/fleet_marks.py`).

    count   too many marks: not now
    write   the mark, into Comment, or into Extra if Comment has another text
    pause   so that a later mark has a later second
    count   too many earlier marks: remove the mark

If both fields have other texts, the node continues without a mark: it counts the others, but they do not count it.

A mark that is over keeps other nodes waiting. While Slurm does not answer, its removal is repeated until the mark expires.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from gpuwarden.base.log import get_logger
from gpuwarden.policy.fleet_marks import Mark, is_free, marks, with_mark, without
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.slurm.client import Commands, SlurmClient
from gpuwarden_collectors.slurm.errors import Refused, SlurmError
from gpuwarden_collectors.slurm.facts import NodeFacts
from gpuwarden_collectors.slurm.nodes import read_node
from gpuwarden_collectors.slurm.options import SlurmOptions
from gpuwarden_collectors.slurm.parse import TEXTS_FORMAT, sinfo_texts

Refusal = Callable[[Commands, str], Awaitable[str]]
"""Counts, and returns why the named node must wait; "" if it may continue. Raises SlurmError."""

log = get_logger()


class Turn(Protocol):
    """A turn among the nodes of the fleet that do the same thing at once."""

    async def enter(self) -> str:
        """Mark this node. Returns why it is not its turn, or "" if it is."""

    async def leave(self) -> None:
        """End the mark, so that another node gets its turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOptions:
    """Options of a turn. `what`: text in the mark; `done`: the same in messages.

    In seconds: `lasts`: the longest turn; `pause`: from the write to the second count, at least one; `kept`: for which
    a mark remains after its end, to be counted; `again`: least and most between two tries to remove or end a mark.
    """

    what: str
    done: str
    lasts: float
    pause: float
    kept: float = 0.0
    again: tuple[float, float] = (30.0, 90.0)


class FleetTurn:
    """Marks this node while it does something that only some nodes of the fleet may do at once."""

    def __init__(
        self,
        client: SlurmClient,
        slurm: SlurmOptions,
        options: TurnOptions,
        refusal: Refusal,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._commands = client.routine
        self._fields = ("Extra", "Comment") if slurm.detail == "comment" else ("Comment", "Extra")
        self._options = options
        self._refusal = refusal
        self._wall = wall
        self._chance = random.Random()  # noqa: S311 - spreads load, guards nothing

    async def enter(self) -> str:
        """Mark the node; return "". Or return why it is not its turn, or why that is unknown."""
        try:
            return await self._entered()
        except SlurmError as error:
            return self._uncounted(error)

    async def leave(self) -> None:
        """End the mark, even of an earlier daemon. Repeated while Slurm does not answer, until the mark has expired."""
        await self._repeated(self._ended)

    async def _entered(self) -> str:
        name = await self._commands.node_name()
        if why := await self._refusal(self._commands, name):
            return why
        texts = _texts(await read_node(self._commands, name))
        free = next((field for field in self._fields if is_free(texts[field])), None)
        if free is None:
            return ""
        now, options = self._wall(), self._options
        mark = Mark(options.what, now, now + options.lasts)
        try:
            await self._write(name, free, with_mark(texts[free], mark, options.kept))
            await asyncio.sleep(options.pause)
            why = await self._refusal(self._commands, name)
        except SlurmError as error:
            why = self._uncounted(error)
        except asyncio.CancelledError:
            with suppress(SlurmError):
                await self._each(lambda text: self._without(text, mark))
            raise
        if why:  # the node does nothing: a remaining mark would delay others
            await self._repeated(lambda text: self._without(text, mark))
        return why

    def _uncounted(self, error: SlurmError) -> str:
        return f"cannot count the nodes that are {self._options.done}: {error}"

    async def _repeated(self, change: Callable[[str], str]) -> None:
        """Change the marks as `_each` does. After an error repeat it, as long as a mark may count."""
        until = self._wall() + self._options.lasts
        while True:
            try:
                return await self._each(change)
            except SlurmError as error:
                if isinstance(error, Refused) or self._wall() >= until:
                    log.warning("mark stays until it expires", mark=self._options.what, reason=str(error))
                    return None
                log.info("mark stays for now", mark=self._options.what, reason=str(error))
            await asyncio.sleep(self._chance.uniform(*self._options.again))

    def _without(self, text: str, mark: Mark) -> str:
        """Return the field without this mark, of which Slurm has the text. Older ones of its kind stay."""
        rest = without(text, mark.what)
        for other in marks(text):
            if other.what == mark.what and str(other) != str(mark):
                rest = with_mark(rest, other, self._options.kept)
        return rest

    def _ended(self, text: str) -> str:
        now, options = self._wall(), self._options
        rest = without(text, options.what)
        for mark in marks(text):
            if options.kept and mark.what == options.what and mark.since > now - options.kept:
                rest = with_mark(rest, mark._replace(until=min(mark.until, now)), options.kept)
        return rest

    async def _each(self, change: Callable[[str], str]) -> None:
        name = await self._commands.node_name()
        for field, text in _texts(await read_node(self._commands, name)).items():
            if any(mark.what == self._options.what for mark in marks(text)) and (new := change(text)) != text:
                await self._write(name, field, new)

    async def _write(self, name: str, field: str, text: str) -> None:
        done = self._options.done
        undone = f"cannot mark {name} as {done}" if text else f"cannot remove the mark of {name} as {done}"
        await self._commands.change(undone, "scontrol", "update", f"NodeName={name}", f"{field}={text}")


async def read_marks(commands: Commands, kind: str) -> dict[str, list[Mark]]:
    """Return the marks of one kind by node. One request for all nodes of the cluster. Raises SlurmError."""
    undone = f"cannot read the nodes that have a mark of a {kind}"
    text = await commands.ask(undone, "sinfo", "--local", "--all", "--noheader", "--Node", f"--Format={TEXTS_FORMAT}")
    by_node: dict[str, list[Mark]] = {}
    for node in sinfo_texts(text):
        own = [mark for mark in (*marks(node.comment), *marks(node.extra)) if mark.what == kind]
        if own:
            by_node[node.name] = own
    return by_node


def _texts(node: NodeFacts) -> dict[str, str]:
    return {"Comment": node.comment, "Extra": node.extra}
