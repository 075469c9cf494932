"""What a rank says once it has saved, by the socket or by a file: the same few words, held to the same bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

RANKS_MOST = 1_000_000
"""More than any job has."""
STEPS_MOST = 2**63 - 1
NOTICE_MOST = 200
"""Characters, as in the library of the job side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """`notice`: the id of the notice that it answers. `saved` False: the rank is done and has nothing to show for it.

    `step`: the step that was saved, None if the rank did not say. `all_ranks`: it holds for all ranks of the job, on all its nodes;
    clients that know nothing of it answer for their own rank.
    """

    notice: str
    rank: int
    saved: bool
    step: int | None = None
    all_ranks: bool = False


def said(document: Mapping[str, object]) -> Said:
    """Other keys are passed over. Raises ValueError, which says what is wrong in words that its author may read."""
    notice, saved = document.get("notice"), document.get("saved")
    if not (isinstance(notice, str) and 0 < len(notice) <= NOTICE_MOST and notice.isprintable()):
        raise ValueError(f'"notice" must be the id of a notice, a text of 1 to {NOTICE_MOST} characters')
    if saved is not True and saved is not False:  # 1 is none
        raise ValueError('"saved" must be true or false')
    all_ranks = document.get("all_ranks", False)
    if all_ranks is not True and all_ranks is not False:
        raise ValueError('"all_ranks" must be true or false')
    rank = _whole("rank", document.get("rank"), RANKS_MOST - 1)
    step = document.get("step")
    saved_step = None if step is None else _whole("step", step, STEPS_MOST)
    return Said(notice=notice, rank=rank, saved=saved, step=saved_step, all_ranks=all_ranks)


def _whole(name: str, value: object, most: int) -> int:
    # A bool is an int to Python, and to nobody else.
    if not (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most):
        raise ValueError(f'"{name}" must be a whole number from 0 to {most}')
    return value
