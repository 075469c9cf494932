"""The manifest of a checkpoint. A folder is a checkpoint if its manifest is intact and every file matches it.

`manifest.json` is written last. It lists each file with its size and SHA-256, and ends with its own digest, so that
truncation, changes, and a copy made during the write are detected.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuwarden_job import durable

NAME = "manifest.json"
FORMAT = 1
_LIMIT = 64 << 20  # bytes: some 400,000 files
_CHUNK = 4 << 20
_NAME_MOST = 1024  # characters
_DIGITS_MOST = 25
_NUMBER_MOST = 10**15 - 1  # the most that fits into a folder's name
_SIZE_MOST = 2**63 - 1
_WORLD_MOST = 1_000_000  # ranks: more than any job has


class Broken(ValueError):  # noqa: N818
    """The folder is not a complete checkpoint; the message has the reason."""


@dataclass(frozen=True)
class File:
    """One file of a checkpoint."""

    size: int
    """Bytes."""
    sha256: str
    """Hash of the content, hexadecimal."""


@dataclass(frozen=True)
class Manifest:
    """The content of one checkpoint."""

    sequence: int
    """Number of the checkpoint in its folder, increasing."""
    step: int
    """Training step that was saved."""
    world: int
    """Number of ranks that wrote it."""
    files: Mapping[str, File]
    """The files by name."""
    metric: float | None = None
    """The metric; None if it is missing or not a number."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Additional data of the job."""


def digest(path: Path) -> File:
    """Return size and digest of the file. Raises OSError if it cannot be read."""
    sha, size = hashlib.sha256(), 0
    with durable.opened(path) as file:
        while chunk := file.read(_CHUNK):
            sha.update(chunk)
            size += len(chunk)
    return File(size, sha.hexdigest())


def listing(files: Mapping[str, File]) -> dict[str, Any]:
    return {name: [file.size, file.sha256] for name, file in sorted(files.items())}


def files_of(table: object) -> dict[str, File]:
    """Return the files in the table. Raises Broken if the table is invalid."""
    if not isinstance(table, dict):
        raise Broken("no list of files")
    return dict(_row(name, row) for name, row in table.items())


def _row(name: str, row: object) -> tuple[str, File]:
    parts = Path(name).parts
    if not parts or not name.isprintable() or len(name) > _NAME_MOST or Path(name).is_absolute() or ".." in parts:
        raise Broken(f"{name[:_NAME_MOST]!r} is no name of a file in it")
    if not (isinstance(row, list) and len(row) == 2 and _is_within(row[0], 0, _SIZE_MOST) and isinstance(row[1], str)):
        raise Broken(f"{name} has neither size nor hash")
    return name, File(row[0], row[1])


def _is_within(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _whole(digits: str) -> int:
    """Parses a number of limited length: Python before 3.11 takes hours for millions of digits. Raises ValueError."""
    if len(digits) > _DIGITS_MOST:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def write(folder: Path, manifest: Manifest) -> None:
    """Writes the manifest. Raises OSError; TypeError or ValueError if `extra` cannot be written as JSON."""
    content: dict[str, Any] = {
        "format": FORMAT,
        "sequence": manifest.sequence,
        "step": manifest.step,
        "world": manifest.world,
        "metric": manifest.metric,
        "extra": dict(manifest.extra),
        "files": listing(manifest.files),
    }
    content["digest"] = _own_digest(content)
    durable.replace(folder / NAME, json.dumps(content, indent=1, allow_nan=False).encode())


def _own_digest(content: Mapping[str, Any]) -> str:
    body = {key: value for key, value in content.items() if key != "digest"}
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read(folder: Path) -> Manifest:
    """Return the manifest of a checkpoint. Raises Broken if it cannot be read or is not valid."""
    try:
        with durable.opened(folder / NAME) as file:
            text = file.read(_LIMIT + 1)
        content = json.loads(text, parse_int=_whole)
        agrees = isinstance(content, dict) and content.get("digest") == _own_digest(content)
    except (OSError, ValueError, RecursionError) as error:
        raise Broken(f"its manifest cannot be read: {error}") from error
    if not agrees:
        raise Broken("its manifest does not agree with its own digest")
    if content.get("format") != FORMAT:
        raise Broken(f"its manifest has format {content.get('format')!r}, and {FORMAT} is understood here")
    sequence, step, world = (content.get(key) for key in ("sequence", "step", "world"))
    if not (_is_within(sequence, 1, _NUMBER_MOST) and _is_within(step, 0, _NUMBER_MOST)):
        raise Broken("its manifest lacks sequence or step")
    if not _is_within(world, 1, _WORLD_MOST):
        raise Broken(f"its manifest is of {world!r} ranks")
    extra = content.get("extra")
    return Manifest(
        sequence,
        step,
        world,
        files_of(content.get("files")),
        metric=number_or_none(content.get("metric")),
        extra=extra if isinstance(extra, dict) else {},
    )


def number_or_none(value: object) -> float | None:
    """Returns the value as a finite number, or None. A NaN would make comparisons depend on the order."""
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None
    return number if math.isfinite(number) else None


def check_sizes(folder: Path, manifest: Manifest) -> None:
    """Checks that every file exists and has its size, without reading it. Raises Broken."""
    for name, file in manifest.files.items():
        try:
            size = (folder / name).stat().st_size
        except OSError as error:
            raise Broken(f"{name} cannot be read: {error}") from error
        if size != file.size:
            raise Broken(f"{name} has {size} bytes, and {file.size} were written")


def check_content(folder: Path, manifest: Manifest, names: Iterable[str]) -> None:
    """Checks every byte of these files. Raises Broken."""
    for name in names:
        try:
            actual = digest(folder / name)
        except OSError as error:
            raise Broken(f"{name} cannot be read: {error}") from error
        if actual != manifest.files[name]:
            raise Broken(f"{name} is not what was written: its hash differs")
