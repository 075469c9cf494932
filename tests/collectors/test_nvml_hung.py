"""Real workers over the fake library, with calls about one GPU that do not return: it is named, and the others are read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpuwarden_collectors.base import Observation, PassOutcome
from gpuwarden_collectors.facts import GpuAnswer, NvmlFacts, NvmlProblem
from gpuwarden_collectors.nvml.options import NvmlOptions
from gpuwarden_collectors.worker.life import WorkerLimits
from gpuwarden_collectors.worker.worker import Worker
from support.fake_nvml_library import FakeNvml
from support.workers import ENVIRONMENT, SOON, Make, report, seen_when, workers

LIMITS = WorkerLimits(deadline=8.0, term_grace=0.5)
"""A busy machine takes seconds to start the next worker, which must not miss its deadline for that."""
HUNG = 3
SLOT = "0000:42:00.0"
OTHERS = [index for index in range(8) if index != HUNG]


@pytest.fixture
async def worker() -> AsyncIterator[Make]:
    async with workers() as make:
        yield make


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    return FakeNvml.build(tmp_path)


def reader(make: Make, fake: FakeNvml) -> Worker[Any]:
    return make(
        NvmlOptions(library=str(fake.library)), LIMITS, reader="gpuwarden_collectors.nvml.reader:NvmlReader",
        facts_type=NvmlFacts, environment={**ENVIRONMENT, **fake.environment},
    )  # fmt: skip


def answers(seen: Observation[NvmlFacts]) -> dict[int, GpuAnswer]:
    assert seen.facts is not None, seen.error
    return {gpu.index: gpu.answer for gpu in seen.facts.gpus}


async def observed(of: Worker[Any]) -> Observation[NvmlFacts]:
    """The first pass that gives facts."""
    async with asyncio.timeout(SOON):
        while (seen := await of.observe()).facts is None:
            await asyncio.sleep(0.05)
    return seen


@pytest.mark.slow
async def test_a_missed_deadline_names_the_gpu_and_the_call(worker: Make, fake: FakeNvml) -> None:
    call = "nvmlDeviceGetNvLinkState"
    nvml = reader(worker, fake)
    await observed(nvml)
    fake.hang(HUNG, call)
    seen = await nvml.observe()
    assert seen.outcome is PassOutcome.TIMED_OUT
    assert f"no answer from {SLOT} in {call} within 8 s" in seen.error
    assert report(seen).silence == f"no answer from {SLOT} in {call}"


@pytest.mark.slow
async def test_a_missed_deadline_about_no_gpu_names_the_call(worker: Make, fake: FakeNvml) -> None:
    nvml = reader(worker, fake)
    await observed(nvml)
    fake.hang("*", "nvmlDeviceGetCount_v2")
    assert report(await nvml.observe()).silence == "no answer in nvmlDeviceGetCount"


@pytest.mark.slow
async def test_the_next_worker_reads_the_others_before_the_gpu_that_hangs(worker: Make, fake: FakeNvml) -> None:
    nvml = reader(worker, fake)
    await observed(nvml)
    fake.hang(HUNG, "nvmlDeviceGetFieldValues").reading(0, "temperature", 77)
    assert (await nvml.observe()).outcome is PassOutcome.TIMED_OUT
    seen = await observed(nvml)
    assert answers(seen) == {index: GpuAnswer.HUNG if index == HUNG else GpuAnswer.OK for index in range(8)}
    assert seen.facts is not None
    hung = seen.facts.gpus[HUNG]
    assert hung.slot == SLOT
    assert hung.errors[0].call == "nvmlDeviceGetFieldValues"
    assert hung.errors[0].text.startswith("no answer for ")
    assert seen.facts.gpus[0].readings.temperature == 77
    assert (report(seen).missed, report(seen).silent_since, report(seen).silence) == (0, None, "")


@pytest.mark.slow
async def test_after_a_second_hang_it_is_left_out_and_the_same_worker_goes_on(worker: Make, fake: FakeNvml) -> None:
    nvml = reader(worker, fake)
    await observed(nvml)
    fake.hang(HUNG, "nvmlDeviceGetFieldValues")
    await nvml.observe()
    await observed(nvml)
    async with asyncio.timeout(SOON):
        while report(await observed(nvml)).restarts < 2:
            pass  # the second worker still has time left when the first pass that it answers in part is over
    passes = [await observed(nvml) for _ in range(3)]
    assert {(report(seen).pid, report(seen).restarts) for seen in passes} == {(report(passes[0]).pid, 2)}
    assert {answers(seen)[HUNG] for seen in passes} == {GpuAnswer.HUNG}
    assert {answers(seen)[index] for seen in passes for index in OTHERS} == {GpuAnswer.OK}


@pytest.mark.slow
async def test_a_gpu_that_answers_again_is_read_in_its_turn(worker: Make, fake: FakeNvml) -> None:
    nvml = reader(worker, fake)
    await observed(nvml)
    fake.hang(HUNG, "nvmlDeviceGetFieldValues")
    await nvml.observe()
    fake.clear()
    seen = await observed(nvml)  # asked last, and it answers
    assert set(answers(seen).values()) == {GpuAnswer.OK}
    assert seen.facts is not None
    assert [gpu.index for gpu in seen.facts.gpus] == list(range(8))
    assert seen.facts.gpus[HUNG].readings.temperature is not None


@pytest.mark.slow
async def test_where_a_worker_had_to_be_killed_the_gpu_is_not_asked_again_at_once(worker: Make, fake: FakeNvml) -> None:
    """Another question would use up the budget of kills, so that no GPU is read any more."""
    nvml = reader(worker, fake)
    await observed(nvml)
    fake.hang(HUNG, "nvmlDeviceGetFieldValues", hard=True)
    assert (await nvml.observe()).outcome is PassOutcome.TIMED_OUT
    passes = [await observed(nvml) for _ in range(3)]
    assert {(report(seen).restarts, report(seen).kills) for seen in passes} == {(1, 1)}
    assert {answers(seen)[HUNG] for seen in passes} == {GpuAnswer.HUNG}
    assert {answers(seen)[index] for seen in passes for index in OTHERS} == {GpuAnswer.OK}


@pytest.mark.slow
async def test_a_gpu_whose_handle_hangs_is_named_and_avoided(worker: Make, fake: FakeNvml) -> None:
    nvml = reader(worker, fake)
    await observed(nvml)
    fake.hang(HUNG, "nvmlDeviceGetPciInfo_v3")
    seen = await nvml.observe()
    assert report(seen).silence == f"no answer from {SLOT} in nvmlDeviceGetPciInfo"
    seen = await observed(nvml)
    assert answers(seen) == {index: GpuAnswer.HUNG if index == HUNG else GpuAnswer.OK for index in range(8)}


@pytest.mark.slow
async def test_a_gpu_whose_first_call_hangs_in_each_new_worker_keeps_its_name(worker: Make, fake: FakeNvml) -> None:
    """The next worker has never seen its address, and first asks for its handle, in which it hangs."""
    nvml = reader(worker, fake)
    await observed(nvml)
    fake.hang(HUNG, "nvmlDeviceGetHandleByIndex_v2")
    assert (await nvml.observe()).outcome is PassOutcome.TIMED_OUT
    while report(seen := await observed(nvml)).restarts < 2:
        assert seen.facts is not None
        assert seen.facts.gpus[HUNG].slot == SLOT
    passes = [await observed(nvml) for _ in range(3)]
    assert {seen.facts.gpus[HUNG].slot for seen in passes if seen.facts} == {SLOT}
    assert {answers(seen)[HUNG] for seen in passes} == {GpuAnswer.HUNG}
    assert {(report(seen).pid, report(seen).restarts) for seen in passes} == {(report(passes[0]).pid, 2)}


# --- a driver that initialises its GPUs, as without persistence mode, when they are asked for


def initialising(make: Make, fake: FakeNvml, init_deadline: float = SOON) -> Worker[Any]:
    """Eight GPUs whose first handle takes half a second each: four seconds, of which a pass may take two."""
    fake.slow("*", "nvmlDeviceGetHandleByIndex_v2", 500_000)
    return make(
        NvmlOptions(library=str(fake.library)), WorkerLimits(deadline=2.0, init_deadline=init_deadline, term_grace=0.5),
        reader="gpuwarden_collectors.nvml.reader:NvmlReader", facts_type=NvmlFacts, environment={**ENVIRONMENT, **fake.environment},
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("loaded_later", [False, True], ids=["at the start", "a driver that is loaded later"])
async def test_a_driver_that_initialises_one_gpu_after_the_other_is_waited_for_as_one_worker(
    worker: Make, fake: FakeNvml, *, loaded_later: bool
) -> None:
    if loaded_later:
        fake.init_error(9)
    nvml = initialising(worker, fake)
    if loaded_later:
        assert getattr((await nvml.observe()).facts, "problem", None) is NvmlProblem.DRIVER_NOT_LOADED
        fake.clear().slow("*", "nvmlDeviceGetHandleByIndex_v2", 500_000)
    late = await nvml.observe()
    assert (late.outcome, report(late).missed) == (PassOutcome.TIMED_OUT, 0)
    assert "no answer yet" in late.error
    seen = await observed(nvml)
    assert set(answers(seen).values()) == {GpuAnswer.OK}
    assert (report(seen).restarts, report(seen).timeouts) == (0, 0)


@pytest.mark.slow
async def test_a_driver_that_hangs_at_a_gpu_while_it_initialises_is_not_waited_for(
    worker: Make, fake: FakeNvml
) -> None:
    nvml = initialising(worker, fake)
    fake.hang(HUNG, "nvmlDeviceGetFieldValues")
    seen = await seen_when(nvml, lambda worker: worker.missed)
    assert report(seen).silence == f"no answer from {SLOT} in nvmlDeviceGetFieldValues"


@pytest.mark.slow
async def test_a_driver_that_initialises_for_longer_than_it_may_is_silent(worker: Make, fake: FakeNvml) -> None:
    nvml = initialising(worker, fake, init_deadline=3.0)
    seen = await seen_when(nvml, lambda worker: worker.missed)
    assert "no answer from" in seen.error
    assert "within 3 s" in seen.error
