"""Jobs die on real nodes of a real Slurm, and `gpuwarden why` names what ended each; hardware is never accused without a fault of it."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from features.why.death_campaign import Campaign, Verdict
from features.why.death_table import DEATHS
from features.why.deaths import Death
from gpuwarden.features.why.model import Cause
from support.slurm import SLURM_BESIDE, require_slurm


@pytest.fixture(scope="module")
def verdicts() -> Iterator[Mapping[str, Verdict]]:
    """All are played at once: a job has its record a minute after its end."""
    require_slurm()
    with tempfile.TemporaryDirectory(prefix="gw-why-", ignore_cleanup_errors=True) as folder:
        campaign = Campaign(DEATHS, Path(folder))
        campaign.run()
        yield {verdict.death.name: verdict for verdict in campaign.verdicts}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("death", [pytest.param(death, id=death.name, marks=SLURM_BESIDE) for death in DEATHS])
def test_what_ended_a_job_is_named(verdicts: Mapping[str, Verdict], death: Death) -> None:
    verdict = verdicts[death.name]
    assert not verdict.falsely, f"hardware is accused falsely: {verdict.answer}"
    assert verdict.faults == (), verdict.document


def test_the_table_has_each_cause_and_each_death_once() -> None:
    assert {cause for death in DEATHS for cause in death.expected} == set(Cause)
    assert [name for name, count in Counter(death.name for death in DEATHS).items() if count > 1] == []
    assert sum(Cause.HARDWARE not in death.expected for death in DEATHS) >= 30, "those that accuse nobody falsely"
