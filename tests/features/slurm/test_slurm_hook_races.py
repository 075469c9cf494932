"""Root's scripts in the folders of a daemon that somebody got into: nothing of that user is run, followed or waited for.

A few hundred races here; `benchmarks/hook_races.py` runs as many as are asked for.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from support.hook_races import RaceHost, race
from support.needs import root_rights

ROUNDS = 300


@pytest.mark.slow
def test_an_intruder_in_the_daemon_cannot_make_root_run_or_write_anything() -> None:
    root_rights()
    with tempfile.TemporaryDirectory(prefix="gw-") as folder:
        races = race(RaceHost(Path(folder)), ROUNDS)
    assert (races.ran, races.written, races.followed, races.hung, races.refused) == (0, [], 0, 0, 0), races
    assert races.rounds >= ROUNDS
    assert races.swaps > ROUNDS, "nobody raced: this proves nothing"
