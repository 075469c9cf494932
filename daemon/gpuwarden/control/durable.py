"""Verbs that change something answer once that is on disk: an answer "done" that a crash can undo is none.

Only the answer waits, never what was ordered. Where the disk does not take it in time the answer is an error of its own, and
the same verb sent again changes nothing: it waits for the disk once more.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from gpuwarden.base.peer import Peer
from gpuwarden.publish.sockets.control import TRY_AGAIN, Verb, VerbError
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.dataclass import dataclass

ON_DISK_WITHIN = 2.0
"""Seconds from the order on. The control socket has 4 for everything."""
AT_LEAST = 0.2
"""Seconds that the disk has in any case, also after an order that waited for a scheduler."""
SAME_ORDER = 60.0
"""Seconds for which the same verb with the same arguments counts as the same order, sent again."""


@dataclass(frozen=True, slots=True)
class _Accepted:
    """An order that was taken. `result` may be a VerbError, if its answer is other than "done"."""

    request: str
    result: Any
    at: float


class Durable:
    """Makes verbs answer only once they are on disk.

    `committed(seconds)`: whether all that was recorded so far is on disk, after so many seconds at most.
    """

    def __init__(self, committed: Callable[[float], Awaitable[bool]], clock: Clock) -> None:
        self._committed = committed
        self._clock = clock
        self._accepted: _Accepted | None = None  # the last order, as long as it was not known to be on disk

    def table(self, verbs: Mapping[str, Verb]) -> dict[str, Verb]:
        return {name: self._durable(name, verb) for name, verb in verbs.items()}

    def _durable(self, name: str, verb: Verb) -> Verb:
        async def answer(arguments: dict[str, Any], peer: Peer) -> Any:
            began = self._clock().boottime
            request = json.dumps([name, arguments, peer.uid], sort_keys=True, default=str)
            before = self._accepted
            if before is None or before.request != request or began - before.at > SAME_ORDER:
                self._accepted = None
                before = _Accepted(request, await verb(arguments, peer), self._clock().boottime)
            waited = self._clock().boottime - began
            if not await self._committed(max(AT_LEAST, ON_DISK_WITHIN - waited)):
                self._accepted = before
                raise VerbError(_NOT_YET.format(before.result), TRY_AGAIN)
            self._accepted = None
            if isinstance(before.result, VerbError):
                raise before.result
            return before.result

        return answer


_NOT_YET = (
    "accepted, not yet on disk: {}; it is lost if gpuwarden ends before the disk takes it. Look at the disk of the state folder and "
    "send the same command again: it changes nothing and waits for the disk"
)
