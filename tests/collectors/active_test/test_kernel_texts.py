"""The kernels' texts, assembled by NVIDIA's own ptxas, which is also in the driver."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpuwarden_collectors.active_test.kernels import layout, memory, mix, tensor
from support.ptx.assembler import assemble
from support.ptx.text import PtxError, kernels

COMPUTE = {"tensor": (tensor.text, layout.TENSOR_ENTRIES), "mix": (mix.text, layout.MIX_ENTRIES)}
MEMORY = {"memory": (memory.text, layout.MEMORY_ENTRIES)}
NEW = (80, 86, 89, 90, 100, 103, 120)
"""A100, A10 and RTX 30, L40S and RTX 40, H100 and H200, B200, B300, RTX 50."""
OLD = (70, 75)
"""V100, T4: memory only."""
PRODUCTS = {"int8": "IMMA.16832.S8.S8", "bf16": "HMMA.16816.F32.BF16", "fp64": "DMMA.8", "alu": "DFMA"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        *((name, architecture) for name in COMPUTE | MEMORY for architecture in NEW),
        *(("memory", architecture) for architecture in OLD),
    ],
)
def test_every_entry_assembles_within_its_registers(name: str, architecture: int, tmp_path: Path) -> None:
    text, entries = (COMPUTE | MEMORY)[name]
    assembled = assemble(text(), architecture, tmp_path)
    assert set(assembled) == set(entries)
    assert {entry: made.spilled for entry, made in assembled.items()} == dict.fromkeys(entries, 0)
    fitting = 64 if name == "memory" else 255
    assert all(made.registers <= fitting for made in assembled.values()), assembled


@pytest.mark.slow
@pytest.mark.parametrize("architecture", NEW)
@pytest.mark.parametrize("name", COMPUTE)
def test_the_time_is_read_after_the_barrier_and_around_all_products(
    name: str, architecture: int, tmp_path: Path
) -> None:
    """A register named %clock would silently become the special register in ptxas, and both readings would be lost."""
    text, entries = COMPUTE[name]
    for entry, made in assemble(text(), architecture, tmp_path, code=True).items():
        assert entry in entries
        barrier = only(made.code, "BAR.SYNC")
        for timer in ("SR_CLOCKLO", "SR_GLOBALTIMERLO"):
            first, last = (at for at, line in enumerate(made.code) if timer in line)
            products = [at for at, line in enumerate(made.code) if PRODUCTS[entry] in line]
            assert barrier < first < min(products)
            assert max(products) < last


@pytest.mark.slow
@pytest.mark.parametrize("architecture", NEW)
def test_a_thread_has_four_reads_in_flight(architecture: int, tmp_path: Path) -> None:
    made = assemble(memory.text(), architecture, tmp_path, code=True)
    for entry in (layout.VERIFY, layout.VERIFY_WRITE):
        accesses = [
            match[0] for line in made[entry].code if (match := re.search(r"\b(LDG\.E\.128|STG|ATOMG|BRA)", line))
        ]
        first = accesses.index("LDG.E.128")
        assert accesses[first : first + 4] == ["LDG.E.128"] * 4
    assert not any("LDG" in line for line in made[layout.WRITE].code)


def test_operations_of_a_loop_are_those_of_its_products() -> None:
    for entry in ("int8", "bf16", "fp64"):
        text = COMPUTE["mix" if entry == "fp64" else "tensor"][0]()
        (_, body) = text.split(f".entry {entry}(")
        loop = body[body.index("LOOP:") : body.index("bra LOOP;")]
        shapes = re.findall(r"mma\.sync\.aligned\.m(\d+)n(\d+)k(\d+)\.", loop)
        assert sum(2 * int(m) * int(n) * int(k) for m, n, k in shapes) == layout.OPERATIONS[entry]


def test_a_register_with_the_name_of_a_special_one_is_refused() -> None:
    text = tensor.text().replace("%cycles", "%clock")
    with pytest.raises(PtxError, match="clock"):
        kernels(text)


@pytest.mark.parametrize(
    ("per_sm", "most_of_a_block", "expected"),
    [(228, 227, 120), (164, 163, 88), (100, 99, 56)],
    ids=["H100, B200", "A100", "L40S, RTX 50"],
)
def test_shared_memory_keeps_a_second_block_off_the_sm_and_is_granted(
    per_sm: int, most_of_a_block: int, expected: int
) -> None:
    asked = layout.shared_memory(per_sm * 1024)
    assert asked == expected * 1024
    assert 2 * asked > per_sm * 1024
    assert 48 * 1024 < asked <= most_of_a_block * 1024


def only(code: tuple[str, ...], part: str) -> int:
    (index,) = (at for at, line in enumerate(code) if part in line)
    return index
