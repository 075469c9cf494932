"""What real GPUs answered (tests/data/recorded), judged, published, and compared with what the fake library answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest

from gpuwarden.health.model import EventKind, Health
from gpuwarden.publish.metrics.exposition import Renderer
from gpuwarden.replay.replay import Replay
from gpuwarden.trace.records import Passed
from gpuwarden_collectors.facts import NvmlFacts
from gpuwarden_collectors.gpu_readings import GpuReadings
from support.dcgm_exporter import DEFAULTS
from support.nvml_nodes import node_in
from support.scrape import Scrape
from support.snapshots import UPTIME, at, snapshot
from support.traces import read
from support.trees import DATA

WITHOUT_SERIES = {
    "DCGM_FI_DEV_XID_ERRORS",  # there was none yet
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",  # a virtual machine without a switch
}


@pytest.fixture(params=["h100", "h200"])
def trace(request: pytest.FixtureRequest) -> Path:
    return DATA / "recorded" / f"{request.param}.trace"


def passes(trace: Path) -> Iterator[NvmlFacts]:
    for record in read(trace):
        if isinstance(record, Passed) and record.observation.collector == "nvml":
            assert isinstance(record.observation.facts, NvmlFacts)
            yield record.observation.facts


def test_a_real_healthy_gpu_is_healthy_without_findings(trace: Path) -> None:
    replay = Replay()
    steps = [step for record in read(trace) for step in replay.take(record)]
    kinds = {event.kind for step in steps for event in step.events}
    assert kinds == {EventKind.HOST_LEARNED}  # its remapped rows, to which later ones are compared
    verdict = steps[-1].verdict
    assert (verdict.health, verdict.expected, verdict.findings) == (Health.HEALTHY, 1, ())


def test_a_real_gpu_has_the_default_counters_of_dcgm_exporter(trace: Path) -> None:
    renderer = Renderer()
    for number, facts in enumerate(passes(trace)):  # what is a rate needs two
        now = at(UPTIME + 5 * number)
        page = renderer.render(replace(snapshot(1), nvml=facts, observed=now, made=now))
    names = {sample.name.removesuffix("_total") for sample in Scrape(page.text).samples}
    assert {row.name for row in DEFAULTS if row.name.removesuffix("_total") not in names} == WITHOUT_SERIES


def answered(readings: GpuReadings) -> set[str]:
    return {field.name for field in fields(GpuReadings) if getattr(readings, field.name) is not None}


def test_the_fake_library_answers_all_that_a_real_one_does(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = answered(next(passes(trace)).gpus[0].readings)
    with node_in(tmp_path, monkeypatch) as node:
        node.reader.connect()
        fake = answered([node.read(), node.read()][-1].gpus[0].readings)
    assert real - fake == set()
