"""A marker: a small file that says "this node is held out by gpuwarden", for whoever acts by reading it.

One JSON object in one line, replaced atomically, readable by all, and there only while the exclusion stands, or was to:

    {"format":1,"node":"n1","actuator":"file","cause":"failure","reason":"gpuwarden: failure gpu=3 xid=79","check":"xid",
     "since":"2026-03-01T12:00:00.000Z","boot_id":"…","owner":"gpuwarden"}

`cause` is failure, termination, person or unknown; `check` the first code of the reason, empty if it has none. A file is ours by
what is in it, and only then written over or removed; where anybody may write to its folder, by its owner too.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from gpuwarden.actuators.base import ActuatorRefused, ActuatorUnavailable
from gpuwarden.base.threads import detached
from gpuwarden.health.conditions import CONDITIONS
from gpuwarden.policy import reasons
from gpuwarden.policy.model import Intent, Owner, Standing, Why
from gpuwarden.publish.times import rfc3339
from gpuwarden_collectors.facts import Stamp

FORMAT = 1
OWNER = "gpuwarden"
ANSWERS_WITHIN = 5.0
"""Seconds; a file system that hangs costs one thread, and no second one is begun beside it."""
_LARGEST = 16 << 10  # bytes; ours have less than 1 KiB
_UNKNOWN = f"{reasons.PREFIX}{Why.FAILURE} unknown="
_CAUSES = {Why.FAILURE: "failure", Why.TERMINATION: "termination", Why.OPERATOR: "person"}
_OPEN_CODES = ("dcgm_", "plugin_")
_MENDED_BY_A_PERSON = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """What a marker of this node says. `since` in Unix time."""

    why: Why
    reason: str
    since: float
    boot_id: str

    def standing(self, *, at: Stamp, state: str, pool: int | None) -> Standing:
        """That of a node which it holds out."""
        told = reasons.parse(self.reason)
        return Standing(
            at=at, owner=Owner.OURS, why=self.why, reason=self.reason, since=self.since, schedulable=False,
            boot=told.boot if told else "", instance=told.instance if told else "", state=state, pool=pool,
        )  # fmt: skip


class MarkerFile:
    """The marker at `path`, of this actuator and node alone. `make_folder`: its folder is ours to make.

    Each call is made in a thread, and ends within ANSWERS_WITHIN whatever its file system does. Raises ActuatorError.
    """

    def __init__(self, name: str, path: Path, *, node: str, make_folder: bool = False) -> None:
        self._name = name
        self._path = path
        self._node = node
        self._make_folder = make_folder
        self._working: asyncio.Future[Any] | None = None

    async def read(self) -> Marker | None:
        return await self._thread("read", self._read)

    async def write(self, text: str) -> None:
        """`text` as of `marker_text`."""
        await self._thread("write", lambda: self._write(text))

    async def remove(self) -> None:
        await self._thread("remove", self._remove)

    # --- in a thread

    def _read(self) -> Marker | None:
        """Raises ActuatorRefused for what is not ours."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            if not self._make_folder:
                self._path.parent.stat()  # a folder that is gone says nothing of what stands in it
            return None
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            data = file.read(_LARGEST + 1) if stat.S_ISREG(status.st_mode) else b""
        if status.st_uid not in (0, os.geteuid()) and self._path.parent.stat().st_mode & stat.S_IWOTH:
            raise ActuatorRefused(
                f"{self._path} belongs to user {status.st_uid}, and anybody may write to its folder: it counts for nothing, and "
                f"is left as it is; remove it, and chmod o-w {self._path.parent}, or give {self._name} another place"
            )
        marker = parse_marker(data, actuator=self._name, node=self._node)
        if marker is None:
            raise ActuatorRefused(
                f"{self._path} is no marker of this node, and is left as it is: remove it, or give {self._name} another place"
            )
        return marker

    def _write(self, text: str) -> None:
        self._read()
        if self._make_folder:
            self._path.parent.mkdir(mode=0o755, exist_ok=True)
            # The unit's umask closes it, and whoever answers by the marker has another user.
            self._path.parent.chmod(0o755)
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()  # left by an earlier process of this number; made anew, since it could be anybody's
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                os.fchmod(descriptor, 0o644)
                file.write(text)
                file.flush()
                os.fsync(descriptor)  # half a marker after a power cut would be nobody's
            temporary.replace(self._path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise

    def _remove(self) -> None:
        if self._read() is not None:
            self._path.unlink(missing_ok=True)

    async def _thread(self, verb: str, work: Callable[[], T]) -> T:
        """Raises ActuatorError."""
        if self._working is not None and not self._working.done():
            raise ActuatorUnavailable(f"cannot {verb} {self._path}: its file system has not answered an earlier call")
        working = detached(f"marker-{self._name}", work)
        self._working = working
        await asyncio.wait((working,), timeout=ANSWERS_WITHIN)
        if not working.done():
            raise ActuatorUnavailable(
                f"cannot {verb} {self._path}: no answer within {ANSWERS_WITHIN:g} s; does its file system hang?"
            )
        try:
            return working.result()
        except OSError as error:
            kind = ActuatorRefused if error.errno in _MENDED_BY_A_PERSON else ActuatorUnavailable
            raise kind(f"cannot {verb} {self._path}: {error.strerror}; check the folder and its permissions") from error


def marker_text(intent: Intent, *, node: str, boot_id: str, since: float) -> str:
    """The whole file. `since` in Unix time."""
    unknown = intent.reason.startswith(_UNKNOWN)
    document = {
        "format": FORMAT, "node": node, "actuator": intent.actuator,
        "cause": "unknown" if unknown else _CAUSES[intent.why], "reason": intent.reason, "check": check_of(intent.reason),
        "since": rfc3339(since), "boot_id": boot_id, "owner": OWNER,
    }  # fmt: skip
    return json.dumps(document, separators=(",", ":")) + "\n"


def check_of(reason: str) -> str:
    """The first check that a reason of ours names; empty if it names none."""
    words = (word.split("=", 1)[0] for word in reason.removeprefix(reasons.PREFIX).split()[1:])
    return next((word for word in words if word in CONDITIONS or word.startswith(_OPEN_CODES)), "")


def parse_marker(data: bytes, *, actuator: str, node: str) -> Marker | None:
    """None for what this actuator of this node did not write."""
    if len(data) > _LARGEST:
        return None
    try:
        found = json.loads(data)
        match found:
            case {
                "format": 1, "owner": "gpuwarden", "actuator": str(name), "node": str(of), "reason": str(reason),
                "since": str(since), "boot_id": str(boot),
            } if (name, of) == (actuator, node):  # fmt: skip
                told = reasons.parse(reason)
                moment = datetime.fromisoformat(since).timestamp()
                if told is None or told.suffix or reason != reasons.line(reason):  # which no text of ours is
                    return None
                return Marker(why=told.why, reason=reason, since=moment, boot_id=boot)
    except (ValueError, RecursionError, OverflowError):
        pass
    return None
