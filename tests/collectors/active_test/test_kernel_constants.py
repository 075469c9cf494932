"""The known results of the tensor kernels are what the model computes on the CPU. All seeds take 12 s: they are for CI."""

from __future__ import annotations

import os

import pytest

from gpuwarden_collectors.active_test.kernels import layout, tensor
from support import tensor_model

SEEDS = layout.SEEDS if os.environ.get("CI") else layout.SEEDS[:1]


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("entry", layout.TENSOR_ENTRIES)
def test_a_constant_is_what_the_model_computes(entry: str, seed: int) -> None:
    assert layout.CHECKSUMS[entry][seed] == tensor_model.checksum(entry, seed)


def test_every_tensor_kernel_has_a_constant_for_every_seed_and_no_two_are_equal() -> None:
    assert set(layout.CHECKSUMS) == set(layout.TENSOR_ENTRIES)
    values = [layout.CHECKSUMS[entry][seed] for entry in layout.TENSOR_ENTRIES for seed in layout.SEEDS]
    assert len(set(values)) == len(values)
    assert {seed for by_seed in layout.CHECKSUMS.values() for seed in by_seed} == set(layout.SEEDS)


def test_the_expected_checksum_wraps_at_32_bits() -> None:
    assert layout.expected("int8", 1, 1) == layout.CHECKSUMS["int8"][1]
    assert layout.expected("int8", 1, 1000) == layout.CHECKSUMS["int8"][1] * 1000 % 2**32


def test_nothing_is_expected_of_a_kernel_or_seed_without_a_constant() -> None:
    for entry, seed in (("fp64", 1), ("int8", 99)):
        with pytest.raises(KeyError):
            layout.expected(entry, seed, 1)


def test_a_sum_that_fp32_does_not_hold_exactly_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_model, "_EXACT", 1 << 20)
    with pytest.raises(tensor_model.InexactError):
        tensor_model.checksum("bf16", 1)


def test_in_a_loop_no_tiles_are_multiplied_twice_for_one_sum_and_all_registers_become_new() -> None:
    for b in range(tensor.B_TILES):
        assert len({tensor.turned(b, step) for step in range(tensor.STEPS)}) == tensor.STEPS
    renewed = [register for step in range(tensor.STEPS) for register in tensor.renewed(step)]
    assert sorted(renewed) == sorted(
        [("a", number) for number in range(tensor.A_TILES * tensor.A_REGISTERS)]
        + [("b", number) for number in range(tensor.B_TILES * tensor.B_REGISTERS)],
    )
