"""Confirms findings from before the daemon's start.

The ledger was correct when it was written. While no daemon ran, the GPU may have been repaired or the node rebooted.
Until a remembered finding is confirmed, it is shown but causes no new action.

    from lines, or latched      the kernel log was read to its present end without a gap, NVML answered, and nothing
                                released it
    all others                  it was seen again for its rise time
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuwarden.health.kernel_lines.records import LINE_CODES
from gpuwarden.health.memory import State, Track
from gpuwarden.health.model import Key, Latch
from gpuwarden.health.view import Sight

Unconfirmed = Mapping[Key, float | None]
"""By finding: boottime since which it has been seen continuously since the start; None: not seen."""

OF_LINES = frozenset({"xid", "sxid", "pcie_aer_fatal"}) | LINE_CODES
"""Conditions derived from records, which survive a restart, so that observing one confirms nothing."""


def remembered(state: State, live: State) -> Unconfirmed:
    """Return the raised findings of `state`, the fold of the ledger, except those confirmed in `live`."""
    raised_live = {key for key, track in live.tracks.items() if track.raised and key not in live.moments.unconfirmed}
    return {key: None for key, track in state.tracks.items() if track.raised and key not in raised_live}


def confirmed(state: State, sight: Sight, sighted: Mapping[Key, float]) -> Unconfirmed:
    """Return the findings still unconfirmed after a step. `sighted`: findings seen in it, with their rise times."""
    left: dict[Key, float | None] = {}
    for key, since in state.moments.unconfirmed.items():
        track = state.tracks.get(key)
        if track is None or key in state.moments.news:
            continue
        if key.code in OF_LINES or track.latch is not Latch.NONE:
            if not _sources_read(track, sight):
                left[key] = None
        elif key not in sighted:
            left[key] = None
        elif sight.now.boottime - (since := sight.now.boottime if since is None else since) < sighted[key]:
            left[key] = since
    return left


def _sources_read(track: Track, sight: Sight) -> bool:
    """Return True if all sources that could have ended the finding were read.

    An NVML pass is required because it shows a reset, and because it ends a released finding.
    """
    answered = not track.key.subject.slot or (sight.nvml is not None and sight.nvml.problem is None)
    return track.released is None and sight.view.log_read and answered
