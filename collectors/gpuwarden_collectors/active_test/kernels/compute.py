"""The frame of a compute kernel: every warp does the same work, measures its own time, and writes one record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gpuwarden_collectors.active_test.kernels import layout
from gpuwarden_collectors.active_test.kernels.mixing import MASK, ODD, mix
from gpuwarden_collectors.active_test.kernels.ptx import entry
from gpuwarden_collectors.dataclass import dataclass

STEP, ADD = 1664525, 1013904223
"""Linear congruential generator modulo 2**32 of each lane's operands (Numerical Recipes): x * STEP + ADD."""

_REGISTERS = {
    "b32": "%lane, %warp, %sm, %x, %x0, %s, %high, %checksum, %loop, %peer",
    "u64": "%wide, %cycles, %nanoseconds, %end, %record",
    "pred": "%p",
}


def weight(number: int) -> int:
    """Odd weight of an accumulator; being odd, it lets any single wrong bit change the checksum."""
    return (2 * number + 1) * ODD & MASK


def drawn(register: str) -> Iterator[str]:
    """Yields PTX that draws the next operand. The high half is mixed into the low bits, whose period is short."""
    yield f"mad.lo.u32 %x, %x, {STEP}, {ADD};"
    yield "shr.u32 %s, %x, 16;"
    yield f"xor.b32 {register}, %x, %s;"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """The parts of a compute kernel, run as: before; for each round begin, `LOOPS` times loop, end; finally after.

    %x0 seeds this lane's operands; %x, %s and %p are scratch registers. Each part adds its results to %checksum.
    """

    registers: Mapping[str, str]
    """Additional registers: names by type."""
    before: Iterable[str] = ()
    begin: Iterable[str] = ()
    loop: Iterable[str]
    end: Iterable[str] = ()
    after: Iterable[str] = ()


def compute_entry(name: str, parts: Compute) -> str:
    """Returns the PTX of a kernel that loads no memory and stores one record per warp, with the time of its rounds."""
    body = [
        *_START,
        *parts.before,
        "bar.sync 0;",
        "mov.u64 %nanoseconds, %globaltimer;",
        "mov.u64 %cycles, %clock64;",
        "ROUND:",
        *parts.begin,
        f"mov.u32 %loop, {layout.LOOPS};",
        "LOOP:",
        *parts.loop,
        "sub.u32 %loop, %loop, 1;",
        "setp.ne.u32 %p, %loop, 0;",
        "@%p bra LOOP;",
        *parts.end,
        "sub.u32 %rounds, %rounds, 1;",
        "setp.ne.u32 %p, %rounds, 0;",
        "@%p bra ROUND;",
        "mov.u64 %end, %clock64;",
        "sub.u64 %cycles, %end, %cycles;",
        "mov.u64 %end, %globaltimer;",
        "sub.u64 %nanoseconds, %end, %nanoseconds;",
        *parts.after,
        *_FINISH,
    ]
    kinds = dict.fromkeys((*_REGISTERS, *parts.registers))
    registers = {kind: ", ".join(filter(None, (_REGISTERS.get(kind), parts.registers.get(kind)))) for kind in kinds}
    return entry(name, layout.COMPUTE_NAMES, layout.COMPUTE_PARAMETERS, registers, body)


_START = (
    "cvta.to.global.u64 %out, %out;",
    "mov.u32 %warp, %tid.x;",
    f"and.b32 %lane, %warp, {layout.WARP - 1};",
    "shr.u32 %warp, %warp, 5;",
    "mov.u32 %s, %ctaid.x;",
    f"mad.lo.u32 %warp, %s, {layout.WARPS}, %warp;",
    "shr.u64 %wide, %seed, 32;",
    "cvt.u32.u64 %high, %wide;",
    "cvt.u32.u64 %x0, %seed;",
    f"mul.lo.u32 %s, %lane, {ODD};",
    "xor.b32 %x0, %x0, %s;",
    *mix("%x0", "%high", "%s"),
    "mov.u32 %checksum, 0;",
)
_FINISH = (
    "shl.b32 %s, %lane, 1;",
    "or.b32 %s, %s, 1;",
    "mul.lo.u32 %checksum, %checksum, %s;",
    *(
        line
        for distance in (16, 8, 4, 2, 1)
        for line in (
            f"shfl.sync.bfly.b32 %peer, %checksum, {distance}, 31, -1;",
            "add.u32 %checksum, %checksum, %peer;",
        )
    ),
    "setp.ne.u32 %p, %lane, 0;",
    "@%p bra END;",
    "mov.u32 %sm, %smid;",
    f"mul.wide.u32 %wide, %warp, {layout.WARP_RECORD.size};",
    "add.u64 %record, %out, %wide;",
    "st.global.v2.b32 [%record], {%sm, %checksum};",
    "st.global.u64 [%record+8], %cycles;",
    "st.global.u64 [%record+16], %nanoseconds;",
    "END:",
)
