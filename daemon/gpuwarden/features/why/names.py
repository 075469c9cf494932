"""Parses the name of a job from the command line into the names of epochs that it may mean. Pure."""

from __future__ import annotations

import re
from hashlib import sha256

from gpuwarden.features.why.model import Epoch, JobKind

NO_SUCH_JOB = 3
"""Exit code of the command, as of `gpuwarden fleet` for a node that does not exist."""
LONGEST = 320
"""Characters: a pod's name has up to 253, its namespace 63."""
CONTAINER_ID = 12
"""Digits of a container's id in its epoch's name."""
EXPECTED = "expected a job such as 4711, slurm/4711, container/0123456789ab, pod/namespace/name or session/4711"
_IDS = {
    JobKind.SLURM: re.compile(r"[0-9]{1,10}", re.ASCII),
    JobKind.SESSION: re.compile(r"[0-9]{1,10}", re.ASCII),
    JobKind.CONTAINER: re.compile(r"[0-9a-f]{12,64}"),
    JobKind.POD: re.compile(r"(?:[A-Za-z0-9.-]{1,63}/)?[A-Za-z0-9.-]{1,253}"),
}
_STEP = re.compile(r"((?:slurm/)?[0-9]{1,10})\.(?:[0-9]{1,10}|batch|extern|interactive)", re.ASCII)
"""A step, as Slurm prints it; the answer is about its job."""
_PART = re.compile(
    r"(?:slurm/)?([0-9]{1,10}(?:[_+][0-9]{1,10}|(?=_\[)))(?:_\[[0-9,%:-]{1,64}\])?(?:\.\w{1,16})?", re.ASCII
)
"""A task of an array, several of them, or a part of a heterogeneous job. Slurm alone has the number of the job."""


def names_of(text: str) -> tuple[str, ...]:
    """Return the epoch names that a text may mean. A bare number is Slurm's or a session's. Raises ValueError."""
    if step := _STEP.fullmatch(text):
        return (f"{JobKind.SLURM}/{int(step[1].rpartition('/')[2])}",)
    if part := _PART.fullmatch(text):
        raise ValueError(
            f"expected the number of one job (SLURM_JOB_ID), found {text[:60]!r}: `scontrol show job {part[1]}` prints it as"
            f" JobId, and `sacct -Xnj {part[1]} -o JobIDRaw` once the controller has dropped the job"
        )
    if len(text) <= LONGEST:
        if _IDS[JobKind.SLURM].fullmatch(text):
            return f"{JobKind.SLURM}/{int(text)}", f"{JobKind.SESSION}/{int(text)}"
        kind, _, known_as = text.partition("/")
        if kind in _IDS and _IDS[JobKind(kind)].fullmatch(known_as):
            return (f"{kind}/{known_as[:CONTAINER_ID] if kind == JobKind.CONTAINER else known_as}",)
    raise ValueError(f"{EXPECTED}, found {text[:60]!r}")


def public_name(epoch: Epoch, *, names: bool) -> str:
    """Return the name of a job for everyone who can connect. `names`: pods' names are public, else their UIDs are."""
    if epoch.kind != JobKind.POD or names:
        return epoch.name
    uid = next((name for name in epoch.also if name.startswith(f"{JobKind.POD}/")), None)
    return uid or f"{JobKind.POD}/{sha256(epoch.name.encode()).hexdigest()[:12]}"
