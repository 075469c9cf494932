"""How often an end may be announced through the control socket: what a client repeats without end fills neither ledger nor log.

What must not wait is not held up by it: a first announcement, and one that halves the time that is left.
"""

from __future__ import annotations

from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.token_bucket import TokenBucket

BURST = 20
"""Announcements and withdrawals of one user in a row: more than a control plane has reason for in the life of a machine."""
EVERY = 5.0
"""Seconds after which one more is allowed."""
USERS_MOST = 64


class Pushes:
    """Each user has an allowance of their own, so that who repeats himself keeps nobody else from an answer."""

    def __init__(self, clock: Clock, burst: int = BURST, every: float = EVERY) -> None:
        self._clock = clock
        self._burst, self._every = burst, every
        self._users: dict[int, TokenBucket] = {}

    def wait(self, uid: int) -> float:
        """Seconds until this one may be taken; 0: it is."""
        now = self._clock().boottime
        bucket = self._users.pop(uid, None) or TokenBucket(self._burst, self._every, now)
        if len(self._users) >= USERS_MOST:  # who was here longest ago
            del self._users[next(iter(self._users))]
        self._users[uid] = bucket
        return bucket.wait(now)
