"""What the worker of an active test measures, on simulated GPUs: each level, each fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwarden_collectors.active_test.facts import Deviation, GpuMeasured, KernelMeasured, Obstacle
from gpuwarden_collectors.active_test.kernels import layout
from gpuwarden_collectors.active_test.kernels.layout import SEEDS
from gpuwarden_collectors.active_test.memory_kernels import pattern
from gpuwarden_collectors.active_test.pcie import DISCARDED, JUDGED
from gpuwarden_collectors.active_test.peers import PEER_PATTERN
from support.active_workers import active_worker, request, run
from support.fake_cuda_library import MEMORY, FakeCuda
from support.pattern_model import word

GIB = 1 << 30
BEYOND_PCIE = 2 << 20  # an offset that the short copies of PCIe do not reach


@pytest.fixture
def fake(tmp_path: Path) -> FakeCuda:
    return FakeCuda.build(tmp_path)


def kernel(measured: GpuMeasured, name: str) -> KernelMeasured:
    (measured_kernel,) = (kernel for kernel in measured.kernels if kernel.kernel == name)
    return measured_kernel


# --- A GPU on which nothing is to be found ---------------------------------------------------------------------------


def test_gate_runs_int8_and_one_march(fake: FakeCuda) -> None:
    measured = run(fake, "gate")
    assert (measured.obstacle, measured.text) == (None, "")
    assert [kernel.kernel for kernel in measured.kernels] == ["int8"]
    assert measured.memory is not None
    assert measured.memory.marches == 1
    assert (measured.pcie, measured.peers) == (None, ())


@pytest.mark.slow
def test_quick_measures_everything_of_one_gpu(fake: FakeCuda) -> None:
    measured = run(fake, "quick")
    assert measured.obstacle is None
    assert [measured_kernel.kernel for measured_kernel in measured.kernels] == ["int8", "bf16", "fp64", "alu"]
    for measured_kernel in measured.kernels:
        assert (measured_kernel.sms, measured_kernel.missing, measured_kernel.deviating, measured_kernel.outliers) == (
            132,
            (),
            0,
            (),
        )
        assert measured_kernel.chunks >= 5
        assert measured_kernel.clock == pytest.approx(1850, rel=1e-6)
    assert kernel(measured, "int8").cycles == pytest.approx(3378)
    assert kernel(measured, "int8").rate == pytest.approx(1.2128e15, rel=1e-3)
    assert measured.memory is not None
    assert (measured.memory.marches, measured.memory.mismatches) == (9, 0)
    assert measured.memory.write == pytest.approx(3.18e12, rel=1e-3)
    assert measured.memory.verify == pytest.approx(3.05e12, rel=1e-3)
    assert measured.pcie is not None
    assert (measured.pcie.to_host, measured.pcie.to_device) == pytest.approx((55e9, 55e9), rel=1e-3)
    assert measured.pcie.mismatches == 0
    assert measured.kernels_version == layout.VERSION


@pytest.mark.slow
def test_standard_reads_every_peer(tmp_path: Path) -> None:
    fake = FakeCuda.build(tmp_path, gpus=3).add(
        "write_speed 3e8", "verify_speed 3e8"
    )  # each march takes long on the GPU
    measured = run(fake, "standard", peers=fake.uuids[1:])
    assert measured.obstacle is None
    assert [peer.peer for peer in measured.peers] == list(fake.uuids[1:])
    assert [peer.speed for peer in measured.peers] == pytest.approx([380e9, 380e9], rel=1e-3)
    assert [peer.mismatches for peer in measured.peers] == [0, 0]
    assert [fake.holders(gpu) for gpu in (1, 2)] == [set(), set()]  # the contexts on them were released


def test_nothing_is_computed_before_all_workers_have_left_the_gpus_of_others(tmp_path: Path) -> None:
    """A context that is made on a GPU takes time of all its SMs."""
    fake = FakeCuda.build(tmp_path, gpus=2)
    with active_worker(request(fake, "standard", peers=fake.uuids[1:]), fake.contexts) as worker:
        worker.until(asks="compute")
        assert worker.phases == ["start", "pcie", "peers"]
        assert fake.holders(1) == set()
        worker.answer("go")
        assert worker.until(phase="int8")


@pytest.mark.slow
def test_peers_without_a_way_between_them_are_left_out(tmp_path: Path) -> None:
    fake = FakeCuda.build(tmp_path, gpus=2).add("write_speed 3e8", "verify_speed 3e8", "no_peers")
    measured = run(fake, "standard", "none", peers=fake.uuids[1:])
    assert (measured.obstacle, measured.peers) == (None, ())


@pytest.mark.parametrize("fault", ["cuDevicePrimaryCtxRetain 214 2", f"memory_verify 214 {DISCARDED + JUDGED + 1}"])
def test_error_of_a_peer_is_the_peer_s_and_what_was_measured_is_kept(tmp_path: Path, fault: str) -> None:
    fake = FakeCuda.build(tmp_path, gpus=3).add(f"error {fault}")
    measured = run(fake, "standard", "none", peers=fake.uuids[1:])
    assert measured.obstacle is Obstacle.GPU_ERROR
    assert measured.pcie is not None
    (peer,) = measured.peers
    assert (peer.peer, peer.speed) == (fake.uuids[1], 0)
    assert f"{fake.uuids[1]}, read by {fake.uuids[0]}" in peer.error
    assert "ECC_UNCORRECTABLE (214)" in peer.error


def test_peer_without_room_for_a_context_is_left_out(tmp_path: Path) -> None:
    fake = FakeCuda.build(tmp_path, gpus=2).add("error cuDevicePrimaryCtxRetain 2 2")
    with active_worker(request(fake, "standard", peers=fake.uuids[1:]), fake.contexts) as worker:
        worker.until(asks="compute")


@pytest.mark.slow
def test_peer_that_others_use_is_left_out(tmp_path: Path) -> None:
    fake = FakeCuda.build(tmp_path, gpus=2).add("write_speed 3e8", "verify_speed 3e8")
    fake.nvml.process(1, 1, GIB)
    measured = run(fake, "standard", "none", peers=fake.uuids[1:])
    assert (measured.obstacle, measured.peers) == (None, ())


@pytest.mark.slow
def test_phases_are_written_in_order_and_numbered(fake: FakeCuda) -> None:
    with active_worker(request(fake, "quick"), fake.contexts) as worker:
        worker.measured()
    assert worker.phases == ["start", "pcie", "int8", "bf16", "fp64", "alu", "memory"]
    assert [line["at"] for line in worker.lines if "phase" in line] == [1, 2, 3, 4, 5, 6, 7]
    assert {line["of"] for line in worker.lines if "phase" in line} == {7}
    assert [line for line in worker.lines if "phase" not in line and "measured" not in line] == [{"asks": "memory"}]


def test_temperatures_and_slowdown_reasons_of_the_test_are_kept(fake: FakeCuda) -> None:
    fake.nvml.write(gpus=1, frozen=True).add(f"contexts {fake.contexts}")
    fake.nvml.reading(0, "temperature", 41).reading(0, "clock_event_reasons", 0x5)
    measured = run(fake)
    assert (measured.temperature, measured.temperature_most) == (41, 41)
    assert measured.reasons == 0x4  # 0x1 is idle


# --- Memory ------------------------------------------------------------------------------------------------------------


def test_all_takes_99_percent_of_free_memory(fake: FakeCuda) -> None:
    memory = run(fake).memory
    assert memory is not None
    assert memory.total == MEMORY
    assert 0.99 * memory.free <= memory.tested < memory.free


def test_part_leaves_two_gib(fake: FakeCuda) -> None:
    fake.add(f"memory {2 * GIB + MEMORY}")
    memory = run(fake, memory="part").memory
    assert memory is not None
    assert memory.free - memory.tested >= 2 * GIB
    assert memory.tested >= 0.9 * MEMORY


@pytest.mark.parametrize("answer", ["none", "", "ALL", "everything"])
def test_none_and_every_odd_answer_take_no_memory(fake: FakeCuda, tmp_path: Path, answer: str) -> None:
    log = tmp_path / "log"
    fake.add(f"log {log}")
    measured = run(fake, memory=answer)
    assert (measured.memory, measured.obstacle) == (None, None)
    assert measured.kernels
    assert not log.exists()


def test_no_more_memory_is_taken_than_the_parent_allows(fake: FakeCuda) -> None:
    memory = run(fake, memory_most=8 << 20).memory
    assert memory is not None
    assert 0.99 * (8 << 20) <= memory.tested <= 8 << 20


@pytest.mark.slow
@pytest.mark.parametrize(("speed", "launches"), [(3e12, 4), (9e8, 3), (4e8, 2)])
def test_march_lasts_200_ms_at_most_and_frees_everything(
    fake: FakeCuda, tmp_path: Path, speed: float, launches: int
) -> None:
    """The march makes as many passes as the speed of the GPU allows; at 400 MB/s two over 32 MiB."""
    log = tmp_path / "log"
    fake.add(f"log {log}", f"write_speed {speed}", f"verify_speed {speed}")
    measured = run(fake, "quick")
    assert measured.memory is not None
    assert measured.memory.marches == 9
    blocks = [line.split() for line in log.read_text().splitlines()]
    held = [
        float(freed[2]) - float(taken[2])
        for taken, freed in zip(blocks[0::2], blocks[1::2], strict=True)
        if (taken[0], freed[0]) == ("allocated", "freed")
    ]
    assert len(held) == 9
    passes = (launches - 1) * 2
    assert held[1:] == pytest.approx([passes * measured.memory.tested / speed] * 8, rel=0.01)
    assert all(seconds <= 0.2 for seconds in held[1:])


def test_slow_gpu_is_marched_over_in_parts_each_held_for_200_ms_at_most(fake: FakeCuda, tmp_path: Path) -> None:
    """Writing and verifying 32 MiB takes 0.45 s at 150 MB/s."""
    log = tmp_path / "log"
    fake.add(f"log {log}", "write_speed 1.5e8", "verify_speed 1.5e8")
    memory = run(fake, "gate").memory
    assert memory is not None
    assert (memory.marches, memory.mismatches) == (3, 0)
    assert memory.tested >= 0.99 * memory.free
    times = [float(line.split()[2]) for line in log.read_text().splitlines()]
    held = [freed - taken for taken, freed in zip(times[0::2], times[1::2], strict=True)]
    assert len(held) == 3
    assert all(seconds <= 0.2 for seconds in held[1:])  # the first has found out how fast it is
    fake.add(*(f"stuck {BEYOND_PCIE + 4 * number} 3 1" for number in range(3)))  # from where each write begins
    faulty_memory = run(fake, "gate").memory
    assert faulty_memory is not None
    third = memory.tested // 3
    assert {mismatch.offset // third for mismatch in faulty_memory.first} == {0, 1, 2}
    assert {mismatch.offset % third - BEYOND_PCIE for mismatch in faulty_memory.first} <= set(
        range(-(1 << 16), 1 << 16)
    )


def test_gpu_with_less_memory_than_stays_free_says_so(fake: FakeCuda) -> None:
    measured = run(fake, memory="part")
    assert measured.obstacle is Obstacle.MEMORY_TAKEN
    assert "it has 0.03 GiB in all, and 2.00 GiB stay free" in measured.text


def test_flipped_bit_is_counted_once_with_its_place(fake: FakeCuda) -> None:
    fake.add(f"flip {BEYOND_PCIE + 5} 2")
    memory = run(fake, "gate").memory
    assert memory is not None
    assert memory.mismatches == 1
    (first,) = memory.first
    assert first.offset == BEYOND_PCIE + 4  # of the word
    assert first.expected ^ first.found == 1 << 10


def test_stuck_bit_is_found_again_at_its_place_by_a_second_march(fake: FakeCuda) -> None:
    fake.add(f"stuck {BEYOND_PCIE} 3 1")
    memory = run(fake, "gate").memory
    assert memory is not None
    assert memory.marches == 2
    assert memory.mismatches == sum(1 for _ in memory.first)
    assert {mismatch.offset for mismatch in memory.first} == {BEYOND_PCIE}
    assert {mismatch.march for mismatch in memory.first} == {0, 1}
    assert {mismatch.expected ^ mismatch.found for mismatch in memory.first} == {1 << 3}


def test_many_wrong_words_are_counted_exactly_and_few_are_kept(fake: FakeCuda) -> None:
    fake.add(*(f"flip {BEYOND_PCIE + 4 * word} {word % 8}" for word in range(40)))
    memory = run(fake, "gate").memory
    assert memory is not None
    assert memory.mismatches == 40
    assert len(memory.first) == 8  # the second march found none: half of the room was its own


def test_less_than_nine_tenths_of_memory_is_no_test_of_it(fake: FakeCuda) -> None:
    fake.add(f"largest {MEMORY // 2}")
    measured = run(fake)
    assert measured.obstacle is Obstacle.MEMORY_TAKEN
    assert "less than 90% could be had" in measured.text
    assert measured.memory is None
    assert measured.kernels  # what was measured before is kept


# --- Compute -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["int8", "bf16", "fp64", "alu"])
def test_wrong_result_names_its_sm(fake: FakeCuda, name: str) -> None:
    fake.add(f"wrong {name} 17 4 5")
    measured = run(fake, "quick", "none")
    assert kernel(measured, name).deviations == (Deviation(sm=17, chunks=1, warps=1),)
    assert [other_kernel.deviating for other_kernel in measured.kernels if other_kernel.kernel != name] == [0, 0, 0]


def test_wrong_result_while_the_gpu_warms_up_counts(fake: FakeCuda) -> None:
    fake.add("wrong int8 0 0 1")
    assert kernel(run(fake, memory="none"), "int8").deviations == (Deviation(sm=0, chunks=1, warps=1),)


def test_sm_that_is_always_wrong_deviates_in_every_chunk(fake: FakeCuda) -> None:
    fake.add("wrong int8 131 0 1000")
    int8_kernel = kernel(run(fake, memory="none"), "int8")
    assert int8_kernel.deviations[0].sm == 131
    assert int8_kernel.deviations[0].chunks > int8_kernel.chunks  # those that warm up too


def test_three_chunks_follow_a_wrong_result(fake: FakeCuda, tmp_path: Path) -> None:
    usual = kernel(run(fake, memory="none"), "int8").chunks
    (tmp_path / "again").mkdir()
    again = FakeCuda.build(tmp_path / "again").add(f"wrong int8 17 {usual + 2} {usual + 3}")  # the last: three warm up
    int8_kernel = kernel(run(again, memory="none"), "int8")
    assert (int8_kernel.chunks, int8_kernel.deviations[0].chunks) == (usual + 3, 1)


def test_more_wrong_sms_than_are_kept_are_counted(fake: FakeCuda) -> None:
    fake.add(*(f"wrong int8 {sm} 3 6" for sm in range(20)))
    int8_kernel = kernel(run(fake, memory="none"), "int8")
    assert (len(int8_kernel.deviations), int8_kernel.deviating) == (16, 20)


@pytest.mark.parametrize("name", ["int8", "bf16"])
def test_result_that_all_warps_agree_on_accuses_no_gpu(fake: FakeCuda, name: str) -> None:
    """The kernel was never tried on this architecture or driver, with which a whole fleet would fail."""
    fake.add(*(f"checksum {name} {seed} 12345" for seed in SEEDS))
    measured = run(fake, "quick")
    assert measured.obstacle is Obstacle.UNSUPPORTED
    assert f"compute {name} alike" in measured.text
    assert not any(kernel.deviating for kernel in measured.kernels)


@pytest.mark.parametrize("percent", [0.2, -0.43, 25])
def test_slow_or_fast_sm_is_an_outlier(fake: FakeCuda, percent: float) -> None:
    fake.add(f"slow int8 99 {percent}")
    int8_kernel = kernel(run(fake, memory="none"), "int8")
    (outlier,) = int8_kernel.outliers
    assert (outlier.sm, outlier.chunks) == (99, int8_kernel.chunks)
    assert outlier.worst == pytest.approx(percent / 100, rel=1e-3)
    assert int8_kernel.deviating == 0


def test_noise_of_healthy_sms_makes_no_outlier(fake: FakeCuda) -> None:
    fake.add("slow int8 99 0.003", "slow int8 98 -0.02")
    assert kernel(run(fake, memory="none"), "int8").outliers == ()


def test_all_sms_that_become_slower_together_are_no_outliers_but_show(fake: FakeCuda) -> None:
    fake.add("slow int8 * 6 7")
    int8_kernel = kernel(run(fake, memory="none"), "int8")
    assert int8_kernel.outliers == ()
    assert int8_kernel.cycles_most / int8_kernel.cycles_least == pytest.approx(1.06)


def test_sms_that_no_block_ran_on_are_named(fake: FakeCuda) -> None:
    fake.add("cover 130")
    assert kernel(run(fake, memory="none"), "int8").missing == (130, 131)


@pytest.mark.parametrize("per_sm", [100 << 10, 164 << 10, 228 << 10])
def test_every_sm_is_covered_whatever_shared_memory_it_has(fake: FakeCuda, per_sm: int) -> None:
    """L40S, A100, H100: a block takes more than half of it, and no more than a block may."""
    fake.add(f"shared_per_sm {per_sm}")
    assert kernel(run(fake, memory="none"), "int8").missing == ()


@pytest.mark.parametrize("capability", ["7 0", "7 5"])
def test_gpu_without_the_tensor_instructions_is_tested_for_memory_only(fake: FakeCuda, capability: str) -> None:
    fake.add(f"capability {capability}")
    measured = run(fake)
    assert (measured.obstacle, measured.kernels) == (None, ())
    assert measured.memory is not None
    assert "memory only" in measured.text


# --- PCIe and peers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copy", ["cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2"])
def test_word_that_a_copy_damages_is_a_mismatch(fake: FakeCuda, copy: str) -> None:
    fake.add(f"flip_copy {copy} 4096 6")
    measured = run(fake, "quick", "none")
    assert measured.pcie is not None
    assert measured.pcie.mismatches == DISCARDED + JUDGED
    assert measured.obstacle is None


@pytest.mark.parametrize("copy", ["cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2"])
@pytest.mark.parametrize("number", [1, 9])
def test_word_that_one_of_many_copies_damages_is_found(fake: FakeCuda, copy: str, number: int) -> None:
    fake.add(f"flip_copy {copy} 4096 6 {number}")
    measured = run(fake, "quick", "none")
    assert measured.pcie is not None
    assert measured.pcie.mismatches == 1
    assert measured.pcie.to_host == pytest.approx(55e9, rel=1e-3)


def test_copy_that_leaves_what_the_one_before_left_is_found(fake: FakeCuda) -> None:
    fake.add("silent cuMemcpyDtoHAsync_v2 2")
    measured = run(fake, "quick", "none")
    assert measured.pcie is not None
    assert measured.pcie.mismatches > 0


def test_copies_that_move_nothing_are_found(fake: FakeCuda) -> None:
    """The memory that they are to fill holds something else than the right data before."""
    fake.add("silent cuMemcpyHtoDAsync_v2")
    measured = run(fake, "quick", "none")
    assert measured.pcie is not None
    assert measured.pcie.mismatches > 0.999 * MEMORY / 64 / 4  # of its words: one may be right by chance


@pytest.mark.slow
def test_wrong_word_of_a_peer_is_counted_once(tmp_path: Path) -> None:
    written = pattern(0, PEER_PATTERN)
    bit = word(4096 // 4, written.seed, written.kind, written.complement) & 1
    fake = FakeCuda.build(tmp_path, gpus=2).add("write_speed 3e8", "verify_speed 3e8", f"stuck 4096 0 {1 - bit}")
    measured = run(fake, "standard", "none", peers=fake.uuids[1:])
    assert [peer.mismatches for peer in measured.peers] == [1]
