"""The marker file, which tells other programs that gpuwarden excludes this node.

One JSON object on one line, replaced atomically and readable by all, which exists while the node is or should be
excluded:

    {"format":1,"node":"n1","actuator":"file","cause":"failure","reason":"gpuwarden: failure gpu=3 xid=79","check":"xid",
     "since":"2026-03-01T12:00:00.000Z","boot_id":"…","owner":"gpuwarden"}

`cause` is failure, termination, person or unknown; `check` is the first code of the reason, or empty. Only a file with
gpuwarden's content is overwritten or removed; in a folder writable by every user its owner must match, too.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from gpuwarden.actuators.base import ActuatorRefused, ActuatorUnavailable
from gpuwarden.base.files import replace_file
from gpuwarden.base.threads import detached
from gpuwarden.health.conditions import CONDITIONS
from gpuwarden.policy import reasons
from gpuwarden.policy.model import Intent, NodeState, Owner, Why
from gpuwarden.publish.times import rfc3339
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

FORMAT = 1
OWNER = "gpuwarden"
RESPONSE_WITHIN = 5.0
"""Time limit of a call in seconds. A hung file system costs one thread; no second one is started."""
_LARGEST = 16 << 10  # bytes; a marker has less than 1 KiB
_CAUSES = {Why.FAILURE: "failure", Why.TERMINATION: "termination", Why.OPERATOR: "person"}
_OPEN_CODES = ("dcgm_", "plugin_")
_MENDED_BY_A_PERSON = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """The content of a marker of this node."""

    why: Why
    reason: str
    since: float
    """Unix time."""
    boot_id: str

    def node_state(self, *, at: Stamp, state: str, pool: int | None) -> NodeState:
        """The state of a node that this marker excludes."""
        parsed = reasons.parse(self.reason)
        return NodeState(
            at=at,
            owner=Owner.OURS,
            why=self.why,
            reason=self.reason,
            since=self.since,
            schedulable=False,
            boot=parsed.boot if parsed else "",
            instance=parsed.instance if parsed else "",
            state=state,
            pool=pool,
        )


class MarkerFile:
    """The marker at `path` of this actuator and node. `make_folder`: create the folder.

    Each call runs in a thread and returns within RESPONSE_WITHIN even if the file system hangs. Raises ActuatorError.
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
        """Write the marker. `text`: from `marker_text`."""
        await self._thread("write", lambda: self._write(text))

    async def remove(self) -> None:
        await self._thread("remove", self._remove)

    # --- in a thread

    def _read(self) -> Marker | None:
        """Read the marker. Raises ActuatorRefused for a file that this actuator did not write."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            if not self._make_folder:
                self._path.parent.stat()  # a missing folder is an error, not "no marker"
            return None
        try:
            status = os.fstat(descriptor)
            data = os.read(descriptor, _LARGEST + 1) if stat.S_ISREG(status.st_mode) else b""
        finally:
            os.close(descriptor)
        if status.st_uid not in (0, os.geteuid()) and self._path.parent.stat().st_mode & stat.S_IWOTH:
            raise ActuatorRefused(
                f"{self._path} belongs to user {status.st_uid}, and every user may write to its folder: it is not trusted, and "
                f"is left as it is; remove it, and chmod o-w {self._path.parent}, or give {self._name} another path"
            )
        marker = parse_marker(data, actuator=self._name, node=self._node)
        if marker is None:
            raise ActuatorRefused(
                f"{self._path} is not a marker of this node, and is left as it is: remove it, or give {self._name} another path"
            )
        return marker

    def _write(self, text: str) -> None:
        self._read()
        if self._make_folder:
            self._path.parent.mkdir(mode=0o755, exist_ok=True)
            # The unit's umask removes access for other users, as which the readers run.
            self._path.parent.chmod(0o755)
        # Synced: a truncated marker after a power failure could not be attributed.
        replace_file(self._path, text, mode=0o644, synced=True)

    def _remove(self) -> None:
        if self._read() is not None:
            self._path.unlink(missing_ok=True)

    async def _thread(self, verb: str, work: Callable[[], T]) -> T:
        """Run the work in a thread. Raises ActuatorUnavailable after RESPONSE_WITHIN, or if the previous call hangs."""
        if self._working is not None and not self._working.done():
            raise ActuatorUnavailable(
                f"cannot {verb} {self._path}: an earlier call to its file system has not returned"
            )
        working = detached(f"marker-{self._name}", work)
        self._working = working
        await asyncio.wait((working,), timeout=RESPONSE_WITHIN)
        if not working.done():
            raise ActuatorUnavailable(
                f"cannot {verb} {self._path}: no response within {RESPONSE_WITHIN:g} s; does its file system hang?"
            )
        try:
            return working.result()
        except OSError as error:
            kind = ActuatorRefused if error.errno in _MENDED_BY_A_PERSON else ActuatorUnavailable
            raise kind(f"cannot {verb} {self._path}: {error.strerror}; check the folder and its permissions") from error


def marker_text(intent: Intent, *, node: str, boot_id: str, since: float) -> str:
    """Return the content of the file. `since` in Unix time."""
    parsed = reasons.parse(intent.reason)
    document = {
        "format": FORMAT,
        "node": node,
        "actuator": intent.actuator,
        "cause": "unknown" if parsed is not None and parsed.unknown else _CAUSES[intent.why],
        "reason": intent.reason,
        "check": check_of(intent.reason),
        "since": rfc3339(since),
        "boot_id": boot_id,
        "owner": OWNER,
    }
    return json.dumps(document, separators=(",", ":")) + "\n"


def check_of(reason: str) -> str:
    """The first check that a reason names; empty if it names none."""
    names = (field.split("=", 1)[0] for field in reason.removeprefix(reasons.PREFIX).split()[1:])
    return next((name for name in names if name in CONDITIONS or name.startswith(_OPEN_CODES)), "")


def parse_marker(data: bytes, *, actuator: str, node: str) -> Marker | None:
    """Parse a marker; return None unless this actuator of this node wrote it."""
    if len(data) > _LARGEST:
        return None
    try:
        document = json.loads(data)
        match document:
            case {
                "format": 1,
                "owner": "gpuwarden",
                "actuator": str(name),
                "node": str(of),
                "reason": str(reason),
                "since": str(since),
                "boot_id": str(boot),
            } if (name, of) == (actuator, node):
                parsed = reasons.parse(reason)
                moment = datetime.fromisoformat(since).timestamp()
                if parsed is None or parsed.suffix or reason != reasons.line(reason):  # not as gpuwarden writes it
                    return None
                return Marker(why=parsed.why, reason=reason, since=moment, boot_id=boot)
    except (ValueError, RecursionError, OverflowError):
        pass
    return None
