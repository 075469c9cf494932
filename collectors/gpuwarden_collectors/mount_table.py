"""The mount table of this process (proc(5), mountinfo), line by line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from gpuwarden_collectors.base import CollectorError, SourceAbsent
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.host_files import read_bytes

_TABLE = 16 << 20  # bytes: more than 50,000 mounts
_ESCAPE = re.compile(rb"\\([0-3][0-7]{2})")
_NO_WRITES = frozenset((b"ro", b"emergency_ro", b"shutdown"))
"""The last two: ext4 after an error or the loss of its disk, not shown as `ro` since Linux 6.15 (fs/ext4/super.c)."""

_UPPER = b"upperdir="
_IN_MEMORY = ("tmpfs", "ramfs", "rootfs")


@dataclass(frozen=True, slots=True)
class MountEntry:
    """One mount. `mount` and `device` are the kernel's ids.

    `read_only`: the file system itself rejects writes, regardless of mount options. `upper`: the upper folder of an
    overlay, "" for other file systems.
    """

    mount: int
    device: str
    path: str
    type: str
    source: str
    read_only: bool
    upper: str = ""


def mount_table(mountinfo: Path) -> dict[str, MountEntry]:
    """Returns the mounts by path; for several on one path the last, which covers the others.

    Raises SourceAbsent if there is no such table and CollectorError if it cannot be read.
    """
    try:
        table = read_bytes(mountinfo, _TABLE + 1)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SourceAbsent(f"no mount table: {mountinfo} does not exist") from error
    except OSError as error:
        raise CollectorError(f"cannot read {mountinfo}: {error.strerror}; let gpuwarden read /proc") from error
    if len(table) > _TABLE:
        raise CollectorError(f"cannot take the mounts: {mountinfo} is longer than {_TABLE >> 20} MiB")
    return {entry.path: entry for line in table.split(b"\n") if (entry := _entry(line)) is not None}


def mount_of(path: Path, table: Mapping[str, MountEntry]) -> MountEntry | None:
    """Returns the mount that contains this path, which must be absolute and without symbolic links."""
    return next((table[str(folder)] for folder in (path, *path.parents) if str(folder) in table), None)


def in_memory(path: Path, mountinfo: Path) -> str:
    """Returns the type of the in-memory file system that contains this path, which a boot empties; "" if it is on
    another one or unknown. `path` as of `mount_of`.
    """
    try:
        table = mount_table(mountinfo)
    except CollectorError:
        return ""
    mount = mount_of(path, table)
    if mount is None:
        return ""
    if mount.type == "overlay" and (below := mount_of(Path(mount.upper), table)) is not None:
        return f"overlay on {below.type}" if below.type in _IN_MEMORY else ""
    return mount.type if mount.type in _IN_MEMORY else ""


def _entry(line: bytes) -> MountEntry | None:
    """Parses `36 35 98:0 /root /path options [tag…] - type source superoptions`; returns None for another form."""
    left, _, right = line.partition(b" - ")
    fields, (kind, source, options) = left.split(b" "), (*right.split(b" "), b"", b"", b"")[:3]
    if len(fields) < 6 or not kind or not fields[0].isdigit():
        return None
    return MountEntry(
        mount=int(fields[0][:18]),
        device=fields[2].decode("ascii", "replace"),
        path=_unescaped(fields[4]),
        type=kind.decode("ascii", "replace"),
        source=_unescaped(source),
        read_only=not _NO_WRITES.isdisjoint(options.split(b",")),
        upper=next((_unescaped(word[len(_UPPER) :]) for word in options.split(b",") if word.startswith(_UPPER)), ""),
    )


def _unescaped(field: bytes) -> str:
    r"""Decodes the octal escapes (`\040`) of space, tab, newline and backslash. Invalid UTF-8 stays escaped."""
    plain = _ESCAPE.sub(lambda match: bytes((int(match[1], 8),)), field)
    return plain.decode("utf-8", "backslashreplace")
