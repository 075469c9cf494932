"""Which control groups count as those of a container or of Slurm: those at their place, in folders that are root's.

A name alone proves nothing. Who has a group of their own (a user's systemd, a service or container with delegation) makes
folders of any name in it, `docker-<id>.scope` and `slurmstepd.scope/job_7` too. Root alone makes those at these places:

    docker, podman, containerd, cri-o with systemd      any number of slices, then docker-<id>.scope, libpod-<id>.scope,
                                                        cri-containerd-<id>.scope, crio-<id>.scope, nerdctl-<id>.scope
    the same with cgroupfs                              /docker/<id>, /libpod_parent/libpod-<id>, /kubepods/burstable/pod<uid>/<id>
    kubelet for systemd, containerd for cgroupfs        /system.slice/containerd.service/kubepods….slice:cri-containerd:<id>

and those of a pod by kubelet, below none of a service or scope but a container's: kubelet may itself be in one, and its groups in any folder.

systemd delegates services and scopes, never slices. An id is 64 hexadecimal digits. `libpod-conmon-<id>.scope` and
`crio-conmon-<id>.scope` hold the monitor of a container, outside of it.

In a cgroup namespace of its own the daemon sees paths that begin with as many `/..` as there are steps to the next folder
that both have above them, and the names down to there are missing: all of these are above the daemon itself.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuwarden_collectors.host_files import read_text

_TABLE_MOST = 4 << 20  # bytes; hosts of many containers have tens of thousands of mounts
_ID = r"[0-9a-f]{64}"
SLICES = r"(?:/[^/]+\.slice)*"
_SCOPE = rf"{SLICES}/(?:docker|libpod|cri-containerd|crio|nerdctl)-({_ID})\.scope"
_PODMAN = rf"/libpod_parent(?:/{_ID})?/libpod-({_ID})"
_FOLDERS = "(?:/(?:docker|kubelet|kubepods|burstable|besteffort|pod[^/.]+|ecs(?:/[^/.]+){1,2}|k8s\\.io|default))*"
_FOLDER = rf"{_FOLDERS}/(?:crio-)?({_ID})"
_RUNTIMES = r"(?:containerd|crio|k3s(?:-agent)?|k0s(?:worker|controller)|rke2-(?:server|agent)|kubelet|docker)\.service"
_COLONS = rf"{SLICES}(?:/{_RUNTIMES})?/kubepods[^/:]*:(?:cri-containerd|crio):({_ID})"
_ABOVE_PODS = r"(?:/(?![^/]*\.(?:service|scope)(?:/|$))[^/:]+)*"
_POD = re.compile(rf"{_ABOVE_PODS}(?:/{_RUNTIMES})?/(?:[^/:]*-)?pod([0-9A-Za-z_-]+)(?:\.slice)?(?::[^/]+)?(?=/|$)")
_CONTAINER = re.compile(rf"(?:{_SCOPE}|{_PODMAN}|{_FOLDER}|{_COLONS})(?=/|$)")
_UPWARDS = re.compile(r"(?:/\.\.)+(?=/|$)")


@dataclass(frozen=True, slots=True)
class GroupLine:
    """One line of /proc/PID/cgroup: `controllers` of version 1 (or `name=systemd`), empty for version 2."""

    controllers: str
    path: str


@dataclass(frozen=True, slots=True)
class ContainerPlace:
    """A container's folder: its id, and the length of the path to it."""

    container: str
    end: int


def lines(text: str) -> Iterator[GroupLine]:
    """Parses the content of /proc/PID/cgroup; skips lines of another form."""
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if number.isdecimal() and colon and path.startswith("/"):
            yield GroupLine(controllers, path)


def place_begins(path: str) -> int:
    """Returns the offset at which the names of a path begin, after the `/..` of a cgroup namespace."""
    upwards = _UPWARDS.match(path)
    return upwards.end() if upwards else 0


def container_at(path: str, begin: int) -> ContainerPlace | None:
    """The container whose folder is at its place below the first `begin` characters; None if there is none."""
    match = _CONTAINER.match(path, begin)
    return None if match is None else ContainerPlace(next(filter(None, match.groups())), match.end())


@dataclass(frozen=True, slots=True)
class PodPlace:
    """A pod's folder: its UID as Kubernetes writes it, and the length of the path to it."""

    uid: str
    end: int


def pod_at(path: str, begin: int) -> PodPlace | None:
    """The pod whose folder is at its place below the first `begin` characters, or below a container there; None if there is none."""
    while (match := _POD.match(path, begin)) is None:
        container = container_at(path, begin)
        if container is None:
            return None
        begin = container.end
    return PodPlace(match[1].replace("_", "-"), match.end())


@dataclass(frozen=True, slots=True)
class _Mount:
    """A mounted hierarchy, or a part of it: `root` is its folder there, as seen from our cgroup namespace."""

    point: str
    root: str
    controllers: frozenset[str] | None
    """And other options; None for version 2."""

    def has(self, line: GroupLine) -> bool:
        if self.controllers is None or not line.controllers:
            return self.controllers is None and not line.controllers
        return self.controllers.issuperset(line.controllers.split(","))


class RootFolders:
    """Says whether folders of the cgroup file systems are root's. For one scan: the answers are kept.

    `proc`: its `self/mountinfo` says where they are mounted. A folder in no mount here (a container often has none but its own)
    cannot be looked at: then its place alone counts.
    """

    def __init__(self, proc: Path) -> None:
        self._mounts = _mounts(proc)
        self._answers: dict[str, bool] = {}

    def are_roots(self, line: GroupLine, end: int) -> bool:
        """True if all folders in the first `end` characters of the path are root's, or cannot be seen from here."""
        for mount in self._mounts:
            below = _below(line.path[:end], mount.root) if mount.has(line) else None
            if below is not None:
                return self._are_roots(mount.point, below)
        return True

    def _are_roots(self, point: str, below: str) -> bool:
        folder = point
        for name in below.split("/")[1:]:
            folder = f"{folder}/{name}"
            if folder not in self._answers:
                self._answers[folder] = _is_roots(folder)
            if not self._answers[folder]:
                return False
        return True


def _is_roots(folder: str) -> bool:
    try:
        found = os.lstat(folder)
    except OSError:  # it is gone, and whoever was in it
        return False
    others = stat.S_IWOTH if found.st_gid == 0 else stat.S_IWOTH | stat.S_IWGRP
    return found.st_uid == 0 and stat.S_ISDIR(found.st_mode) and not found.st_mode & others


def _below(path: str, root: str) -> str | None:
    """The rest of `path` below `root`, None if it is elsewhere. Both begin with the `/..` of our cgroup namespace, if any."""
    root = root.rstrip("/")
    if not path.startswith(root):
        return None
    below = path[len(root) :]
    elsewhere = below not in ("", "/") and (not below.startswith("/") or below.startswith("/../") or below == "/..")
    return None if elsewhere else below.rstrip("/")


def _mounts(proc: Path) -> tuple[_Mount, ...]:
    try:
        table = read_text(proc / "self/mountinfo", _TABLE_MOST)
    except OSError:
        return ()
    return tuple(mount for line in table.splitlines() if (mount := _mount(line)) is not None)


def _mount(line: str) -> _Mount | None:
    """Parses a line of mountinfo; returns None unless it is a cgroup file system that no other mount covers."""
    left, _, right = line.partition(" - ")
    fields, kind = left.split(), right.split()
    if len(fields) < 6 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
        return None
    try:
        device = Path(fields[4]).stat().st_dev
    except OSError:
        return None
    if f"{os.major(device)}:{os.minor(device)}" != fields[2]:
        return None
    return _Mount(fields[4], fields[3], frozenset(kind[2].split(",")) if kind[0] == "cgroup" else None)
