"""The memory kernels' text itself, run by an interpreter on a piece of host memory."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable, Iterator
from itertools import pairwise, product

import pytest

from gpuwarden_collectors.active_test.kernels import layout, memory
from gpuwarden_collectors.active_test.kernels.layout import ADDRESS, HASH, VERIFY, VERIFY_WRITE, WRITE, MemoryRecord
from support.pattern_model import word
from support.ptx.text import Kernel, kernels
from support.ptx.warp import Memory, run
from support.quick import first_quick

BASE, REPORT = 0x7F3A_4000_0000, 0x7F39_0000_0000
UNITS = 2 * 4 * layout.THREADS + layout.THREADS + 37
"""For one block: twice four at once, then one each, then one for a few threads."""
SEED = 0x1234_5678_9ABC_DEF0
WAYS = [
    pytest.param(kind, down, id=f"{'address' if kind == ADDRESS else 'hash'}-{'down' if down else 'up'}")
    for kind, down in product((ADDRESS, HASH), (0, 1))
]


class Gpu:
    """Memory that a march covers, exactly: one word further is an error."""

    def __init__(self, units: int = UNITS) -> None:
        self.units = units
        self.content = bytearray(random.Random(1).randbytes(units * layout.UNIT))
        self.report = bytearray(layout.REPORT_BYTES)
        self.memory = Memory({BASE: self.content, REPORT: self.report})
        self.kernels: dict[str, Kernel] = kernels(memory.text())

    def march(
        self, entry: str, kind: int, down: int, *, complement: int = 0, seed: int = SEED, blocks: int = 1
    ) -> None:
        parameters = layout.MEMORY_PARAMETERS.pack(BASE, self.units, seed, kind, complement, down, REPORT)
        run(self.kernels[entry], parameters, blocks=blocks, memory=self.memory)

    def words(self) -> tuple[int, ...]:
        return struct.unpack(f"<{len(self.content) // 4}I", self.content)

    def fill(self, kind: int, complement: int = 0, seed: int = SEED) -> None:
        self.content[:] = b"".join(struct.pack("<I", value) for value in pattern(self.units, kind, complement, seed))

    def flip(self, bits: Iterable[tuple[int, int]]) -> None:
        """Flip these bits of the memory, each given as (word, bit)."""
        for index, bit in bits:
            self.content[4 * index + bit // 8] ^= 1 << bit % 8

    def found(self) -> tuple[int, set[MemoryRecord]]:
        mismatches, records = layout.report(bytes(self.report))
        assert len(set(records)) == len(records)
        return mismatches, set(records)


def pattern(units: int, kind: int, complement: int = 0, seed: int = SEED) -> Iterator[int]:
    return (word(index, seed, kind, complement) for index in range(4 * units))


def flipped(bits: Iterable[tuple[int, int]], kind: int, complement: int = 0) -> set[MemoryRecord]:
    return {
        MemoryRecord(4 * index, expected, expected ^ 1 << bit)
        for index, bit in bits
        for expected in (word(index, SEED, kind, complement),)
    }


@pytest.mark.parametrize("complement", first_quick(3, [0, 1]))
@pytest.mark.parametrize(("kind", "down"), WAYS)
def test_the_pattern_is_written_everywhere_and_nowhere_else(kind: int, down: int, complement: int) -> None:
    gpu = Gpu()
    gpu.march(WRITE, kind, down, complement=complement)
    assert gpu.words() == tuple(pattern(UNITS, kind, complement))
    assert gpu.found() == (0, set())


@pytest.mark.parametrize(
    "units",
    first_quick(5, [0, 1, 31, layout.THREADS - 1, 4 * layout.THREADS, 4 * layout.THREADS + 1, 7 * layout.THREADS + 5]),
)
@pytest.mark.parametrize("down", [0, 1])
def test_memory_of_any_size_is_written_and_verified(units: int, down: int) -> None:
    gpu = Gpu(units)
    gpu.march(WRITE, HASH, down)
    gpu.march(VERIFY, HASH, 1 - down)
    assert gpu.words() == tuple(pattern(units, HASH))
    assert gpu.found() == (0, set())


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**64 - 1])
@pytest.mark.parametrize("kind", [ADDRESS, HASH])
def test_both_halves_of_the_seed_count(kind: int, seed: int) -> None:
    gpu = Gpu(300)
    gpu.march(WRITE, kind, 0, seed=seed, blocks=2)
    assert gpu.words() == tuple(pattern(300, kind, seed=seed))
    assert gpu.words() != tuple(pattern(300, kind, seed=seed ^ 1 << 40))


@pytest.mark.parametrize("complement", first_quick(3, [0, 1]))
@pytest.mark.parametrize(("kind", "down"), WAYS)
def test_each_flipped_bit_is_reported_with_its_place(kind: int, down: int, complement: int) -> None:
    gpu = Gpu()
    gpu.fill(kind, complement)
    last = 4 * UNITS - 1
    bits = [
        (0, 0),
        (1, 31),
        (last, 31),
        (last - 4 * 37, 5),
        *((random.Random(seed).randrange(5, last - 200), seed) for seed in range(12)),
    ]
    gpu.flip(bits)
    before = bytes(gpu.content)
    gpu.march(VERIFY, kind, down, complement=complement)
    assert gpu.found() == (16, flipped(bits, kind, complement))
    assert gpu.content == before


@pytest.mark.parametrize(("kind", "down"), first_quick(2, WAYS))
def test_verifying_with_writing_reports_repairs_and_inverts(kind: int, down: int) -> None:
    gpu = Gpu()
    gpu.fill(kind)
    bits = [(0, 7), (2, 9), (4000, 1), (4 * UNITS - 1, 0)]
    gpu.flip(bits)
    gpu.march(VERIFY_WRITE, kind, down)
    assert gpu.found() == (4, flipped(bits, kind))
    assert gpu.words() == tuple(pattern(UNITS, kind, 1))
    gpu.march(VERIFY_WRITE, kind, 1 - down, complement=1)
    assert gpu.words() == tuple(pattern(UNITS, kind))
    assert gpu.found()[0] == 4


def test_all_wrong_words_are_counted_and_the_first_sixteen_recorded() -> None:
    gpu = Gpu()
    gpu.fill(HASH, complement=1)
    gpu.march(VERIFY, HASH, 0)
    mismatches, records = gpu.found()
    assert (mismatches, len(records)) == (4 * UNITS, layout.REPORT_RECORDS)
    for record in records:
        expected = word(record.offset // 4, SEED, HASH)
        assert (record.expected, record.found) == (expected, expected ^ 0xFFFFFFFF)


def test_two_marches_add_to_one_report() -> None:
    gpu = Gpu()
    gpu.fill(ADDRESS)
    gpu.flip([(77, 3)])
    gpu.march(VERIFY, ADDRESS, 0)
    gpu.flip([(77, 3), (99, 3)])
    gpu.march(VERIFY, ADDRESS, 1)
    assert gpu.found() == (2, flipped([(77, 3), (99, 3)], ADDRESS))


@pytest.mark.parametrize(("kind", "down"), WAYS)
def test_units_beyond_four_thousand_million_have_their_own_pattern_and_place(kind: int, down: int) -> None:
    """128 GiB and 16 bytes: one warp of a large grid, with memory only where it reads: five units apart by 2**31 for each lane."""
    threads, count = 2**31, 2**33 + 1
    window = 32 * layout.UNIT
    units = [turn * threads for turn in range(4)]
    starts = [count - unit - 32 for unit in units] if down else units
    pieces = {BASE + layout.UNIT * start: bytearray(window) for start in starts}
    extra = 0 if down else count - 1
    pieces[BASE + layout.UNIT * extra] = bytearray(layout.UNIT)
    memory_of_it = Memory({**pieces, REPORT: bytearray(layout.REPORT_BYTES)})
    parameters = layout.MEMORY_PARAMETERS.pack(BASE, count, SEED, kind, 0, down, REPORT)
    loaded = kernels(memory.text())
    blocks = threads // layout.THREADS
    run(loaded[WRITE], parameters, blocks=blocks, memory=memory_of_it, warps=[(0, 0)])
    for address, content in pieces.items():
        first = (address - BASE) // 4
        words = struct.unpack(f"<{len(content) // 4}I", content)
        assert words == tuple(word(first + index, SEED, kind) for index in range(len(words)))
    far = max(pieces)
    pieces[far][5] ^= 0x10
    run(loaded[VERIFY], parameters, blocks=blocks, memory=memory_of_it, warps=[(0, 0)])
    mismatches, records = layout.report(bytes(memory_of_it.pieces[REPORT]))
    expected = word((far - BASE) // 4 + 1, SEED, kind)
    assert (mismatches, records) == (1, (MemoryRecord(far - BASE + 4, expected, expected ^ 0x1000),))


def test_words_of_the_address_pattern_differ_also_at_distances_of_powers_of_two() -> None:
    for distance in (1 << power for power in range(38)):
        assert word(12345, 0, ADDRESS) != word(12345 ^ distance, 0, ADDRESS)


def test_half_of_the_bits_of_the_hash_pattern_are_set_and_change_from_word_to_word() -> None:
    words = [word(index, 1, HASH) for index in range(20_000)]
    for bit in range(32):
        assert sum(value >> bit & 1 for value in words) == pytest.approx(10_000, abs=500)
        assert sum((a ^ b) >> bit & 1 for a, b in pairwise(words)) == pytest.approx(10_000, abs=500)
