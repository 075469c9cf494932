"""Flap guard: a condition that is raised repeatedly stays a finding until it has been quiet for long.

A condition flaps if it was raised within `WITHIN` as often as its row allows. It then ends only after `QUIET` without a
sighting, even if its fall time is shorter, and its evidence gives the reason. A reboot clears the times.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuwarden.health.model import Evidence, Key

WITHIN = 3600.0
QUIET = 3600.0
"""Seconds. Own choice: the length of the window, so that a held condition no longer flaps when it ends."""
RAISES_KEPT = 32  # per condition; no row needs more
KEYS_KEPT = 512

Raises = Mapping[Key, tuple[float, ...]]
"""By condition: times at which it was raised in this boot, newest last. Conditions are ordered by their newest time."""


def raised_once_more(raises: Raises, key: Key, at: float) -> Raises:
    """Return the raises with one more of `key` at `at`. Beyond `KEYS_KEPT` conditions, the oldest is dropped."""
    times = (*raises.get(key, ()), at)[-RAISES_KEPT:]
    rest = {k: t for k, t in raises.items() if k != key}
    return dict(list({**rest, key: times}.items())[-KEYS_KEPT:])


def flaps(raises: Raises, key: Key, most: int) -> bool:
    """Return True if the `most` newest raises lie within a window that ends at the newest: flapping ends by silence."""
    times = raises.get(key, ()) if raises else ()
    return len(times) >= most > 0 and times[-1] - times[-most] <= WITHIN


def evidence(raises: Raises, key: Key, most: int) -> Evidence:
    """Return the evidence of flapping for a finding; empty while it does not flap."""
    if not flaps(raises, key, most):
        return {}
    newest = raises[key][-1]
    count = sum(newest - time <= WITHIN for time in raises[key])
    return {"raised_within_an_hour": count, "held_until_quiet_for": "1h"}
