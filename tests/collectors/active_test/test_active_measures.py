"""What is computed from launches of an active test, without any GPU; and what a worker prepares before it starts CUDA."""

from __future__ import annotations

import fcntl
import os
from itertools import pairwise
from pathlib import Path

import pytest

from gpuwarden_collectors.active_test import run as runs
from gpuwarden_collectors.active_test.chunks import KernelTally, chunk
from gpuwarden_collectors.active_test.cuda.device import prepare
from gpuwarden_collectors.active_test.kernels import layout
from gpuwarden_collectors.active_test.kernels.layout import WarpRecord
from gpuwarden_collectors.active_test.level import Level
from gpuwarden_collectors.active_test.memory_kernels import pattern
from gpuwarden_collectors.active_test.pcie import DISCARDED, JUDGED, best
from gpuwarden_collectors.active_test.process import local_cpus
from gpuwarden_collectors.active_test.request import PLANS
from gpuwarden_collectors.active_test.run import turn
from support.active_workers import run
from support.fake_cuda_library import FakeCuda
from support.pattern_model import word

ROUNDS = 10
LOOPS = ROUNDS * layout.LOOPS


def warp(sm: int, *, checksum: int = 7, cycles: float = 1000, nanoseconds: int = 500 * LOOPS) -> WarpRecord:
    return WarpRecord(sm, checksum, round(cycles * LOOPS), nanoseconds)


def test_sm_is_as_slow_as_its_slowest_warp() -> None:
    measured = chunk([warp(0), warp(0, cycles=1010), warp(1), warp(1)], ROUNDS, "int8", 7)
    assert measured.cycles == {0: 1010, 1: 1000}


def test_clock_and_rate_come_from_the_kernels_own_timers() -> None:
    measured = chunk([warp(sm) for sm in range(4)], ROUNDS, "int8", 7)
    assert measured.clock == pytest.approx(2000)  # MHz: 1000 cycles in 500 ns
    assert measured.rate == pytest.approx(layout.OPERATIONS["int8"] * 4 / 500e-9)
    assert chunk([warp(0)], ROUNDS, "alu", 7).rate == 0


@pytest.mark.parametrize(("expected", "deviating"), [(7, {2: 1}), (None, {2: 1}), (8, {1: 2, 2: 1})])
def test_result_is_compared_with_the_known_one_or_with_most_warps(
    expected: int | None, deviating: dict[int, int]
) -> None:
    measured = chunk([warp(1), warp(1), warp(2, checksum=8), warp(2)], ROUNDS, "fp64", expected)
    assert measured.deviating == deviating


def test_chunks_that_warm_up_count_for_results_only() -> None:
    tally = KernelTally("int8", sms=2)
    tally.add(chunk([warp(0, cycles=5000), warp(1, checksum=1)], ROUNDS, "int8", 7), warm=False)
    tally.add(chunk([warp(0), warp(1)], ROUNDS, "int8", 7), warm=True)
    facts = tally.facts()
    assert facts is not None
    assert (facts.chunks, facts.cycles, facts.cycles_most, facts.outliers) == (1, 1000, 1000, ())
    assert [(deviation.sm, deviation.chunks) for deviation in facts.deviations] == [(1, 1)]


def test_a_chunk_with_two_wrong_sms_is_one_wrong_chunk() -> None:
    tally = KernelTally("int8", sms=3)
    tally.add(chunk([warp(0, checksum=1), warp(1, checksum=2), warp(2)], ROUNDS, "int8", 7), warm=True)
    tally.add(chunk([warp(0), warp(1), warp(2)], ROUNDS, "int8", 7), warm=True)
    facts = tally.facts()
    assert facts is not None
    assert (facts.wrong_chunks, facts.deviating) == (1, 2)


def test_kernel_that_never_ran_is_no_fact() -> None:
    assert KernelTally("int8", sms=2).facts() is None


def test_gaps_in_the_numbers_of_sms_are_none_missing() -> None:
    """PTX leaves the numbering open; as many SMs as there are is all."""
    tally = KernelTally("int8", sms=3)
    tally.add(chunk([warp(0), warp(2), warp(5)], ROUNDS, "int8", 7), warm=True)
    facts = tally.facts()
    assert facts is not None
    assert facts.missing == ()


def test_best_copy_is_that_of_twenty_after_three() -> None:
    seconds = iter([0.001] * DISCARDED + [0.5] * (JUDGED - 1) + [0.25])
    checks: list[None] = []
    assert best(1000, lambda: next(seconds), lambda: checks.append(None)) == 4000
    assert len(checks) == 2


def test_turn_that_never_comes_is_not_waited_for_forever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "WAIT_MOST", 0.1)
    other = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    checks: list[None] = []
    with turn(str(tmp_path), lambda: checks.append(None)) as own:
        assert not own
    assert checks  # for others on the GPU, while it waits
    os.close(other)
    with turn(str(tmp_path), lambda: None) as own:
        assert own


def test_worker_by_itself_has_the_turn(tmp_path: Path) -> None:
    for folder in (None, str(tmp_path / "absent")):
        with turn(folder, lambda: None) as own:
            assert own


def test_environment_shows_cuda_one_gpu_and_no_mps_server() -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "", "CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps", "CUDA_CACHE_PATH": "/own"}
    prepare(environment, ("GPU-a", "GPU-b"))
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert not Path(environment["CUDA_MPS_PIPE_DIRECTORY"]).is_dir()
    assert "CUDA_CACHE_DISABLE" not in environment


@pytest.mark.parametrize("variables", [{}, {"CUDA_CACHE_PATH": ""}])
def test_kernels_of_a_users_cache_are_never_run(variables: dict[str, str]) -> None:
    environment = dict(variables)
    prepare(environment, ("GPU-a",))
    assert environment["CUDA_CACHE_DISABLE"] == "1"


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-2,8-9\n", {0, 1, 2, 8, 9}), ("3\n", {3}), ("\n", set()), ("none", set()), (None, set())]
)
def test_local_cpus_are_those_of_the_gpus_slot(tmp_path: Path, text: str | None, cpus: set[int]) -> None:
    folder = tmp_path / "bus/pci/devices/0000:1b:00.0"
    folder.mkdir(parents=True)
    if text is not None:
        (folder / "local_cpulist").write_text(text)
    assert local_cpus("00000000:1B:00.0", str(tmp_path)) == cpus


def test_each_level_does_all_that_the_one_before_does() -> None:
    plans = [PLANS[level] for level in Level]
    for less, more in pairwise(plans):
        assert all(more.kernels[name] >= seconds for name, seconds in less.kernels.items())
        assert (more.pcie, more.peers, more.marches) >= (less.pcie, less.peers, less.marches)


def test_patterns_of_both_kinds_come_plain_and_inverted() -> None:
    assert {(memory_pattern.kind, memory_pattern.complement) for memory_pattern in (pattern(5, number) for number in range(4))} == {
        (layout.ADDRESS, 0), (layout.HASH, 0), (layout.ADDRESS, 1), (layout.HASH, 1),
    }  # fmt: skip


@pytest.mark.slow
def test_fake_memory_kernels_write_the_pattern_of_the_python_function(tmp_path: Path) -> None:
    offset = (3 << 20) + 8
    measured = run(FakeCuda.build(tmp_path).add(f"stuck {offset} 0 1"), "quick", seed=(5 << 32) + 77)
    assert measured.memory is not None
    wanted = {
        word(offset // 4, memory_pattern.seed, memory_pattern.kind, complement)
        for memory_pattern in (pattern((5 << 32) + 77, number) for number in range(9))
        for complement in (0, 1)
    }
    assert {mismatch.expected for mismatch in measured.memory.first} <= wanted
    assert len({mismatch.march for mismatch in measured.memory.first}) >= 5
