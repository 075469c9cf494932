"""Identifies who asks through the job socket, and the jobs that this process may see.

    a process in a container       the container that it is in, or the pod of that, and no other
    a process in a job of Slurm    this job while it runs, and those of its user
    any other process              those of its user; as root none, since root has the control socket

In a container a uid identifies nobody: root of one is root of the other. So root sees no job by its uid, and nobody
sees a container or pod by uid. Slurm reuses job numbers: an ended job of the same number may be another user's.
"""

from __future__ import annotations

from pathlib import Path

from gpuwarden.features.why.model import Epoch, JobKind, Record
from gpuwarden.features.why.names import CONTAINER_ID
from gpuwarden.publish.sockets.jobs import Caller
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.control_groups import RootFolders
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.host_files import read_text
from gpuwarden_collectors.places import slurm_name
from gpuwarden_collectors.process_stat import process_stat
from gpuwarden_collectors.receivers.cgroups import group_in

_FOLDERS_FOR = 10.0
"""Seconds for which the folders are not read again."""
_GROUPS_MOST = 64 * 1024  # bytes; a host has a dozen v1 hierarchies


_BY_USER = frozenset({JobKind.SLURM, JobKind.SESSION})
"""Kinds of jobs whose uid is one of this host."""


@dataclass(frozen=True, slots=True)
class Asker:
    """A process that asks."""

    own: str = ""
    """Name of the job or container that it belongs to; empty if it belongs to none."""
    uid: int | None = None
    """The user whose jobs it may see; None: only its own job."""

    def may(self, epoch: Epoch, record: Record | None) -> bool:
        return self.has_own(epoch, record) or self._is_of_its_user(epoch)

    def has_own(self, epoch: Epoch, record: Record | None) -> bool:
        own = bool(self.own) and self.own in (epoch.name, *epoch.also)
        return own and (record is None or epoch.kind != JobKind.SLURM or self._is_of_its_user(epoch))

    def _is_of_its_user(self, epoch: Epoch) -> bool:
        return self.uid is not None and epoch.uid == self.uid and epoch.kind in _BY_USER


NOBODY = Asker()
"""Stands for a process that this host cannot see."""


class Folders:
    """Cache of the cgroup folders that belong to root, read again after `_FOLDERS_FOR`: mount tables may be long."""

    def __init__(self, proc: Path, clock: Clock) -> None:
        self._proc, self._clock = proc, clock
        self._made = float("-inf")
        self._folders: RootFolders | None = None

    def now(self) -> RootFolders:
        """Return the folders, read again if due. Blocks for some milliseconds."""
        now = self._clock().boottime
        if self._folders is None or now - self._made > _FOLDERS_FOR:
            self._folders, self._made = RootFolders(self._proc), now
        return self._folders


def asker(proc: Path, caller: Caller, folders: RootFolders) -> Asker:
    """Identify a caller from /proc. Takes no lock of the process, so that it cannot hang with it."""
    if caller.pid <= 0:
        return NOBODY
    try:
        group = group_in(read_text(proc / str(caller.pid) / "cgroup", _GROUPS_MOST), folders)
    except OSError:
        return NOBODY
    stat = process_stat(proc, caller.pid)
    if stat is None or stat.started != caller.started:  # the PID was reused
        return NOBODY
    if group.container:
        return Asker(own=f"{JobKind.CONTAINER}/{group.container[:CONTAINER_ID]}")
    own = slurm_name(group.job, group.sluid) if group.job is not None or group.sluid else ""
    return Asker(own, caller.uid or None)
