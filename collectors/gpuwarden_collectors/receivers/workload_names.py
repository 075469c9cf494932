"""Names the workload of a process with a GPU, and finds the workload's control group.

| name | workload |
|---|---|
| `slurm/7` | a job by its control group; where the tree has no number, or Slurm has no control groups, by what the collector `jobs` found |
| `pod/namespace/name` | a pod by its control group; kubelet's folders of logs have its name, else `pod/<uid>` |
| `container/0123456789ab` | a container of no pod, by its control group |
| `session/4711` | all others, by the leader of their session |

Only paths that only root can create count (`places.py`): a user's own folder with a container's name belongs to the
user's session. Processes of root outside of jobs, containers and pods are no workloads: they are services of the host,
such as nv-hostengine, the fabric manager and gpuwarden itself with its tests.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from gpuwarden_collectors.control_groups import GroupLine, RootFolders, lines
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.host_files import read_text
from gpuwarden_collectors.places import SHOWN, container_at, place_begins, pod_at
from gpuwarden_collectors.process_stat import ProcessStat, process_stat
from gpuwarden_collectors.slurm.jobs_cgroup import slurm_place

SESSION = "session/"
"""Prefix of a session's name."""
_GROUPS_MAX = 64 << 10  # bytes
_FAMILY = 16  # most ancestors that are compared with this process
POD_LOGS = Path("var/log/pods")
"""kubelet's folders of logs, one for each pod of this node: `<namespace>_<name>_<uid>`."""
_PODS_MOST = 4096
_POD_FOLDER = re.compile(r"(?P<namespace>[a-z0-9-]{1,63})_(?P<name>[a-z0-9.-]{1,253})_(?P<uid>[0-9a-f-]{8,64})")


@dataclass(frozen=True, slots=True)
class Member:
    """The workload of one process.

    `folder`: path of the workload's control group on this host; None without one, or if it is not visible here.
    """

    name: str
    uid: int
    owner: int | None = None
    also: tuple[str, ...] = ()
    group: str = ""
    folder: str | None = None

    @property
    def is_session(self) -> bool:
        return self.name.startswith(SESSION)


def member(
    proc: Path, stat: ProcessStat, folders: RootFolders, jobs: Mapping[int, int], pods: Mapping[str, str]
) -> Member | None:
    """Returns the workload, or None for root's other processes, for gpuwarden's own, and for exited ones."""
    try:
        uid = (proc / str(stat.pid)).stat().st_uid
        group_lines = list(lines(read_text(proc / str(stat.pid) / "cgroup", _GROUPS_MAX)))
    except OSError:
        return None
    placed = min(filter(None, (_placed(line, folders, pods) for line in group_lines)), key=_worth, default=None)
    if placed is not None and placed[1].name:
        return replace(placed[1], uid=uid)
    job = jobs.get(stat.pid)
    if job is not None:
        at = Member("", uid) if placed is None else placed[1]
        return replace(at, name=f"slurm/{job}", uid=uid)
    if uid == 0 or _ours(proc, stat):
        return None
    return Member(f"{SESSION}{stat.session or stat.pid}", uid)


def pod_names(root: Path) -> dict[str, str]:
    """Maps pod UIDs to `namespace/name`, for pods with logs on this host; empty without kubelet."""
    try:
        with os.scandir(root / POD_LOGS) as entries:
            matches = [_POD_FOLDER.fullmatch(entry.name) for entry, _ in zip(entries, range(_PODS_MOST), strict=False)]
    except OSError:
        return {}
    return {match["uid"]: f"{match['namespace']}/{match['name']}" for match in matches if match is not None}


_Placed = tuple[GroupLine, Member]


def _placed(line: GroupLine, folders: RootFolders, pods: Mapping[str, str]) -> _Placed | None:
    """Returns the workload shown by the path of one hierarchy; the name is empty for a job without a number."""
    if (slurm := slurm_place(line, folders)) is not None:
        name = "" if slurm.job is None else f"slurm/{slurm.job}"
        return _at(line, Member(name, 0, slurm.owner), slurm.end, folders)
    begin = place_begins(line.path)
    container, pod = container_at(line.path, begin), pod_at(line.path, begin)
    own: tuple[str, ...] = () if container is None else (f"container/{container.container[:SHOWN]}",)
    if pod is not None and folders.are_roots(line, pod.end):
        of = f"pod/{pod.uid}"
        name = f"pod/{pods[pod.uid]}" if pod.uid in pods else of
        return _at(line, Member(name, 0, also=(of, *own)), pod.end, folders)
    if container is not None and folders.are_roots(line, container.end):
        return _at(line, Member(own[0], 0), container.end, folders)
    return None


def _at(line: GroupLine, workload: Member, end: int, folders: RootFolders) -> _Placed:
    return line, replace(workload, group=line.path[:end], folder=folders.folder(line, end))


def _worth(placed: _Placed) -> tuple[bool, bool, int]:
    """Sort key that prefers the hierarchy with memory counters: the v1 one with this controller, else version 2."""
    line, workload = placed
    controllers = line.controllers.split(",")
    return (
        not workload.name,
        workload.folder is None,
        0 if "memory" in controllers else 1 if not line.controllers else 2,
    )


def _ours(proc: Path, stat: ProcessStat) -> bool:
    """True for this process and its descendants."""
    ancestor: ProcessStat | None = stat
    for _ in range(_FAMILY):
        if ancestor is None or ancestor.pid <= 1:
            return False
        if ancestor.pid == os.getpid():
            return True
        ancestor = process_stat(proc, ancestor.parent)
    return False


def only(uids: Iterable[int]) -> int | None:
    """Returns the only uid, ignoring root unless there is no other; None for several uids."""
    distinct = set(uids)
    others = distinct - {0} or distinct
    return others.pop() if len(others) == 1 else None
