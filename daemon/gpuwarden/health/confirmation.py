"""Which findings of an earlier life of the daemon were found again in this one.

What the ledger remembers was true when it was written. The GPU may have been repaired, or the node rebooted, while no
daemon ran: until the sources were read in this life, a remembered finding is shown and nothing new follows from it.

    made of lines, or latched   the kernel log was read to its present end without a gap, NVML answered, and nothing there
                                released it
    anything else               it was seen again, for as long as it must be seen before it is a finding
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuwarden.health.kernel_lines.records import LINE_CODES
from gpuwarden.health.memory import State, Track
from gpuwarden.health.model import Key, Latch
from gpuwarden.health.view import Sight

Unconfirmed = Mapping[Key, float | None]
"""By finding: since when (boottime) it has been seen in this life without a pause; None: it has not."""

OF_LINES = frozenset({"xid", "sxid", "pcie_aer_fatal"}) | LINE_CODES
"""Conditions that are derived from records, which a restart keeps: observing one of these confirms nothing."""


def remembered(state: State, live: State) -> Unconfirmed:
    """Unconfirmed findings: those raised in `state`, the fold of the ledger, that `live`, the state before it, has not
    observed.
    """
    raised_live = {key for key, track in live.tracks.items() if track.raised and key not in live.moments.unconfirmed}
    return {key: None for key, track in state.tracks.items() if track.raised and key not in raised_live}


def confirmed(state: State, sight: Sight, sighted: Mapping[Key, float]) -> Unconfirmed:
    """Findings that remain unconfirmed after a step. `sighted`: the findings seen in it, with the seconds for which each must be seen."""
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
    """True if all sources that could have ended the finding were read.

    A pass of NVML counts because it shows a reset, and because a released finding ends with one.
    """
    answered = not track.key.subject.slot or (sight.nvml is not None and sight.nvml.problem is None)
    return track.released is None and sight.view.log_read and answered
