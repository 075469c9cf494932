"""Jobs die on real nodes of a real Slurm, and `gpuwarden why` names what ended each; hardware is never accused without a fault of it.

`benchmarks/why_deaths.py` plays more of them.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from features.why.death_campaign import Campaign, Verdict
from features.why.death_table import DEATHS
from gpuwarden.features.why.model import Cause
from support.slurm import SLURM_PARTS, require_slurm

HERE = [death for death in DEATHS if not death.alike]


@pytest.fixture(scope="module")
def verdicts() -> Iterator[Mapping[str, Verdict]]:
    """All are played at once: a job has its record a minute after its end."""
    require_slurm()
    with tempfile.TemporaryDirectory(prefix="gw-why-", ignore_cleanup_errors=True) as folder:
        campaign = Campaign(HERE, Path(folder))
        campaign.run()
        yield {verdict.death.name: verdict for verdict in campaign.verdicts}


RIGHT = 58 / 60
"""Share of the deaths whose cause must be named: what `why` promises."""
PLAYED = 0.8
"""Share of the deaths that must have been played: on a busy machine a Slurm may not start a job in time."""


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("verdicts", [pytest.param(None, marks=SLURM_PARTS)], indirect=True)
def test_what_ended_jobs_is_named_and_hardware_is_never_accused_falsely(verdicts: Mapping[str, Verdict]) -> None:
    assert {name: verdict.answer for name, verdict in verdicts.items() if verdict.falsely} == {}
    played = {name: verdict for name, verdict in verdicts.items() if verdict.played}
    not_played = {name: verdict.faults for name, verdict in verdicts.items() if not verdict.played}
    assert len(played) >= PLAYED * len(HERE), str(not_played)
    wrong = {name: (verdict.faults, verdict.document) for name, verdict in played.items() if verdict.faults}
    assert len(wrong) <= (1 - RIGHT) * len(played), json.dumps(wrong, indent=1)  # whole: the documents show why


def test_the_table_has_each_cause_and_each_death_once() -> None:
    assert {cause for death in HERE for cause in death.expected} == set(Cause)
    assert [name for name, count in Counter(death.name for death in DEATHS).items() if count > 1] == []
    assert sum(Cause.HARDWARE not in death.expected for death in DEATHS) >= 30, "those that accuse nobody falsely"
