"""Who follows jobs may be killed at any moment: each job that ended has one record all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.why_killed import LEAST, killed


@pytest.mark.slow
def test_no_record_is_lost_or_written_twice_where_its_writer_is_killed_again_and_again(tmp_path: Path) -> None:
    """`benchmarks/kill_records.py` kills it 200 times."""
    counted = killed(tmp_path, times=12, seed=4711)
    assert counted.total() >= LEAST, "the jobs of 12 lives"
    assert set(counted) == {1}
