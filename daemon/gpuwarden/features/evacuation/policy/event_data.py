"""The data of each kind of event of an evacuation. Fields are keys in the ledger; see `health/event_data.py`. Pure."""

from __future__ import annotations

from dataclasses import field, fields
from typing import Annotated, Any

from gpuwarden.features.evacuation.policy.delivery import Process, Way
from gpuwarden.features.evacuation.policy.model import TEXT_MOST, Sent
from gpuwarden.features.evacuation.policy.model import Requeued as HowRequeued
from gpuwarden.health.event_data import cut, key, null, otherwise
from gpuwarden.policy.model import Result
from gpuwarden.policy.notices import NAME_MOST
from gpuwarden_collectors.codec import CodecError
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

_DIGITS_MOST = 19  # of an integer of the ledger


def _whole(value: int | None) -> int | None:
    """Return a count or a number as it is. Raises CodecError if it is below 0 or above what the ledger's integers hold."""
    if value is not None and not 0 <= value < 1 << 63:
        raise CodecError(f"expected a count, found {value.bit_length()} bits")
    return value


Name = Annotated[str, cut(NAME_MOST)]
Text = Annotated[str, cut(TEXT_MOST)]
Whole = Annotated[int, _whole]
Number = Annotated[int | None, _whole]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfNotice:
    """Data of an event that concerns the evacuation for `notice`."""

    notice: Name = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfJob(OfNotice):
    """Data of an event about `job` in the evacuation for `notice`; without `notice`, in every one that has the job."""

    job: Name


@dataclass(frozen=True, slots=True, kw_only=True)
class Departing(OfNotice):
    """Data of DEPARTING: a notice, or a failing GPU, is acted on."""

    kind: Name
    deadline: Stamp | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Departed(OfNotice):
    """Data of DEPARTED: the evacuation is over."""

    text: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Signalling(OfJob):
    """Data of SIGNALLING. With `kept` it is part of a checkpoint: KeptJob or, with `more`, KeptProcesses."""

    way: Way = field(metadata=otherwise(Way.NONE))
    signal: Text
    local_only: bool
    text: Text
    restarts: Number = field(metadata=null())
    in_steps: bool
    """All processes of the event are tasks of Slurm's steps, or were started by one."""
    steps: Name = ""
    """Their steps, at most two of them."""
    again: bool = False
    """It is not known whether they got an earlier signal."""
    processes: str | None = None
    remaining: str | None = None
    """Processes that were signalled before the job entered this evacuation."""
    marking: bool = False
    """The job's mark is being set; nothing was sent yet."""
    kept: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptJob(OfJob):
    """Data of SIGNALLING in a checkpoint: all that is known of a job, see JobState."""

    way: Way = field(metadata=otherwise(Way.NONE))
    signal: Text
    text: Text
    local_only: bool
    result: Sent = field(metadata=otherwise(Sent.UNKNOWN))
    count: Whole
    wide: bool = field(metadata=otherwise(True))
    restarts: Number = field(metadata=null())
    requeued: HowRequeued = field(metadata=otherwise(HowRequeued.NO))
    requeued_text: Text
    named: bool
    returned: bool
    in_steps: bool
    steps: Name = ""
    signalled_at: Stamp | None = field(default=None, metadata=key("signalled"))
    requeued_at: Stamp | None = field(default=None, metadata=key("requeued"))
    called_off_signalled_at: Stamp | None = None
    processes: str
    marking: bool = False
    kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptProcesses(OfJob):
    """Data of SIGNALLING in a checkpoint that continues the one before it, which had no room for all processes."""

    processes: str
    more: bool
    earlier: bool = False
    only: Name = ""
    """Which of JobState's other processes they are: unsure, unsure_here, undecided, called_off."""
    kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Signalled(OfJob):
    """Data of SIGNALLED. `processes`: those of an outcome that was found out later; `due`: they are to be signalled."""

    way: Way | None
    result: Sent = field(metadata=otherwise(Sent.UNKNOWN))
    count: Whole
    text: Text
    again: bool = False
    due: bool = False
    processes: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved(OfJob):
    """Data of SAVED, an acknowledgement. With `kept` it is KeptSaved."""

    by: Name
    saved: bool | None
    rank: Number = None
    pid: Number = None
    started: Number = None
    step: Number = None
    all_ranks: bool = False
    kept: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSaved(OfJob):
    """Data of SAVED in a checkpoint: all acknowledgements of a job, see Acknowledged."""

    by: Name
    saved: bool
    unsaved: bool
    all_ranks: bool = False
    step: Number = None
    ranks: str | None = None
    processes: str | None = None
    kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeued(OfJob):
    """Data of REQUEUED. `restarts`: how often the job had been requeued before."""

    restarts: Number
    text: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRequeued(OfJob):
    """Data of NOT_REQUEUED. Unless `permanent`, the requeue is tried again. `named`: people were notified of it."""

    permanent: bool
    text: Text
    named: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalNodeState(OfNotice):
    """Data of FINAL_NODE_STATE: the final state of the node at its scheduler."""

    what: Name
    result: Result = field(metadata=otherwise(Result.RETRY))
    text: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Approving(OfNotice):
    """Data of APPROVING: an early approval is about to be sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Approved(OfNotice):
    """Data of APPROVED. `tries` is used in checkpoints, which keep no APPROVING."""

    result: Result = field(metadata=otherwise(Result.RETRY))
    text: Text
    tries: Whole = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """Data of ANSWERED: how many jobs gave each answer, see Given."""

    saved: Whole = 0
    unsaved: Whole = 0
    ended: Whole = 0


ONLY = ("unsure", "unsure_here", "undecided", "called_off")
"""The fields of JobState, besides `signalled` and `earlier`, whose processes a checkpoint keeps."""


def same(value: object, kind: type) -> dict[str, Any]:
    """Return the fields of a dataclass that `kind` has, too."""
    own = {field.name for field in fields(kind)}
    return {name: getattr(value, name) for name in own if hasattr(value, name)}


# --- the texts of `processes`, `remaining` and `ranks`: malformed words are skipped


def processes_of(text: str | None) -> frozenset[Process]:
    """Parse a text such as `pid:started pid:started …`."""
    pairs = (word.partition(":") for word in (text or "").split())
    return frozenset((int(pid), int(began)) for pid, _, began in pairs if is_number(pid) and is_number(began))


def ranks_of(text: str | None) -> frozenset[int]:
    return frozenset(int(word) for word in (text or "").split() if is_number(word))


def is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MOST
