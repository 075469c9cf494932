"""Loads the newest complete checkpoint, the same on all ranks: rank 0 proposes, every rank checks its files.

A broken checkpoint is skipped. A complete one that cannot be decoded is not: then the code has changed, and older
checkpoints would fail in the same way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from gpuwarden_job import durable, manifest, publishing, retention
from gpuwarden_job.errors import CheckpointError, NothingLoadable, Undecodable, WorldChanged
from gpuwarden_job.manifest import Broken, Manifest
from gpuwarden_job.ranks import Ranks

_log = logging.getLogger("gpuwarden_job")

Read = Callable[[Path, Manifest], Any]
Expected = Callable[[Manifest], Iterable[str]]
"""Returns the files that a reader opens by name, whether or not the manifest lists them."""
Reshard = Callable[[Sequence[Any], Ranks], Any]
"""Returns this rank's state, from the states of all ranks that saved, in order, and the present ranks."""


@dataclass(frozen=True)
class Loaded:
    """A checkpoint that was loaded."""

    state: Any
    """The state, as returned by `load`."""
    folder: Path
    """Folder of the checkpoint."""
    manifest: Manifest

    @property
    def step(self) -> int:
        return self.manifest.step


def shard_name(rank: int) -> str:
    return f"rank-{rank:05d}.state"


def shard_names(made: Manifest) -> Iterator[str]:
    return (shard_name(rank) for rank in range(made.world))


def read_shards(
    folder: Path,
    made: Manifest,
    *,
    load: Callable[[IO[bytes]], Any],
    ranks: Ranks,
    sharded: bool,
    reshard: Reshard | None,
) -> Any:
    """Returns the state of this rank. Raises WorldChanged, and what `load` and `reshard` raise.

    `sharded`: the only state of a checkpoint of one rank is a shard, too, and not the state of every rank.
    """

    def one(rank: int) -> Any:
        with durable.opened(folder / shard_name(rank)) as file:
            return load(file)

    if made.world == ranks.size:
        return one(ranks.rank)
    if made.world == 1 and not sharded:
        return one(0)
    if reshard is None:
        raise WorldChanged(
            f"{folder} was saved in shards by {made.world} ranks, and there are {ranks.size} now: "
            "pass reshard= to load_latest, or start with as many as before"
        )
    return reshard([one(rank) for rank in range(made.world)], ranks)


class Loader:
    def __init__(self, root: Path, ranks: Ranks, read: Read, expected: Expected = lambda _: ()) -> None:
        self._root, self._ranks, self._read, self._expected = root, ranks, read, expected
        self._passed: list[str] = []

    def first_whole(self, order: Sequence[Path]) -> Loaded | None:
        """Loads the first checkpoint, in rank 0's order, that is complete on all ranks; None if no rank has one.

        Raises NothingLoadable, Undecodable, WorldChanged.
        """
        proposals = iter(order)
        while folder := self._proposed(proposals):
            with retention.reading(folder):
                made, problem = self._checked(folder)
                if not self._ranks.any(made is None):
                    return self._decoded(folder, made)
            self._pass(folder, problem or "broken on another rank")
        if self._ranks.any(bool(self._passed)):
            raise NothingLoadable(
                f"none of the checkpoints in {self._root} is whole ({'; '.join(self._passed)}): "
                "restore one from a copy, or move them away to begin again"
            )
        if self._ranks.any(bool(order)):
            raise NothingLoadable(
                f"rank 0 sees no checkpoint in {self._root}, and another rank does: "
                "is it mounted, and the same folder, on all nodes?"
            )
        return None

    def _proposed(self, order: Iterator[Path]) -> Path | None:
        sequence = 0
        if self._ranks.first:
            sequence = next((number for path in order if (number := self._readable(path))), 0)
        sequence = self._ranks.broadcast(sequence)
        # A rank that does not see it uses an unreadable path, so that the agreement rejects it on all ranks.
        return publishing.folders(self._root).get(sequence, self._root / f"{sequence:08d}") if sequence else None

    def _readable(self, folder: Path) -> int:
        try:
            return self._whole(folder).sequence
        except Broken as error:
            self._pass(folder, str(error))
            return 0

    def _whole(self, folder: Path) -> Manifest:
        """Return the manifest of a complete checkpoint. Raises Broken if a file is missing."""
        made = publishing.read(folder)
        if (missing := next((name for name in self._expected(made) if name not in made.files), None)) is not None:
            raise Broken(f"its manifest is of {made.world} ranks, and does not name {missing}")
        return made

    def _checked(self, folder: Path) -> tuple[Manifest | None, str]:
        try:
            made = self._whole(folder)
            manifest.check_sizes(folder, made)
            manifest.check_content(folder, made, sorted(made.files)[self._ranks.rank :: self._ranks.size])
        except Broken as error:
            return None, str(error)
        return made, ""

    def _decoded(self, folder: Path, made: Manifest | None) -> Loaded:
        state, error = None, None
        try:
            state = None if made is None else self._read(folder, made)
        except Exception as failed:  # noqa: BLE001 - shared with all ranks before it is raised
            error = failed
        if self._ranks.any(error is not None) or made is None:
            if isinstance(error, CheckpointError):
                raise error
            raise Undecodable(f"{folder} is whole and cannot be decoded: {error or 'on another rank'}") from error
        return Loaded(state, folder, made)

    def _pass(self, folder: Path, problem: str) -> None:
        self._passed.append(f"{folder.name}: {problem}")
        _log.warning("skipping checkpoint %s: %s", folder, problem)
