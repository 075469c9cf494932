"""The frozen boxes: one file for each failure, which `gpuwarden replay` reads without conversion."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuwarden import __version__
from gpuwarden.features.black_box.members import first_line, member
from gpuwarden.health.model import Key
from gpuwarden.publish.times import rfc3339
from gpuwarden.trace.records import FORMAT
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

KEPT_MOST, KEPT_BYTES = 5, 64 << 20
SPACING, SAME_SPACING = 60.0, 1800.0
"""Seconds after a box in which no other is frozen, and none for the same finding: a later box has those records."""
PATTERN = "frozen-*.trace.gz"
_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The failure that a box is frozen for."""

    finding: str
    """Id of the new finding."""
    at: Stamp
    """The step that found it, which is the end of the box."""
    boot_id: str
    health: str
    """The verdict of that step."""
    findings: tuple[str, ...]
    """Ids of all findings of that verdict."""
    standing: frozenset[str] = frozenset()
    """Ids of the failures in force, including the new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A frozen black box."""

    path: Path
    size: int = 0
    finding: str = ""
    """Id of the finding that it was frozen for; empty if the file does not have it."""
    boot_id: str = ""
    at: float = 0.0
    """When it was frozen, seconds after boot."""
    begun: float = 0.0
    """Unix time of its first record."""
    until: float = 0.0
    """Unix time of its last record."""
    missing: str = ""
    """Which part of the last 30 minutes is not in it; empty if none is missing."""

    def document(self) -> dict[str, str]:
        return {
            "finding": self.finding,
            "file": str(self.path),
            "from": rfc3339(self.begun),
            "until": rfc3339(self.until),
            "missing": self.missing,
        }


def header(failure: Failure, box: Box, ends: float) -> bytes:
    """Return the first line of a box, as a member of its file. `ends`: the time of its last record, seconds after boot."""
    content = {
        "finding": box.finding,
        "boot_id": box.boot_id,
        "at": round(box.at, 6),
        "ends": round(ends, 6),
        "from": box.begun,
        "until": box.until,
        "missing": box.missing,
        "health": failure.health,
        "findings": list(failure.findings),
    }
    line = {"trace": FORMAT, "gpuwarden": __version__, "anonymised": False, "box": content}
    return member(json.dumps(line, separators=(",", ":")).encode() + b"\n")


def name_of(failure: Failure) -> str:
    """Return the name of the file, made of time, code and subject."""
    key = Key.parse(failure.finding)
    code = f"{key.code}.{key.detail}" if key.detail else key.code
    when = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(failure.at.wall))
    subject = "-".join(filter(None, (key.subject.slot, key.subject.part))) or key.subject.kind
    return f"frozen-{when}-{_UNFIT.sub('-', code)[:60]}-{_UNFIT.sub('-', subject)[:60]}.trace.gz"


def kept(folder: Path) -> tuple[Box, ...]:
    """Return the boxes in the folder, the oldest first. Raises OSError."""
    return tuple(sorted(map(_box, folder.glob(PATTERN)), key=lambda box: box.path.name))


def _box(path: Path) -> Box:
    box = Box(path=path, size=path.lstat().st_size)
    try:
        line: dict[str, Any] = first_line(path)["box"]
        return replace(
            box,
            finding=str(line["finding"]),
            boot_id=str(line["boot_id"]),
            at=float(line["at"]),
            begun=float(line["from"]),
            until=float(line["until"]),
            missing=str(line["missing"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        return replace(box, missing=f"its first line cannot be read ({type(error).__name__})")


def is_repeated(failure: Failure, boxes: Sequence[Box]) -> bool:
    """Return True if one of the boxes already shows the beginning of this failure."""
    ages = ((box, failure.at.boottime - box.at) for box in boxes if box.boot_id == failure.boot_id)
    return any(0.0 <= age < (SAME_SPACING if box.finding == failure.finding else SPACING) for box, age in ages)


def superfluous(boxes: Sequence[Box], standing: Collection[str]) -> Iterator[Box]:
    """Yield the boxes to remove, never the newest: those of failures that are over first, then the oldest."""
    left = list(boxes)
    order = sorted(boxes[:-1], key=lambda box: (box.finding in standing, box.path.name))
    for box in order:
        if len(left) <= KEPT_MOST and sum(kept.size for kept in left) <= KEPT_BYTES:
            return
        left.remove(box)
        yield box
