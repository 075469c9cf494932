"""A replay of a frozen box gives the verdict that was given, whatever came before it in the ring."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluate.classes import CLASSES
from gpuwarden.features.black_box import recording
from gpuwarden.trace.reader import TraceReader
from support.black_boxes import content, frozen_of, judged, story
from support.quick import first_quick

LATER = ("site check fails", "row remapping pending for a week", "Xid 46 after each of three reboots")
"""The first names no site check in its configuration, so that its finding ends with the next step; the others take days."""
THINNED = ("power brake, a quarter of the clock",)
"""It is judged by clocks in each pass, of which any trace has one in 15 s: a replay finds the failure some passes later."""
FIRST = ("GPU gone from the bus, no Xid", "Xid 79", "double-bit error, counter only", "driver hangs", "NVLink down")
FAILURES = [
    *FIRST,
    *(row.name for row in CLASSES if row.severity == "failure" and row.name not in (*FIRST, *LATER, *THINNED)),
]


@pytest.mark.parametrize("fault", first_quick(len(FIRST), FAILURES))
def test_a_replay_gives_the_verdict_that_was_given(fault: str, tmp_path: Path) -> None:
    box, verdict = frozen_of(story(fault, 120.0), tmp_path)
    assert content(judged(box.path)) == content(verdict)


@pytest.mark.slow
@pytest.mark.parametrize("fault", first_quick(1, FAILURES[1::8]))
def test_it_does_though_the_ring_has_lost_its_beginning(fault: str, tmp_path: Path) -> None:
    box, verdict = frozen_of(story(fault, 8000.0), tmp_path)
    assert not (tmp_path / "ring-00000001.trace.gz").exists()
    assert content(judged(box.path)) == content(verdict)


def test_parts_of_one_recording_are_read_as_one_that_never_began_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "SEGMENT_SECONDS", 60.0)
    box, _ = frozen_of(story(FAILURES[0], 400.0), tmp_path)
    with TraceReader(box.path) as trace:
        kinds = [type(record).__name__ for record in trace]
    assert len(list(tmp_path.glob("ring-*"))) > 5
    assert kinds.count("Began") == 1
