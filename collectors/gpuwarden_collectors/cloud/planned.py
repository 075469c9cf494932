"""A configured end of the machine: of a Capacity Block, of a rental, or of a preemptible machine's 24 hours."""

from __future__ import annotations

from collections.abc import Sequence

from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.cloud.facts import Answer, Kind, TerminationNotice, answer, identity, unknown
from gpuwarden_collectors.cloud.reply import PAST_MOST
from gpuwarden_collectors.cloud.source import Question
from gpuwarden_collectors.facts import Stamp

NAME = "planned"


class Planned:
    """The configured end of this machine. `end` is Unix time, by this host's clock."""

    name = NAME

    def __init__(self, end: float, clock: Clock) -> None:
        self._end = end
        self._clock = clock
        self.questions: Sequence[Question] = (
            Question(name="end", kind=Kind.PLANNED_END, ask=self._ask, interval=30.0, main=True),
        )

    async def _ask(self) -> Answer:
        return planned(self._end, self._clock())

    async def confirm(self) -> str:
        return ""

    async def close(self) -> None:
        """No-op: this source keeps nothing open."""


def planned(end: float, now: Stamp) -> Answer:
    """Returns the notice of the planned end, or unknown once it is more than an hour past.

    In that case the configuration is out of date, or the clock is wrong.
    """
    left = end - now.wall
    if left < -PAST_MOST:
        return unknown(
            f"termination.planned_end passed {-left / 3600:.0f} h ago: it is out of date, or this clock is wrong"
        )
    notice = TerminationNotice(
        source=NAME,
        kind=Kind.PLANNED_END,
        id=identity("end", f"{end:.0f}"),
        hard=True,
        deadline=Stamp(now.boottime + max(0.0, left), end),
        reason="the planned end of this machine",
    )
    return answer((notice,))
