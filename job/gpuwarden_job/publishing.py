"""Publishes a checkpoint: every rank writes its shard, then rank 0 combines them into one checkpoint atomically.

    shard        files → flushed → their sizes and hashes as `shard-N.json`, itself flushed
    publish      all shards there → manifest → flushed → the folder gets its name → the folder above flushed → `latest`

A process may be killed between any two steps: before the rename no checkpoint is visible, after it the checkpoint is
complete. The ranks synchronise through the file system, so nothing here is collective, and a thread may run it.
"""

from __future__ import annotations

import errno
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpuwarden_job import durable, manifest
from gpuwarden_job.errors import SaveFailed
from gpuwarden_job.manifest import Broken, File, Manifest

LATEST = "latest"
_NAME = re.compile(r"([0-9]{8,15})-step-([0-9]{1,18})")
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY)
_POLL = 0.05  # s between checks for the shards of others

Write = Callable[[Path], Iterable[Path]]
"""Writes this rank's files into the folder, or into subfolders, and returns their names."""


@dataclass(frozen=True)
class Plan:
    """The plan of one checkpoint, which `world` ranks write.

    Rank 0 waits `patience` seconds for the shards of the others.
    """

    step: int
    world: int = 1
    metric: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    patience: float = 600.0


def name_of(sequence: int, step: int) -> str:
    return f"{sequence:08d}-step-{step}"


def folders(root: Path) -> dict[int, Path]:
    """Returns all checkpoint folders by sequence, oldest first, including broken ones.

    Raises OSError, except if `root` does not exist.
    """
    try:
        matches = [(match, path) for path in root.iterdir() if (match := _NAME.fullmatch(path.name))]
    except FileNotFoundError:
        return {}
    return dict(sorted((int(match[1]), path) for match, path in matches))


def read(folder: Path) -> Manifest:
    """Reads the manifest of a checkpoint. Raises Broken, also if it belongs to another checkpoint."""
    made = manifest.read(folder)
    if folder.name != name_of(made.sequence, made.step):
        raise Broken(f"its manifest is that of {name_of(made.sequence, made.step)}")
    return made


def write_shard(folder: Path, rank: int, write: Write) -> None:
    """Write the files of a rank, then their list, with fsync. Raises OSError, and what `write` raises."""
    files = {}
    for path in write(folder):
        durable.flush(path)
        files[path.relative_to(folder).as_posix()] = manifest.digest(path)
    durable.flush_folders(folder)
    durable.replace(_shard(folder, rank), json.dumps(manifest.listing(files)).encode())


def publish(root: Path, folder: Path, plan: Plan) -> Manifest:
    """Publishes the checkpoint durably. Raises OSError; SaveFailed if shards are missing after `patience`."""
    made = Manifest(
        sequence=_next(root),
        step=plan.step,
        world=plan.world,
        files=_gather(folder, plan),
        metric=plan.metric,
        extra=plan.extra,
    )
    while True:
        manifest.write(folder, made)
        try:
            folder.rename(root / name_of(made.sequence, made.step))
            break
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
            made = replace(made, sequence=made.sequence + 1)  # another writer was first
    durable.flush(root)
    return made


def _next(root: Path) -> int:
    """Returns the sequence after the last complete checkpoint.

    A folder with a huge number, placed by someone else, does not prevent later checkpoints.
    """
    taken = folders(root)
    number = 1 + next((number for number in sorted(taken, reverse=True) if _is_whole(taken[number])), 0)
    while number in taken:
        number += 1
    return number


def _is_whole(folder: Path) -> bool:
    try:
        read(folder)
    except Broken:
        return False
    return True


def mark_latest(root: Path, made: Manifest) -> None:
    """Checks that a checkpoint is complete and marks it as the latest, for tools that copy files one by one.

    Raises OSError, Broken.
    """
    name = name_of(made.sequence, made.step)
    manifest.check_sizes(root / name, read(root / name))
    durable.replace(root / LATEST, f"{name}\n".encode())


def _shard(folder: Path, rank: int) -> Path:
    return folder / f"shard-{rank:05d}.json"


def _gather(folder: Path, plan: Plan) -> dict[str, File]:
    files: dict[str, File] = {}
    until = time.monotonic() + plan.patience
    for rank in range(plan.world):
        while not _shard(folder, rank).exists():
            if not folder.exists():
                raise SaveFailed(f"step {plan.step} was not saved: another rank gave up; see its own message")
            if time.monotonic() > until:
                raise SaveFailed(
                    f"step {plan.step} was not saved: rank {rank} wrote nothing within {plan.patience:g} s. "
                    f"Is {folder.parent} the same folder on all nodes?"
                )
            time.sleep(_POLL)
        try:
            with durable.opened(_shard(folder, rank)) as file:
                mine = manifest.files_of(json.loads(file.read()))
        except (ValueError, Broken) as error:
            raise SaveFailed(f"step {plan.step} was not saved: the shard of rank {rank} is broken: {error}") from error
        if both := files.keys() & mine.keys():
            raise SaveFailed(f"step {plan.step} was not saved: two ranks wrote {min(both)}")
        files.update(mine)
    return files
