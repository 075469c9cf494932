"""A worker that is started once there is something for it to read: real workers, a real socket for the engine."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuwarden.collect.on_demand import OnDemandWorker
from gpuwarden.collect.schedule import ThreadCollector
from gpuwarden_collectors.base import PassOutcome, host_clock
from gpuwarden_collectors.dcgm.facts import DcgmFacts
from gpuwarden_collectors.dcgm.options import DcgmOptions
from gpuwarden_collectors.dcgm.presence import check_presence
from gpuwarden_collectors.worker.life import WorkerLimits
from support.dcgm import BINDINGS, FakeDcgm
from support.workers import ENVIRONMENT, SOON, Make, report, workers


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    async with workers() as make:
        yield make


def dcgm_at(make: Make, place: Path, fake: FakeDcgm) -> OnDemandWorker[DcgmFacts]:
    options = DcgmOptions(bindings=BINDINGS, probe=(f"unix://{place}",))
    worker = make(
        options, WorkerLimits(deadline=SOON), reader="gpuwarden_collectors.dcgm.reader:DcgmReader", facts_type=DcgmFacts,
        environment=ENVIRONMENT | fake.environment,
    )  # fmt: skip
    return OnDemandWorker(ThreadCollector("dcgm", lambda: check_presence(options), SOON, host_clock), worker)


async def test_an_engine_that_is_started_later_gets_its_worker_and_keeps_it(make: Make, tmp_path: Path) -> None:
    fake, place = FakeDcgm(tmp_path), tmp_path / "engine"
    dcgm = dcgm_at(make, place, fake)
    for _ in range(2):
        seen = await dcgm.observe()
        assert (seen.outcome, report(seen).pid, report(seen).restarts) == (PassOutcome.ABSENT, None, 0)
        assert seen.error.startswith("no nv-hostengine of root or of this user listens at unix://")
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(place))
        engine.listen()
        seen = await dcgm.observe()
        assert seen.facts is not None, seen.error
        pid = report(seen).pid
    place.unlink()
    fake.stop()
    await dcgm.observe()
    gone = await dcgm.observe()
    assert (gone.outcome, report(gone).pid) == (PassOutcome.FAILED, pid)
    assert "is gone" in gone.error
