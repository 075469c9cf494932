"""PTX text of the tensor core kernels `int8` (mma.sync m16n8k32) and `bf16` (m16n8k16), whose results are known
(`layout.CHECKSUMS`).

In each of the eight steps of a loop a warp multiplies all pairs of 4 tiles of A and 8 tiles of B. After each step one
tile of B and half a tile of A are replaced, so a loop replaces all tiles. int8 sums wrap modulo 2**32 and accumulate
over all rounds. bf16 operands are +-(1 + n/128): products are multiples of 2**-14, and sums over a round stay below
2**10, so a 24-bit adder holds them exactly in any order (a model in the unit tests proves this for the seeds). After
each round the bits of the bf16 sums are added to the checksum, and the sums are cleared.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuwarden_collectors.active_test.kernels import layout
from gpuwarden_collectors.active_test.kernels.compute import Compute, compute_entry, drawn, weight
from gpuwarden_collectors.active_test.kernels.ptx import module
from gpuwarden_collectors.dataclass import dataclass

A_TILES, B_TILES, STEPS = 4, 8, 8
A_REGISTERS, B_REGISTERS, SUMS = 4, 2, 4
"""Registers and sums of each lane, for one tile."""
BF16_KEPT, BF16_ONE = 0x807F807F, 0x3F803F80
"""Sign and fraction of two bf16 numbers, and the exponent that makes them +-[1, 2)."""


@dataclass(frozen=True, slots=True)
class _Kind:
    instruction: str
    register: str
    """Type of the sums."""
    zero: str


_KINDS = {
    "int8": _Kind("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", "s32", "0"),
    "bf16": _Kind("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "f32", "0f00000000"),
}
_ALL_SUMS = range(A_TILES * B_TILES * SUMS)


def text() -> str:
    """Returns the PTX text of the tensor core kernels, for sm_80 and later."""
    return module(layout.COMPUTE_ARCHITECTURE, map(_entry, layout.TENSOR_ENTRIES))


def renewed(step: int) -> tuple[tuple[str, int], ...]:
    """Returns the registers of A and B, by number, that are replaced after a step, in the order of replacement."""
    return (("a", 2 * step), ("a", 2 * step + 1), ("b", 2 * step), ("b", 2 * step + 1))


def turned(b: int, step: int) -> int:
    """The tile of B multiplied for pair (a, b) in a step. It differs in each step, so a loop repeats no product."""
    return (b + step) % B_TILES


def _entry(name: str) -> str:
    fold = [line for number in _ALL_SUMS for line in _folded(number)]
    clear = [f"mov.{_KINDS[name].register} %c{number}, {_KINDS[name].zero};" for number in _ALL_SUMS]
    each_round = name == "bf16"
    parts = Compute(
        registers={
            "b32": f"%a<{A_TILES * A_REGISTERS}>, %b<{B_TILES * B_REGISTERS}>, %bits",
            _KINDS[name].register: f"%c<{len(_ALL_SUMS)}>",
        },
        before=clear,
        begin=["mov.b32 %x, %x0;", *(line for register in _operands() for line in _new(name, register))],
        loop=[line for step in range(STEPS) for line in _step(name, step)],
        end=[*fold, *clear] if each_round else (),
        after=() if each_round else fold,
    )
    return compute_entry(name, parts)


def _operands() -> Iterator[str]:
    """Returns all operands in the order in which they are first filled."""
    yield from (f"%a{number}" for number in range(A_TILES * A_REGISTERS))
    yield from (f"%b{number}" for number in range(B_TILES * B_REGISTERS))


def _new(name: str, register: str) -> Iterator[str]:
    yield from drawn(register)
    if name == "bf16":
        yield f"and.b32 {register}, {register}, {BF16_KEPT};"
        yield f"or.b32 {register}, {register}, {BF16_ONE};"


def _step(name: str, step: int) -> Iterator[str]:
    for a in range(A_TILES):
        for b in range(B_TILES):
            sums = _vector("c", (a * B_TILES + b) * SUMS, SUMS)
            operands = f"{_vector('a', a * A_REGISTERS, A_REGISTERS)}, {_vector('b', turned(b, step) * B_REGISTERS, B_REGISTERS)}"
            yield f"{_KINDS[name].instruction} {sums}, {operands}, {sums};"
    for matrix, number in renewed(step):
        yield from _new(name, f"%{matrix}{number}")


def _vector(name: str, first: int, length: int) -> str:
    return "{" + ", ".join(f"%{name}{number}" for number in range(first, first + length)) + "}"


def _folded(number: int) -> tuple[str, str]:
    return f"mov.b32 %bits, %c{number};", f"mad.lo.u32 %checksum, %bits, {weight(number)}, %checksum;"
