r"""Mounts: whether they exist, how full they are, and whether they respond.

Reading a file system whose server is gone hangs in the kernel, sometimes so that not even SIGKILL ends it. Therefore a
separate process probes each mount: coreutils' `stat -f`, about a millisecond of work. A thread would be cheaper, but a
hung thread would keep the daemon from exiting, and the next daemon needs its port and its ledger. A probe that does
not answer in time keeps running, no second one is started for the same mount, and its age is the time for which the
mount has hung; it exits when the mount responds again.

The list of mounts comes from this process's own mount table, whose paths a probe can use. In a pod it comes from the
table of the host's process 1, and a probe uses the same path below the folder where the host's root is mounted (not
/proc/1/root, which needs CAP_SYS_PTRACE). A mount that is not propagated into the pod is not probed: the answer would
be that of the underlying file system. Whether a file system is read-only comes from its superblock, because in a
sandboxed service the options of every mount are `ro`.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpuwarden_collectors.base import Clock, CollectorError, host_clock
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.host_facts import MountFacts, StorageFacts
from gpuwarden_collectors.mount_table import MountEntry, mount_table
from gpuwarden_collectors.options import Misfit, PolledOptions, bounded
from gpuwarden_collectors.spec import CollectorSpec

WATCHED = frozenset(
    """
    ext2 ext3 ext4 xfs btrfs zfs f2fs bcachefs nfs nfs4 lustre gpfs beegfs ceph wekafs panfs pvfs2 cifs smb3 9p
    virtiofs ocfs2 gfs2 fuse.glusterfs fuse.juicefs fuse.ceph-fuse fuse.gcsfuse fuse.s3fs fuse.mount-s3""".split()
)
"""Types of file systems with data. Others belong to the kernel or to users, or are images that are always full."""
WATCHED_PATHS = frozenset(("/", "/dev/shm", "/tmp", "/run"))  # noqa: S108 - read, whatever its type; nothing is written
_DENIED = ("Permission denied", "Operation not permitted")
_ANSWER = 2048  # bytes of an answer that are read
_NUMBER = re.compile(r"-?\d{1,20}", re.ASCII)
_FORMAT = "%S %b %f %a %c %d"  # block size; blocks total, free, available; inodes total, free
_Key = tuple[int, str]  # the kernel's id of a mount, and its path


@dataclass(frozen=True, slots=True)
class StorageOptions(PolledOptions):
    """Mounts of the host."""

    deadline: float = bounded(20.0, 0.1, 60.0)
    patience: float = bounded(5.0, 0.1, 60.0)
    """How long a mount may take to respond before it counts as hung. Shorter than `deadline`."""
    expected: tuple[str, ...] = ()
    """Mount points that must be mounted."""

    def misfits(self) -> Iterator[Misfit]:
        if self.patience >= self.deadline:
            configured = f"{self.patience:g}s beside {self.deadline:g}s"
            message = f"expected patience to be shorter than deadline, found {configured}: one mount that hangs must not hide the others"
            yield ("patience", "deadline"), message
        for path in self.expected:
            if not path.startswith("/") or "\0" in path:
                yield ("expected",), f"expected absolute paths, found {path[:60]!r}"


class StorageCollector:
    """Reads `<proc>/self/mountinfo`, and probes the mounts in `expected`, and each other file system once.

    `root`: where the host's root is mounted; then it reads `<proc>/1/mountinfo`, and paths are the host's.

    `patience`: seconds in which all new probes of a pass must answer; after that a mount counts as hung. `max_mounts`
    limits the mounts that are not expected.
    """

    def __init__(
        self,
        proc: Path,
        *,
        root: Path | None = None,
        expected: Sequence[str] = (),
        command: Sequence[str] = ("stat",),
        patience: float = 5.0,
        max_mounts: int = 64,
        clock: Clock = host_clock,
    ) -> None:
        self._proc = proc
        self._root = root
        self._expected = tuple(dict.fromkeys(path.rstrip("/") or "/" for path in expected))
        self._command = command
        self._patience = patience
        self._max_mounts = max_mounts
        self._clock = clock
        self._probes: dict[tuple[int, str], _Probe] = {}
        self._closed = False

    def read(self) -> StorageFacts:
        """Probes the mounts and returns them by path, the expected ones first. Takes up to `patience` seconds.

        Raises SourceAbsent without a mount table, CollectorError if the table or the probe command cannot be used.
        """
        table, unseen = self._tables()
        wanted = [*(self._expected_mount(path, table) for path in self._expected), *self._others(table)]
        wanted = [
            (replace(facts, asked=False), None) if facts.path in unseen else (facts, key) for facts, key in wanted
        ]
        for facts, key in wanted:
            self._ask(self._seen_at(facts.path), key)
        self._wait()
        mounts = tuple(self._answered(facts, key) for facts, key in wanted)
        self._forget({key for _, key in wanted})
        return StorageFacts(mounts=tuple(self._permitted(mounts)))

    def _permitted(self, mounts: Iterable[MountFacts]) -> Iterator[MountFacts]:
        """Yields the mounts. Marks those that this process may not access as not probed: a denial is no failure.

        An expected mount in this process's own table keeps the error. Raises CollectorError if access to the host's
        root is denied.
        """
        for mount in mounts:
            if mount.error not in _DENIED or (self._root is None and mount.expected):
                yield mount
            elif self._root is not None and mount.path == "/":
                raise CollectorError(
                    f"cannot ask the mounts of the host at {self._root}: {mount.error}; where SELinux denies it (ausearch -m avc), let the pod run "
                    "as spc_t (podSecurityContext.seLinuxOptions.type of the chart)"
                )
            else:
                yield replace(mount, error="", asked=False)

    def close(self) -> None:
        """Kills the hung probes and prevents new ones. Takes up to `patience` seconds.

        A probe that cannot be killed remains and may have exited by the next call. May be called while another thread
        reads; that pass may then fail.
        """
        self._closed = True
        for probe in list(self._probes.values()):
            probe.kill()
        self._wait()
        self._forget(set())

    def unseen(self) -> frozenset[str]:
        """Returns the host's mounts that are not propagated below `root`. Raises the same errors as `read`."""
        return self._tables()[1]

    def _tables(self) -> tuple[dict[str, MountEntry], frozenset[str]]:
        """Returns the mounts by path, and which of them cannot be probed."""
        own = mount_table(self._proc / "self/mountinfo")
        if self._root is None:
            return own, frozenset()
        table = mount_table(self._proc / "1/mountinfo")
        if "/" in own and "/" in table and own["/"].mount == table["/"].mount:
            raise CollectorError(
                "cannot read the mounts of the host: process 1 is in this container; let the pod share the host's processes (hostPID "
                "of the chart), or unset paths.host"
            )
        if str(self._root) not in own:
            raise CollectorError(
                f"cannot read the mounts of the host: nothing is mounted at {self._root} (paths.host); mount its / there, read-only and with "
                "HostToContainer (hostMounts.enabled of the chart)"
            )
        return table, frozenset(path for path, entry in table.items() if not _same(own.get(self._seen_at(path)), entry))

    def _seen_at(self, path: str) -> str:
        return path if self._root is None else f"{self._root}{path.rstrip('/')}"

    def _expected_mount(self, path: str, table: Mapping[str, MountEntry]) -> tuple[MountFacts, _Key | None]:
        entry = table.get(path)
        if entry is not None and entry.type != "autofs":
            return replace(_facts(entry), expected=True), (entry.mount, path)
        above = max((p for p in table if path == p or path.startswith(f"{p.rstrip('/')}/")), key=len, default="")
        automount = above in table and table[above].type == "autofs"
        return MountFacts(path=path, expected=True, mounted=False, automount=automount), None

    def _others(self, table: Mapping[str, MountEntry]) -> list[tuple[MountFacts, _Key | None]]:
        """Selects the mount with the shortest path for each file system: bind mounts and containers repeat it."""
        seen = {table[path].device for path in self._expected if path in table}
        chosen: dict[str, MountEntry] = {}
        for entry in sorted(table.values(), key=lambda entry: (len(entry.path), entry.path)):
            watched = entry.type in WATCHED or (entry.path in WATCHED_PATHS and entry.type != "autofs")
            if watched and entry.device not in seen and len(chosen) < self._max_mounts:
                seen.add(entry.device)
                chosen[entry.path] = entry
        return [(_facts(entry), (entry.mount, path)) for path, entry in sorted(chosen.items())]

    def _ask(self, path: str, key: _Key | None) -> None:
        room = 2 * (self._max_mounts + len(self._expected))
        if key is None or key in self._probes or len(self._probes) >= room or self._closed:
            return
        try:
            self._probes[key] = _Probe((*self._command, "-f", "-c", _FORMAT, "--", path), self._clock().boottime)
        except OSError as error:
            raise CollectorError(
                f"cannot ask the mounts: {self._command[0]} does not start: {error.strerror}; install GNU coreutils"
            ) from error

    def _wait(self) -> None:
        """Waits for the probes of this pass, but not for those that have hung since an earlier pass."""
        deadline = time.monotonic() + self._patience
        for probe in list(self._probes.values()):
            probe.wait(max(0.0, deadline - time.monotonic()))

    def _answered(self, facts: MountFacts, key: _Key | None) -> MountFacts:
        if key is None:
            return facts
        probe = self._probes.get(key)
        if probe is None:
            return replace(facts, asked=False)
        answer = probe.answer()
        if answer is None:
            return replace(facts, hung_for=max(0.0, self._clock().boottime - probe.started))
        del self._probes[key]
        return _with_answer(facts, *answer)

    def _forget(self, here: set[_Key | None]) -> None:
        """Drops exited probes whose mount is gone."""
        for key, probe in list(self._probes.items()):
            if key not in here and probe.answer() is not None:
                self._probes.pop(key, None)


def _same(seen: MountEntry | None, entry: MountEntry) -> bool:
    return seen is not None and seen.device == entry.device


class _Probe:
    """One process that probes one mount. Raises OSError if it cannot be started."""

    def __init__(self, command: Sequence[str], started: float) -> None:
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
        null, pipe, same = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
        self._process = subprocess.Popen(command, stdin=null, stdout=pipe, stderr=same, env=environment, cwd="/")  # noqa: S603 - our own
        self._waited = False
        self.started = started

    def wait(self, seconds: float) -> None:
        """Waits for the probe; later calls return at once."""
        if not self._waited:
            self._waited = True
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)

    def answer(self) -> tuple[int, str] | None:
        """Returns the probe's exit code and output, once; None while it runs."""
        pipe = self._process.stdout
        if self._process.poll() is None or pipe is None:
            return None
        with pipe:
            os.set_blocking(pipe.fileno(), False)
            return self._process.returncode, (pipe.read(_ANSWER) or b"").decode("utf-8", "replace").strip()

    def kill(self) -> None:
        self._process.kill()
        self._waited = False


def _facts(entry: MountEntry) -> MountFacts:
    return MountFacts(path=entry.path, type=entry.type, source=entry.source[:200], read_only=entry.read_only)


def _with_answer(facts: MountFacts, code: int, output: str) -> MountFacts:
    numbers = output.split()
    if code != 0 or len(numbers) != 6 or not all(map(_NUMBER.fullmatch, numbers)):
        why = output.rpartition(": ")[2] if code > 0 else ""  # `stat: cannot …: Stale file handle`
        return replace(facts, error=why[:200] or f"the probe ended with {code}")
    block, total, free, available, inodes, inodes_free = map(int, numbers)
    return replace(
        facts,
        bytes_total=_known(total, block),
        bytes_free=_known(free, block),
        bytes_available=_known(available, block),
        inodes_total=_known(inodes),
        inodes_free=_known(inodes_free),
    )


def _known(count: int, size: int = 1) -> int | None:
    """Returns `count` * `size`, or None if the file system does not count it: CephFS reports -1 free inodes."""
    return count * size if count >= 0 else None


SPEC = CollectorSpec(
    facts=StorageFacts,
    options=StorageOptions,
    reader=lambda host, of: StorageCollector(
        host.proc, root=host.root, expected=of.expected, patience=of.patience, clock=host.clock
    ),
    source="the mount table; space and inodes of each mount",
    limits="a process for each mount, since it may hang; one at a time for each mount",
)
