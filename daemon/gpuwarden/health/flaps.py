"""The flap guard: a condition that is raised repeatedly stays a finding until it has been quiet for long.

A condition flaps if it was raised within `WITHIN` as often as its row allows. It then ends only after `QUIET` without a
sighting, whatever its own fall time, and its evidence gives the reason. Times are of one boot and restart with a
reboot.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuwarden.health.model import Evidence, Key

WITHIN = 3600.0
QUIET = 3600.0
"""Own choice: as long as the window, so that a held condition that ends has nothing left to flap with."""
RAISES_KEPT = 32  # of one condition; no row asks for more
KEYS_KEPT = 512

Raises = Mapping[Key, tuple[float, ...]]
"""By condition: when it was raised in this boot, the newest last; the conditions in the order of their newest."""


def raised_once_more(raises: Raises, key: Key, at: float) -> Raises:
    """Raises with one more of `key` at `at`. Beyond `KEYS_KEPT` conditions, the one raised longest ago is forgotten."""
    times = (*raises.get(key, ()), at)[-RAISES_KEPT:]
    rest = {k: t for k, t in raises.items() if k != key}
    return dict(list({**rest, key: times}.items())[-KEYS_KEPT:])


def flaps(raises: Raises, key: Key, most: int) -> bool:
    """True if the `most` newest raises lie within the window. The window ends at the newest raise, because flapping ends by silence."""
    times = raises.get(key, ()) if raises else ()
    return len(times) >= most > 0 and times[-1] - times[-most] <= WITHIN


def evidence(raises: Raises, key: Key, most: int) -> Evidence:
    """Evidence of flapping for a finding; empty while it does not flap."""
    if not flaps(raises, key, most):
        return {}
    newest = raises[key][-1]
    count = sum(newest - time <= WITHIN for time in raises[key])
    return {"raised_within_an_hour": count, "held_until_quiet_for": "1h"}
