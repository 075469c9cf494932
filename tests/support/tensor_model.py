"""What the tensor kernels compute, as whole numbers on the CPU: the checksum of one round, without a GPU.

After the fragment tables of the PTX ISA for mma.m16n8k32 with .s8 and mma.m16n8k16 with .bf16. They have one shape: lane 4g + t holds of A the rows
g (registers 0 and 2) and g + 8 (1 and 3), of B the column g; registers 0 and 1 of A and 0 of B hold elements of the first half of the depth, the others
of the second; of each half, t is which quarter. Of the sums it holds rows g (0 and 1) and g + 8 (2 and 3), columns 2t and 2t + 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul
from struct import pack, unpack

from gpuwarden_collectors.active_test.kernels import layout
from gpuwarden_collectors.active_test.kernels.compute import ADD, STEP, weight
from gpuwarden_collectors.active_test.kernels.mixing import MASK, ODD
from gpuwarden_collectors.active_test.kernels.tensor import (
    A_REGISTERS,
    A_TILES,
    B_REGISTERS,
    B_TILES,
    STEPS,
    SUMS,
    renewed,
    turned,
)
from gpuwarden_collectors.dataclass import dataclass
from support.pattern_model import mixed

_QUARTERS, _ROWS, _COLUMNS = 4, 16, 8
_EXACT = 1 << 24
"""Whole numbers up to this are exact in fp32."""
_AT_ONCE = 16 * 255 * 255
"""The most that the products of one bf16 mma add up to; in which order is not known."""


class InexactError(ValueError):
    """A bf16 sum with this seed might be rounded, or is zero, whose sign is not known: another seed must be chosen."""


@dataclass(frozen=True, slots=True)
class _Kind:
    elements: Callable[[int], tuple[int, ...]]
    """The elements of a register, lowest bits first, as whole numbers."""
    total: Callable[[Sequence[int], Sequence[int]], int]
    """Bits of the sum of all products in a round."""


@dataclass(frozen=True, slots=True)
class _Lane:
    """The elements in each register, each time that all tiles are multiplied."""

    a: list[list[tuple[int, ...]]]
    b: list[list[tuple[int, ...]]]


def checksum(entry: str, seed: int) -> int:
    """Returns the checksum of one round of `int8` or `bf16`; that of R rounds is R times it modulo 2**32.

    Takes one to two seconds. Raises InexactError where bf16 is not exact with this seed.
    """
    kind = _KINDS[entry]
    lanes = [_lane(kind, seed, lane) for lane in range(layout.WARP)]
    rows = [[_row(lanes, tile, row) for row in range(_ROWS)] for tile in range(A_TILES)]
    columns = [[_column(lanes, b, column) for column in range(_COLUMNS)] for b in range(B_TILES)]
    result = 0
    for pair in range(A_TILES * B_TILES):
        a, b = divmod(pair, B_TILES)
        for row in range(_ROWS):
            for column in range(_COLUMNS):
                lane = _QUARTERS * (row % 8) + column // 2
                number = row // 8 * 2 + column % 2
                result += kind.total(rows[a][row], columns[b][column]) * weight(pair * SUMS + number) * (2 * lane + 1)
    return result & MASK


def _lane(kind: _Kind, seed: int, lane: int) -> _Lane:
    x = mixed(seed & MASK ^ lane * ODD & MASK, seed >> 32 & MASK)

    def drawn() -> tuple[int, ...]:
        nonlocal x
        x = (x * STEP + ADD) & MASK
        return kind.elements(x ^ x >> 16)

    registers = {
        "a": [drawn() for _ in range(A_TILES * A_REGISTERS)],
        "b": [drawn() for _ in range(B_TILES * B_REGISTERS)],
    }
    held = _Lane([[] for _ in registers["a"]], [[] for _ in registers["b"]])
    for step in list(range(STEPS)) * layout.LOOPS:
        for history, elements in zip((*held.a, *held.b), (*registers["a"], *registers["b"]), strict=True):
            history.append(elements)
        for matrix, number in renewed(step):
            registers[matrix][number] = drawn()
    return held


def _row(lanes: Sequence[_Lane], tile: int, row: int) -> list[int]:
    group, half = row % 8, row // 8
    return _merged(
        [
            lanes[_QUARTERS * group + quarter].a[tile * A_REGISTERS + half + 2 * depth]
            for depth in range(2)
            for quarter in range(_QUARTERS)
        ],
    )


def _column(lanes: Sequence[_Lane], b: int, column: int) -> list[int]:
    held = [lanes[_QUARTERS * column + quarter].b for quarter in range(_QUARTERS)]
    registers = []
    for depth in range(2):
        tiles = [turned(b, step) * B_REGISTERS + depth for step in range(STEPS)] * layout.LOOPS
        registers += [[lane[number][time] for time, number in enumerate(tiles)] for lane in held]
    return _merged(registers)


def _merged(registers: Sequence[list[tuple[int, ...]]]) -> list[int]:
    """The elements in all of these, first those of the first time."""
    return [element for at_once in zip(*registers, strict=True) for elements in at_once for element in elements]


def _bytes(register: int) -> tuple[int, ...]:
    return unpack("4b", pack("<I", register))


def _halves(register: int) -> tuple[int, ...]:
    """Returns both bf16 values of a register times 2**7: sign and 1.fraction of each."""
    return tuple((0x80 | half & 0x7F) * (-1 if half & 0x8000 else 1) for half in (register & 0xFFFF, register >> 16))


def _wrapped(row: Sequence[int], column: Sequence[int]) -> int:
    total: int = sum(map(mul, row, column))
    return total & MASK


def _exact(row: Sequence[int], column: Sequence[int]) -> int:
    sums = list(accumulate(map(mul, row, column)))
    if max(map(abs, sums)) + _AT_ONCE >= _EXACT or not sums[-1]:
        raise InexactError
    (bits,) = unpack("<I", pack("<f", sums[-1] / (1 << 14)))
    return int(bits)


_KINDS = {"int8": _Kind(_bytes, _wrapped), "bf16": _Kind(_halves, _exact)}
