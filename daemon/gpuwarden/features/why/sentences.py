"""The sentence of an answer, for the owner of the job. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from gpuwarden.features.why.follows import code_of, xid_number
from gpuwarden.features.why.model import End, Touch, user_name
from gpuwarden.health.conditions import condition
from gpuwarden.health.xid.catalogue import xid_row
from gpuwarden_collectors.dataclass import dataclass

LONGEST = 300
_SIGNALS = {
    1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 10: "SIGUSR1",
    11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM", 24: "SIGXCPU", 25: "SIGXFSZ", 31: "SIGSYS",
}  # fmt: skip
_LIMIT = "its time limit ended it"
_REQUEUED = "it was requeued"
_THEN = {
    "TIMEOUT": _LIMIT,
    "DEADLINE": _LIMIT,
    "CANCELLED": "it was cancelled",
    "REQUEUED": _REQUEUED,
    "REQUEUE_HOLD": _REQUEUED,
}
_AGAIN = {
    "REQUEUED": ", for which Slurm put it back into the queue (RequeueExit)",
    "REQUEUE_HOLD": ", for which Slurm put it back into the queue and holds it there (RequeueExitHold)",
}


@dataclass(frozen=True, slots=True)
class Board:
    """Index and serial number of a GPU, for people."""

    index: int | None = None
    serial: str = ""


def sentence(template: str, values: Mapping[str, str]) -> str:
    """Return the template of a rule with its names filled in, at most `LONGEST` characters."""
    text = template.format_map(values)
    return f"{text[: LONGEST - 1].rstrip('.')}."


def values_of(end: End, touch: Touch | None, boards: Mapping[str, Board], signal: int | None) -> dict[str, str]:
    """Return the value of each name in the template of a rule."""
    slot, pid = ("", None) if touch is None else (touch.slot, touch.pid)
    notice = touch is not None and touch.what in ("notice", "announced") and touch.detail
    return {
        "gpu": _gpu(slot, boards.get(slot, Board())) if slot else "a GPU",
        "meaning": "" if touch is None else _meaning(touch),
        "process": " a process of it" if pid is None else f" its process {pid}",
        "notice": f" ({touch.detail[:60]})" if notice and touch is not None else "",
        "by": user_name(end.by),
        "failed_node": end.failed_node[:64],
        "exit_code": str(end.exit_code),
        "again": _AGAIN.get(end.state, ""),
        "signal": "a signal" if signal is None else _SIGNALS.get(signal, f"signal {signal}"),
        "then": f", and in the end {_THEN[end.state]}" if end.state in _THEN else "",
    }


def _gpu(slot: str, board: Board) -> str:
    name = f"The GPU at {slot}" if board.index is None else f"GPU {board.index}"
    return f"{name} (serial {board.serial[:32]})" if board.serial else name


def _meaning(touch: Touch) -> str:
    """Return what an Xid or a finding means, and where, unless it is about a GPU."""
    if (number := xid_number(touch)) is not None:
        return f"{xid_row(number).meaning} (Xid {number})"
    code = code_of(touch).partition(".")[0]
    row = condition(code)
    where = "" if touch.slot else touch.detail.partition("@")[2].partition("/")[2]
    title = code if row is None else f"{row.title} ({code})"
    return f"{title}: {where[:80]}" if where else title
