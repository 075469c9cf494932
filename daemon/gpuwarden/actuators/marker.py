"""A marker: a small file that says "this node is held out by gpuwarden", for whoever acts by reading it.

One JSON object in one line, replaced atomically, readable by all, and there only while the exclusion stands:

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
from typing import TYPE_CHECKING, Any, TypeVar

from gpuwarden.actuators.base import ActuatorRefused, ActuatorUnavailable, Counter
from gpuwarden.health.conditions import CONDITIONS
from gpuwarden.places import marker_path
from gpuwarden.policy import reasons
from gpuwarden.policy.model import Act, Census, Intent, Owner, Standing, Why
from gpuwarden.publish.times import rfc3339
from gpuwarden.schedule import detached
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.host import boot_id

if TYPE_CHECKING:  # `[file]`, `[dstack]` and `[nvhcd]` are its part of it
    from gpuwarden.config import Config

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


class MarkerActuator:
    """The marker at `path`, for this node alone.

    `over_boots` False: one of an earlier boot is void. True, for a place that outlives a boot and readers that know of none: it
    stands, as a drain in Slurm does. `make_folder`: its folder is ours to make.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        *,
        node: str,
        boot_id: str,
        counter: Counter,
        clock: Clock,
        over_boots: bool = False,
        make_folder: bool = False,
    ) -> None:
        self.name = name
        self._path = path
        self._node = node
        self._boot_id = boot_id
        self._counter = counter
        self._clock = clock
        self._over_boots = over_boots
        self._make_folder = make_folder
        self._working: asyncio.Future[Any] | None = None

    async def look(self) -> Standing:
        marker = await self._thread("read", self._read)
        at = self._clock()
        if marker is None or (marker.boot_id != self._boot_id and not self._over_boots):
            return Standing(at=at, state="no marker", pool=self._counter.pool)
        told = reasons.parse(marker.reason)
        return Standing(
            at=at, owner=Owner.OURS, why=marker.why, reason=marker.reason, since=marker.since, schedulable=False,
            boot=told.boot if told else "", instance=told.instance if told else "", state="marked",
            pool=self._counter.pool,
        )  # fmt: skip

    async def census(self) -> Census:
        return await self._counter.census()

    async def apply(self, intent: Intent, standing: Standing) -> None:  # noqa: ARG002 - read once more in the thread
        if intent.act is Act.EXCLUDE:
            text = marker_text(intent, node=self._node, boot_id=self._boot_id, since=self._clock().wall)
            await self._thread("write", lambda: self._write(text))
        else:
            await self._thread("remove", self._remove)

    async def close(self) -> None:
        """Nothing runs but a thread whose file system hangs."""

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
                f"is left as it is; remove it, and chmod o-w {self._path.parent}, or give {self.name} another place"
            )
        marker = parse_marker(data, actuator=self.name, node=self._node)
        if marker is None:
            raise ActuatorRefused(
                f"{self._path} is no marker of this node, and is left as it is: remove it, or give {self.name} another place"
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
        working = detached(f"marker-{self.name}", work)
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
        match json.loads(data):
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


def marker_actuators(config: Config, clock: Clock, counter: Counter) -> list[MarkerActuator]:
    """For the registry."""
    boot = boot_id(config.paths.proc)
    found = [
        MarkerActuator(
            name, marker_path(config.run.dir, name), node=config.node, boot_id=boot, counter=counter, clock=clock,
            make_folder=True,
        )
        for name, enabled in (("dstack", config.dstack.enabled), ("nvhcd", config.nvhcd.enabled))
        if enabled
    ]  # fmt: skip
    if config.file.path is not None:
        found.append(
            MarkerActuator(
                "file", config.file.path, node=config.node, boot_id=boot, counter=counter, clock=clock, over_boots=True,
            )
        )  # fmt: skip
    return found
