"""Log lines of events whose text depends on what the event says."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from gpuwarden.engine.log_lines import write_line
from gpuwarden.features.evacuation.policy.events import saved
from gpuwarden.features.evacuation.policy.model import BY_EXIT, BY_STEP
from gpuwarden_collectors.facts import Stamp

NOW = Stamp(boottime=1.0, wall=1.0)


@pytest.mark.parametrize(
    ("by", "has_saved", "text"),
    [
        ("socket", True, "checkpoint acknowledged"),
        ("file", True, "checkpoint acknowledged"),
        ("socket", False, "acknowledged without a checkpoint"),
        ("file", False, "acknowledged without a checkpoint"),
        (BY_EXIT, False, "signalled process ended"),
        (BY_STEP, False, "job ended before acknowledging"),
    ],
)
def test_a_log_line_says_whether_a_job_acknowledged_a_checkpoint_or_ended(by: str, has_saved: bool, text: str) -> None:
    with capture_logs() as lines:
        write_line(saved("slurm/7", by, saved=has_saved, boot_id="b", now=NOW))
    assert [line["event"] for line in lines] == [text]
