"""mma.sync after the PTX ISA: two whole matrices are gathered from the lanes' registers, multiplied, and the sums spread again.

Rows and columns of an element by its number, as the ISA's tables of fragments give them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter, mul
from struct import pack, unpack
from typing import Any

LANES = range(32)


@dataclass(frozen=True, slots=True)
class Shape:
    """`a`, `b` and `c` give row and column of element number i in the registers of a lane, of which `group` is lane / 4 and `member` the rest."""

    rows: int
    depth: int
    a: Callable[[int, int, int], tuple[int, int]]
    b: Callable[[int, int, int], tuple[int, int]]
    c: Callable[[int, int, int], tuple[int, int]]
    elements: str
    """Of a register, as `struct` has them."""
    a_elements: int
    b_elements: int
    c_elements: int
    columns: int = 8


def _sums_16(group: int, member: int, i: int) -> tuple[int, int]:
    return (group if i < 2 else group + 8), member * 2 + (i & 1)


_INT8 = Shape(
    rows=16,
    depth=32,
    a=lambda group, member, i: (
        group if i < 4 or 8 <= i < 12 else group + 8,
        member * 4 + (i & 3) + (0 if i < 8 else 16),
    ),
    b=lambda group, member, i: (member * 4 + (i & 3) + (0 if i < 4 else 16), group),
    c=_sums_16,
    elements="4b",
    a_elements=16,
    b_elements=8,
    c_elements=4,
)
_BF16 = Shape(
    rows=16,
    depth=16,
    a=lambda group, member, i: (
        group if i < 2 or 4 <= i < 6 else group + 8,
        member * 2 + (i & 1) + (0 if i < 4 else 8),
    ),
    b=lambda group, member, i: (member * 2 + (i & 1) + (0 if i < 2 else 8), group),
    c=_sums_16,
    elements="2H",
    a_elements=8,
    b_elements=4,
    c_elements=4,
)
_FP64 = Shape(
    rows=8,
    depth=4,
    a=lambda group, member, _: (group, member),
    b=lambda group, member, _: (member, group),
    c=lambda group, member, i: (group, member * 2 + i),
    elements="d",
    a_elements=1,
    b_elements=1,
    c_elements=2,
)
_SHAPES = {
    "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32": _INT8,
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32": _BF16,
    "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64": _FP64,
}


def multiply(operation: str, operands: Sequence[Sequence[list[int]]]) -> None:
    """D = A * B + C of one warp. `operands`: D, A, B, C, each its registers, each of them the bits of all lanes."""
    shape = _SHAPES[operation]
    d, a, b, c = operands
    of_a, of_b = _numbers(shape, a), _numbers(shape, b)
    rows = [pick(of_a) for pick in _pickers(operation, "a")]
    columns = [pick(of_b) for pick in _pickers(operation, "b")]
    for number, (register, sums) in enumerate(zip(d, c, strict=True)):
        total = _SUMS[shape.elements]
        at = _places(operation, number)
        register[:] = [total(bits, rows[row], columns[column]) for bits, (row, column) in zip(sums, at, strict=True)]


def _numbers(shape: Shape, registers: Sequence[list[int]]) -> list[int] | list[float]:
    """The elements of all lanes, lane by lane, of each lane those of its first register first."""
    lanes = zip(*registers, strict=True)
    size = "Q" if shape.elements == "d" else "I"
    content = b"".join(pack(f"<{len(registers)}{size}", *lane) for lane in lanes)
    if shape.elements == "2H":
        return [_bf16(bits) for bits in unpack(f"<{len(content) // 2}H", content)]
    letter = shape.elements[-1]
    return list(unpack(f"<{len(content) // (8 if letter == 'd' else 1)}{letter}", content))


@cache
def _pickers(operation: str, matrix: str) -> list[Callable[[Sequence[float]], tuple[float, ...]]]:
    """Return a function for each row of A or column of B that picks its elements from those of `_numbers`, in the order of the depth."""
    shape = _SHAPES[operation]
    of, elements = (shape.a, shape.a_elements) if matrix == "a" else (shape.b, shape.b_elements)
    lines: dict[int, dict[int, int]] = {}
    for lane in LANES:
        for i in range(elements):
            row, column = of(lane >> 2, lane & 3, i)
            line, depth = (row, column) if matrix == "a" else (column, row)
            lines.setdefault(line, {})[depth] = lane * elements + i
    assert sorted(lines) == list(range(shape.rows if matrix == "a" else shape.columns))
    assert all(sorted(line) == list(range(shape.depth)) for line in lines.values())
    return [itemgetter(*(lines[line][depth] for depth in range(shape.depth))) for line in sorted(lines)]


@cache
def _places(operation: str, number: int) -> list[tuple[int, int]]:
    """Row and column of a sum in each lane."""
    return [_SHAPES[operation].c(lane >> 2, lane & 3, number) for lane in LANES]


@cache
def _bf16(bits: int) -> float:
    return float(unpack("<f", pack("<I", bits << 16))[0])


def _s32(bits: int, row: Sequence[int], column: Sequence[int]) -> int:
    products: int = sum(map(mul, row, column))
    return bits + products & 0xFFFFFFFF


def _f32(bits: int, row: Sequence[float], column: Sequence[float]) -> int:
    """Exact to 53 bits, rounded once."""
    (before,) = unpack("<f", pack("<I", bits))
    return int(unpack("<I", pack("<f", sum(map(mul, row, column), before)))[0])


def _f64(bits: int, row: Sequence[float], column: Sequence[float]) -> int:
    (before,) = unpack("<d", pack("<Q", bits))
    return int(unpack("<Q", pack("<d", sum(map(mul, row, column), before)))[0])


_SUMS: dict[str, Callable[[int, Sequence[Any], Sequence[Any]], int]] = {"4b": _s32, "2H": _f32, "d": _f64}
