"""Delays the answers of verbs that change something until the change is on disk, so that a crash cannot undo it.

Only the answer is delayed, not the action. If the disk is too slow, the answer is a specific error, and the same verb
sent again only waits for the disk.
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
"""Seconds from the order to the answer. The control socket allows 4 in total."""
AT_LEAST = 0.2
"""Least seconds for the disk, even after an order that waited for a scheduler."""
SAME_ORDER = 60.0
"""Seconds for which the same verb with the same arguments counts as a repetition."""


@dataclass(frozen=True, slots=True)
class _Accepted:
    """An accepted order. `result` is a VerbError if its answer is not "done"."""

    request: str
    result: Any
    at: float


class Durable:
    """Wraps verbs so that they answer once their changes are on disk.

    `committed(seconds)` waits at most so long, and returns true if everything recorded so far is on disk.
    """

    def __init__(self, committed: Callable[[float], Awaitable[bool]], clock: Clock) -> None:
        self._committed = committed
        self._clock = clock
        self._accepted: _Accepted | None = None  # the last order, until it is known to be on disk

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
    "accepted, not yet on disk: {}; it is lost if gpuwarden ends before it is written. Check the disk of the state folder and "
    "send the same command again: it changes nothing and waits for the disk"
)
