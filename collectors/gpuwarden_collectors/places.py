"""The paths of the control groups of jobs, containers and pods. Pure.

A name alone proves nothing: the owner of a delegated group (a user's systemd, a service, a container) can create
folders of any name in it, such as `docker-<id>.scope` or `slurmstepd.scope/job_7`. Only root can create these paths:

    Slurm, v1                                           /slurm/uid_1001/job_4711/step_0/task_3 (slurm_NODE with several slurmd on one host)
    v2                                                  /system.slice/slurmstepd.scope/job_4711/step_batch/user/task_0 (NODE_slurmstepd.scope)
    26.05                                               /system.slice/slurmstepd.scope/s5K1P9VPN8R8C00/step_0/user/task_0 (unless CgroupJobIdPaths=yes)
    docker, podman, containerd, cri-o with systemd      any number of slices, then docker-<id>.scope, libpod-<id>.scope,
                                                        cri-containerd-<id>.scope, crio-<id>.scope, nerdctl-<id>.scope
    the same with cgroupfs                              /docker/<id>, /libpod_parent/libpod-<id>, /kubepods/burstable/pod<uid>/<id>
    kubelet for systemd, containerd for cgroupfs        /system.slice/containerd.service/kubepods….slice:cri-containerd:<id>

and kubelet's groups of pods, which may be in any folder, but not below a service or scope, except a container's:
kubelet itself may run in a container.

systemd delegates services and scopes, never slices. An id has 64 hexadecimal digits. `libpod-conmon-<id>.scope` and
`crio-conmon-<id>.scope` contain the monitor of a container, which is not part of the container.

In its own cgroup namespace the daemon sees paths that begin with one `/..` per level up to the nearest common folder.
The names of the folders down to that one, which also contain the daemon, are missing.
"""

from __future__ import annotations

import re

from gpuwarden_collectors.dataclass import dataclass

_ID = r"[0-9a-f]{64}"
_SLUID = r"s[0-9A-Za-z]{6,24}"
_SLICES = r"(?:/[^/]+\.slice)*"
_SLURM = re.compile(
    r"/slurm(?:_[^/]+)?/uid_(?P<owner>\d{1,10})/job_(?P<v1>\d{1,10})(?=/|$)"
    rf"|{_SLICES}/(?:[^/]*_)?slurmstepd\.scope/(?:job_(?P<v2>\d{{1,10}})|(?P<sluid>{_SLUID}))(?=/|$)"
)
_SCOPE = rf"{_SLICES}/(?:docker|libpod|cri-containerd|crio|nerdctl)-({_ID})\.scope"
_PODMAN = rf"/libpod_parent(?:/{_ID})?/libpod-({_ID})"
_FOLDERS = "(?:/(?:docker|kubelet|kubepods|burstable|besteffort|pod[^/.]+|ecs(?:/[^/.]+){1,2}|k8s\\.io|default))*"
_FOLDER = rf"{_FOLDERS}/(?:crio-)?({_ID})"
_RUNTIMES = r"(?:containerd|crio|k3s(?:-agent)?|k0s(?:worker|controller)|rke2-(?:server|agent)|kubelet|docker)\.service"
_COLONS = rf"{_SLICES}(?:/{_RUNTIMES})?/kubepods[^/:]*:(?:cri-containerd|crio):({_ID})"
_ABOVE_PODS = r"(?:/(?![^/]*\.(?:service|scope)(?:/|$))[^/:]+)*"
_POD = re.compile(rf"{_ABOVE_PODS}(?:/{_RUNTIMES})?/(?:[^/:]*-)?pod([0-9A-Za-z_-]+)(?:\.slice)?(?::[^/]+)?(?=/|$)")
_CONTAINER = re.compile(rf"(?:{_SCOPE}|{_PODMAN}|{_FOLDER}|{_COLONS})(?=/|$)")
_IS_SLUID = re.compile(_SLUID)
_UPWARDS = re.compile(r"(?:/\.\.)+(?=/|$)")
_PODS = re.compile(
    r"(?:/(?:kubelet|kubepods|burstable|besteffort|kube(?:let|pods)[^/:]*\.slice))+"
    r"/(?:[^/:]*-)?pod([0-9A-Za-z_-]{8,64})(?:\.slice)?\Z"
)
SHOWN = 12
"""Digits of a container's id that are shown, as in the lists of the runtimes."""


@dataclass(frozen=True, slots=True)
class ContainerPlace:
    """A container's folder: its id, and the length of the path to it."""

    container: str
    end: int


def place_begins(path: str) -> int:
    """Returns the offset at which the names of a path begin, after the `/..` of a cgroup namespace."""
    upwards = _UPWARDS.match(path)
    return upwards.end() if upwards else 0


def container_at(path: str, begin: int) -> ContainerPlace | None:
    """Returns the container whose folder is at a valid path after the first `begin` characters, or None."""
    match = _CONTAINER.match(path, begin)
    return None if match is None else ContainerPlace(next(filter(None, match.groups())), match.end())


@dataclass(frozen=True, slots=True)
class PodPlace:
    """A pod's folder: its UID as Kubernetes writes it, and the length of the path to it."""

    uid: str
    end: int


def pod_at(path: str, begin: int) -> PodPlace | None:
    """Returns the pod at a valid path after the first `begin` characters, or below a container, or None."""
    while (match := _POD.match(path, begin)) is None:
        container = container_at(path, begin)
        if container is None:
            return None
        begin = container.end
    return PodPlace(match[1].replace("_", "-"), match.end())


@dataclass(frozen=True, slots=True)
class SlurmPlace:
    """The folder of a Slurm job, with the length of the path to it.

    `job` is None if the path only has the job's SLUID. `owner` is its user, if the path contains it.
    """

    job: int | None
    sluid: str
    owner: int | None
    end: int


def slurm_at(path: str, begin: int, *, v1: bool = True) -> SlurmPlace | None:
    """Returns the Slurm job whose folder is at a valid path after the first `begin` characters, or None.

    `v1`: accept the path of cgroup version 1, too.
    """
    match = _SLURM.match(path, begin)
    if match is None or (match["v1"] and not v1):
        return None
    job, owner = match["v1"] or match["v2"], match["owner"]
    return SlurmPlace(int(job) if job else None, match["sluid"] or "", int(owner) if owner else None, match.end())


def is_sluid(text: str) -> bool:
    """True if the text has the form of a SLUID, Slurm's id of one run of a job."""
    return _IS_SLUID.fullmatch(text) is not None


def slurm_name(job: int | None, sluid: str) -> str:
    """Returns the name of a Slurm job, with its number if known, otherwise with its SLUID."""
    return f"slurm/{sluid if job is None else job}"


def name_at(path: str) -> str:
    """Returns the owner that an absolute cgroup path proves, or "".

    Owners are `slurm/7`, `slurm/<SLUID>`, `container/0123456789ab`, and `pod/<uid>` for a pod's own folder. All folders
    below a container belong to the container.
    """
    if (slurm := slurm_at(path, 0)) is not None:
        return slurm_name(slurm.job, slurm.sluid)
    if (container := container_at(path, 0)) is not None:
        return f"container/{container.container[:SHOWN]}"
    pod = _PODS.match(path)
    return "" if pod is None else f"pod/{pod[1].replace('_', '-')}"
