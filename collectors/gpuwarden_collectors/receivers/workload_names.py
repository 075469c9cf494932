"""What a process with a GPU is part of: its name, and the control group that it shares with others of that name.

| name | of |
|---|---|
| `slurm/7` | a job by its control group; where the tree has no number, or Slurm has no control groups, by what the collector `jobs` found |
| `pod/namespace/name` | a pod by its control group; kubelet's folders of logs have its name, else `pod/<uid>` |
| `container/0123456789ab` | a container of no pod, by its control group |
| `session/4711` | all others, by the leader of their session |

Only places that root alone can make count (`places.py`): who names a folder of his own like a container's is in his session. Processes of
root's outside of jobs, containers and pods are none: what root runs on a host are its services, as nv-hostengine, the fabric manager
and gpuwarden itself with its tests.
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
"""Before the number of a session in its name."""
_GROUPS_MAX = 64 << 10  # bytes
_FAMILY = 16  # generations that are asked for us
POD_LOGS = Path("var/log/pods")
"""kubelet's folders of logs, one for each pod of this node: `<namespace>_<name>_<uid>`."""
_PODS_MOST = 4096
_POD_FOLDER = re.compile(r"(?P<namespace>[a-z0-9-]{1,63})_(?P<name>[a-z0-9.-]{1,253})_(?P<uid>[0-9a-f-]{8,64})")


@dataclass(frozen=True, slots=True)
class Member:
    """What one process is part of.

    `folder`: where the control group that they share is on this host; None where it has none, or it cannot be seen from here.
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
    """Returns None for processes of root's that are none of these, for our own, and for what is gone."""
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
    """Returns `namespace/name` by UID, of the pods that have logs on this host; empty without kubelet."""
    try:
        with os.scandir(root / POD_LOGS) as entries:
            matches = [_POD_FOLDER.fullmatch(entry.name) for entry, _ in zip(entries, range(_PODS_MOST), strict=False)]
    except OSError:
        return {}
    return {match["uid"]: f"{match['namespace']}/{match['name']}" for match in matches if match is not None}


_Placed = tuple[GroupLine, Member]


def _placed(line: GroupLine, folders: RootFolders, pods: Mapping[str, str]) -> _Placed | None:
    """Returns what the path of one hierarchy shows; the name is empty where it is a job's without a number."""
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
    """Sorts the hierarchy that counts memory first: that of version 1 with this controller, else version 2."""
    line, workload = placed
    controllers = line.controllers.split(",")
    return (
        not workload.name,
        workload.folder is None,
        0 if "memory" in controllers else 1 if not line.controllers else 2,
    )


def _ours(proc: Path, stat: ProcessStat) -> bool:
    """True for this process and what it started."""
    ancestor: ProcessStat | None = stat
    for _ in range(_FAMILY):
        if ancestor is None or ancestor.pid <= 1:
            return False
        if ancestor.pid == os.getpid():
            return True
        ancestor = process_stat(proc, ancestor.parent)
    return False


def only(uids: Iterable[int]) -> int | None:
    """The user of these, root only where there is no other; None while they are several users'."""
    distinct = set(uids)
    others = distinct - {0} or distinct
    return others.pop() if len(others) == 1 else None
