"""PTX text of the kernels whose results are compared among warps: `fp64` (mma.sync m8n8k4) and `alu` (no tensor cores).

Operands carry over from round to round and do not depend on the warp, so all warps of a launch compute one checksum.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuwarden_collectors.active_test.kernels import layout
from gpuwarden_collectors.active_test.kernels.compute import ADD, STEP, Compute, compute_entry, drawn, weight
from gpuwarden_collectors.active_test.kernels.mixing import MASK, ODD
from gpuwarden_collectors.active_test.kernels.ptx import module

_TILES, _FP64_STEPS = 4, 2
"""Number of tiles of A and of B; steps per loop. A step multiplies all pairs, then half of the tiles are replaced."""
_SUMS = range(_TILES * _TILES * 2)
_FP64_KEPT, _FP64_ONE = 0x800FFFFF, 0x3FF00000
"""Masks for the high half of a double: sign and fraction, and the exponent that makes it +-[1, 2)."""

_CHAINS, _ALU_STEPS = range(4), 8
_FP32_KEPT, _FP32_ONE, _FP32_HALF = 0x007FFFFF, 0x3F800000, "0fBF000000"
_SPECIAL = ("ex2.approx.ftz.f32", "rsqrt.approx.ftz.f32", "lg2.approx.ftz.f32", "sin.approx.ftz.f32")


def text() -> str:
    """Returns the PTX text of `fp64` and `alu`, for sm_80 and later."""
    return module(layout.COMPUTE_ARCHITECTURE, (compute_entry("fp64", _fp64()), compute_entry("alu", _alu())))


def _fp64() -> Compute:
    clear = [f"mov.f64 %c{number}, 0d0000000000000000;" for number in _SUMS]
    tiles = [f"%{matrix}{number}" for matrix in "ab" for number in range(_TILES)]
    return Compute(
        registers={"b32": "%l, %h", "f64": f"%a<{_TILES}>, %b<{_TILES}>, %c<{len(_SUMS)}>"},
        before=["mov.b32 %x, %x0;", *(line for tile in tiles for line in _double(tile)), *clear],
        loop=[line for step in range(_FP64_STEPS) for line in _products(step)],
        end=[*(line for number in _SUMS for line in _folded(number)), *clear],
    )


def _double(register: str) -> Iterator[str]:
    yield from drawn("%l")
    yield from drawn("%h")
    yield from (f"and.b32 %h, %h, {_FP64_KEPT};", f"or.b32 %h, %h, {_FP64_ONE};", f"mov.b64 {register}, {{%l, %h}};")


def _products(step: int) -> Iterator[str]:
    for a in range(_TILES):
        for b in range(_TILES):
            first = (a * _TILES + b) * 2
            sums = f"{{%c{first}, %c{first + 1}}}"
            yield f"mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {sums}, {{%a{a}}}, {{%b{b}}}, {sums};"
    for matrix in "ab":
        for number in (2 * step, 2 * step + 1):
            yield from _double(f"%{matrix}{number}")


def _folded(number: int) -> Iterator[str]:
    yield f"mov.b64 {{%l, %h}}, %c{number};"
    yield f"mad.lo.u32 %checksum, %l, {weight(2 * number)}, %checksum;"
    yield f"mad.lo.u32 %checksum, %h, {weight(2 * number + 1)}, %checksum;"


def _alu() -> Compute:
    chains = (f"%x{i + 1}, %sum{i}, %g{i}" for i in _CHAINS)
    return Compute(
        registers={
            "b32": f"%r, %l, %h, {', '.join(chains)}",
            "f32": "%f, %e, " + ", ".join(f"%v{i}" for i in _CHAINS),
            "f64": "%d, %w",
        },
        before=[
            *(f"add.u32 %x{i + 1}, %x0, {(i + 1) * ODD & MASK};" for i in _CHAINS),
            *(f"mov.u32 %sum{i}, 0;" for i in _CHAINS),
            *(f"mov.f32 %v{i}, 0f00000000;" for i in _CHAINS),
            "mov.f64 %d, 0d0000000000000000;",
        ],
        loop=[line for step in range(_ALU_STEPS) for line in _mixture(step)],
        after=[f"mad.lo.u32 %checksum, %sum{i}, {weight(i)}, %checksum;" for i in _CHAINS],
    )


def _mixture(step: int) -> Iterator[str]:
    """Yields four chains of integer and fp32 work, and one for each of the rarer units.

    Each result enters a sum through an operation that loses no bit of it.
    """
    for i in _CHAINS:
        yield f"mad.lo.u32 %x{i + 1}, %x{i + 1}, {STEP}, {ADD};"
        yield f"shf.l.wrap.b32 %r, %x{i + 1}, %x{i + 1}, {7 + step};"
        yield from (f"and.b32 %g{i}, %r, {_FP32_KEPT};", f"or.b32 %g{i}, %g{i}, {_FP32_ONE};", f"mov.b32 %f, %g{i};")
        yield f"fma.rn.ftz.f32 %v{i}, %v{i}, {_FP32_HALF}, %f;"
        yield from (f"mov.b32 %g{i}, %v{i};", f"mad.lo.u32 %sum{i}, %sum{i}, {ODD}, %g{i};")
    first, second, third, fourth = (f"{(i + step) % len(_CHAINS)}" for i in _CHAINS)
    x = {name: f"%x{int(name) + 1}" for name in (first, second, third, fourth)}
    yield f"{_SPECIAL[step % len(_SPECIAL)]} %e, %f;"
    yield "mov.b32 %r, %e;"
    yield f"xor.b32 %sum{first}, %sum{first}, %r;"
    yield f"dp4a.s32.s32 %sum{second}, {x[first]}, {x[second]}, %sum{second};"
    yield from (f"popc.b32 %r, {x[third]};", f"sub.u32 %sum{third}, %sum{third}, %r;")
    yield from (f"prmt.b32 %r, {x[third]}, {x[fourth]}, 0x6250;", f"xor.b32 %sum{fourth}, %sum{fourth}, %r;")
    yield f"shfl.sync.bfly.b32 %r, {x[second]}, {1 << step % 5}, 31, -1;"
    yield f"add.u32 %sum{first}, %sum{first}, %r;"
    yield f"and.b32 %h, {x[fourth]}, {_FP64_KEPT};"
    yield f"or.b32 %h, %h, {_FP64_ONE};"
    yield f"mov.b64 %w, {{{x[first]}, %h}};"
    yield from ("fma.rn.f64 %d, %d, 0dBFE0000000000000, %w;", "mov.b64 {%l, %h}, %d;")
    yield f"mad.lo.u32 %sum{third}, %sum{third}, {ODD}, %l;"
    yield f"mad.lo.u32 %sum{fourth}, %sum{fourth}, {ODD}, %h;"
