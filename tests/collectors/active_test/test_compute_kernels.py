"""The compute kernels' text itself, run warp by warp by an interpreter, which has matrices of its own beside the model's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import pytest

from gpuwarden_collectors.active_test.kernels import layout, mix, tensor
from gpuwarden_collectors.active_test.kernels.compute import weight
from gpuwarden_collectors.active_test.kernels.layout import WarpRecord
from support.ptx.text import Kernel, kernels
from support.ptx.warp import Launch, Memory, Warp

OUT = 0x7F12_3456_7800
NO_FAULTS: Mapping[int, Callable[[Warp], None]] = {}


@cache
def loaded() -> Mapping[str, Kernel]:
    return kernels(tensor.text()) | kernels(mix.text())


def warp(
    entry: str,
    seed: int = 1,
    rounds: int = 1,
    *,
    block: int = 0,
    number: int = 0,
    sm: int = 0,
    faults: Mapping[int, Callable[[Warp], None]] = NO_FAULTS,
) -> WarpRecord:
    content = bytearray(layout.records_bytes(4))
    parameters = layout.COMPUTE_PARAMETERS.pack(OUT, seed, rounds, 0)
    running = Warp(
        loaded()[entry],
        Launch(
            parameters=parameters,
            blocks=4,
            block=block,
            warp=number,
            sm=sm,
            memory=Memory({OUT: content}),
            faults=faults,
        ),
    )
    running.run()
    assert running.barriers == 1
    records = layout.records(bytes(content))
    mine = block * layout.WARPS + number
    assert [index for index, record in enumerate(records) if record != WarpRecord(0, 0, 0, 0)] == [mine]
    return records[mine]


@cache
def undisturbed(entry: str) -> int:
    """Checksum of one round with seed 1."""
    return layout.expected(entry, 1, 1) if entry in layout.TENSOR_ENTRIES else warp(entry).checksum


def flip(register: str, lane: int, bit: int) -> Callable[[Warp], None]:
    def fault(running: Warp) -> None:
        running.registers[register][lane] ^= 1 << bit

    return fault


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "rounds"), [(1, 1), (3, 2)])
@pytest.mark.parametrize("entry", layout.TENSOR_ENTRIES)
def test_the_checksum_is_the_known_one_times_the_rounds(entry: str, seed: int, rounds: int) -> None:
    assert warp(entry, seed, rounds).checksum == layout.expected(entry, seed, rounds)


@pytest.mark.slow
@pytest.mark.parametrize("entry", layout.TENSOR_ENTRIES + layout.MIX_ENTRIES)
def test_all_warps_of_a_grid_have_one_checksum_and_each_its_place_and_sm(entry: str) -> None:
    record = warp(entry, block=3, number=5, sm=131)
    assert (record.checksum, record.sm) == (undisturbed(entry), 131)


@pytest.mark.slow
@pytest.mark.parametrize("entry", layout.MIX_ENTRIES)
def test_the_checksum_of_a_kernel_without_a_constant_depends_on_seed_and_rounds(entry: str) -> None:
    checksums = {warp(entry, seed, rounds).checksum for seed, rounds in ((1, 1), (2, 1), (1 | 1 << 40, 1), (1, 2))}
    assert len(checksums) == 4


@pytest.mark.slow
@pytest.mark.parametrize("bit", [0, 31])
def test_a_flipped_bit_of_an_int8_sum_changes_the_checksum_by_its_weight(bit: int) -> None:
    wrong = warp("int8", faults={3000: flip("%c17", 9, bit)}).checksum
    difference = (wrong - layout.expected("int8", 1, 1)) % 2**32
    change = (1 << bit) * weight(17) * (2 * 9 + 1)
    assert difference in {change % 2**32, -change % 2**32}
    assert difference


@pytest.mark.slow
@pytest.mark.parametrize(
    ("entry", "register"),
    [
        ("int8", "%a5"),
        ("int8", "%x"),
        ("bf16", "%c64"),
        ("bf16", "%b15"),
        *(("fp64", name) for name in ("%c31", "%x")),
        *(("alu", name) for name in ("%x4", "%sum2", "%d")),
    ],
)
def test_a_flipped_bit_of_a_register_changes_the_checksum(entry: str, register: str) -> None:
    assert warp(entry, faults={2000: flip(register, 30, 22)}).checksum != undisturbed(entry)


def test_every_weight_is_odd_so_that_no_bit_of_a_sum_is_lost() -> None:
    weights = [weight(number) for number in range(4 * tensor.A_TILES * tensor.B_TILES)]
    assert all(value % 2 for value in weights)
    assert len(set(weights)) == len(weights)


@pytest.mark.slow
@pytest.mark.parametrize("entry", layout.MIX_ENTRIES)
def test_the_time_is_that_of_all_rounds(entry: str) -> None:
    """The interpreter's clock counts instructions, its timer seven for each."""
    one_round, two_rounds, three_rounds = (warp(entry, rounds=rounds) for rounds in (1, 2, 3))
    assert (
        three_rounds.cycles - two_rounds.cycles
        == two_rounds.cycles - one_round.cycles
        == pytest.approx(one_round.cycles, abs=3)
    )
    assert one_round.nanoseconds == pytest.approx(7 * one_round.cycles, abs=7 * 4)
    assert layout.cycles_per_loop(two_rounds, 2) == pytest.approx(layout.cycles_per_loop(three_rounds, 3), rel=0.001)
