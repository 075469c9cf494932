"""Control groups of this host's real tree with a limit of memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

LIMIT = 32 << 20
_TREE = Path("/sys/fs/cgroup")
_V1, _V2 = _TREE / "memory", _TREE / "cgroup.controllers"


@dataclass(frozen=True, slots=True)
class Step:
    """`folder`: of the step; `job`, `group`: paths of the job and the step in the tree. `owner`: the user whom the tree names, root if none."""

    folder: Path
    job: str
    group: str
    owner: int


@contextmanager
def limited_step(slurm: str, uid: int, job: int) -> Iterator[Step]:
    """Make a job's step where the slurmd of a node of this name would make it, with `LIMIT` bytes for the job; skip the test without such a tree."""
    if (_V1 / "memory.limit_in_bytes").exists():
        top, place, owner, limit = _V1, f"slurm_{slurm}/uid_{uid}/job_{job}", uid, "memory.limit_in_bytes"
    elif _V2.exists() and "memory" in _V2.read_text().split():
        top, place, owner, limit = _TREE, f"system.slice/{slurm}_slurmstepd.scope/job_{job}", 0, "memory.max"
    else:
        pytest.skip("control groups have no controller of memory here")
    group = f"{place}/step_0"
    made = [folder for folder in reversed([top / group, *(top / group).parents]) if not folder.exists()]
    (top / group).mkdir(parents=True)
    if top == _TREE:
        for folder in reversed((top / group).parents):
            if folder == top or top in folder.parents:
                (folder / "cgroup.subtree_control").write_text("+memory")
    (top / place / limit).write_text(str(LIMIT))
    yield Step(top / group, f"/{place}", f"/{group}", owner)
    for folder in reversed(made):
        if folder.exists():
            folder.rmdir()
