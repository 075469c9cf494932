"""Limits the rate of announcements through the control socket, so that a client cannot fill ledger and log.

Urgent ones are not delayed: a first announcement, and one that halves the remaining time.
"""

from __future__ import annotations

from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.token_bucket import TokenBucket

BURST = 20
"""Burst of announcements and withdrawals per user: more than a control plane needs in the life of a machine."""
EVERY = 5.0
"""Seconds per further one."""
USERS_MOST = 64


class Pushes:
    """A rate limit per user, so that one user cannot block others."""

    def __init__(self, clock: Clock, burst: int = BURST, every: float = EVERY) -> None:
        self._clock = clock
        self._burst, self._every = burst, every
        self._users: dict[int, TokenBucket] = {}

    def wait(self, uid: int) -> float:
        """Take a token and return 0, or return the seconds until one is available."""
        now = self._clock().boottime
        bucket = self._users.pop(uid, None) or TokenBucket(self._burst, self._every, now)
        if len(self._users) >= USERS_MOST:  # drops the user seen longest ago
            del self._users[next(iter(self._users))]
        self._users[uid] = bucket
        return bucket.wait(now)
