"""The acknowledgement of a rank. The socket and the file formats have the same keys and bounds."""

from __future__ import annotations

from collections.abc import Mapping

from gpuwarden_collectors.dataclass import dataclass

RANKS_MOST = 1_000_000
"""More than any job has."""
STEPS_MOST = 2**63 - 1
NOTICE_MOST = 200
"""Characters, as in the library of the job side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """The statement of a rank that it has finished saving."""

    notice: str
    """Id of the notice that is acknowledged."""
    rank: int
    """Number of the rank in its job."""
    saved: bool
    """False: the rank has finished and saved nothing."""
    step: int | None = None
    """Training step that was saved; None if the rank does not give one."""
    all_ranks: bool = False
    """True: it covers all ranks of the job, on all its nodes. Older clients omit this key and acknowledge one rank."""


def parse_acknowledgement(document: Mapping[str, object]) -> Acknowledgement:
    """Parses a document, ignoring other keys. Raises ValueError with a message for the author of the document."""
    notice, saved = document.get("notice"), document.get("saved")
    if not (isinstance(notice, str) and 0 < len(notice) <= NOTICE_MOST and notice.isprintable()):
        raise ValueError(f'"notice" must be the id of a notice, a text of 1 to {NOTICE_MOST} characters')
    if saved is not True and saved is not False:  # rejects 1, which equals True
        raise ValueError('"saved" must be true or false')
    all_ranks = document.get("all_ranks", False)
    if all_ranks is not True and all_ranks is not False:
        raise ValueError('"all_ranks" must be true or false')
    rank = _whole("rank", document.get("rank"), RANKS_MOST - 1)
    step = document.get("step")
    saved_step = None if step is None else _whole("step", step, STEPS_MOST)
    return Acknowledgement(notice=notice, rank=rank, saved=saved, step=saved_step, all_ranks=all_ranks)


def _whole(name: str, value: object, most: int) -> int:
    # In Python a bool is an int; in JSON it is not a number.
    if not (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most):
        raise ValueError(f'"{name}" must be a whole number from 0 to {most}')
    return value
