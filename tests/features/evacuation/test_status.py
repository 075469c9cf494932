"""What operators see of jobs that save."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwarden.features.evacuation.policy.events import saved
from gpuwarden.features.evacuation.policy.model import BY_EXIT
from gpuwarden.features.evacuation.shown import NAME, Evacuations
from gpuwarden.features.evacuation.status import document
from gpuwarden.features.evacuation.status_text import sections
from support.evacuations import BOOT, Story, announced, process
from support.snapshots import snapshot


def shown(story: Story) -> str:
    """Return the line of the only job in `gpuwarden status`."""
    features = {NAME: Evacuations(evacuations=tuple(story.state.evacuations.values()))}
    (_, lines), _ = sections({"mode": "enforce", **document(replace(snapshot(), features=features))})
    return lines[0]


@pytest.mark.parametrize(
    ("by", "first", "all_of_them"),
    [
        ("socket", "1 of 2 ranks here done, saved step 7 (acknowledged by socket)", "saved step 7 (acknowledged by socket)"),
        (BY_EXIT, "1 of 2 ranks here done (acknowledged by exit)", "is done (acknowledged by exit)"),
    ],
)  # fmt: skip
def test_a_job_has_saved_once_all_of_its_ranks_have(by: str, first: str, all_of_them: str) -> None:
    story = Story().runs(7, process(1, rank=0), process(2, rank=1)).announces(announced()).acts()
    for pid, text in ((1, first), (2, all_of_them)):
        answers = by == "socket"
        story.took([
            saved(
                "slurm/7", by, saved=answers, process=(pid, 10 * pid), step=7 if answers else None,
                rank=pid - 1 if answers else None, boot_id=BOOT, now=story.now,
            )
        ])  # fmt: skip
        assert shown(story).endswith(f"; {text}")
