"""PTX text of the memory kernels: write a pattern, verify it, verify it and write its complement; upwards or downwards.

The threads of all blocks stride through memory together, each with four 16-byte accesses in flight. The last written
data is still in the L2 cache (50 MB on H100): a march that reverses its direction reads it from there, a march that
starts at the same end again does not.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuwarden_collectors.active_test.kernels import layout
from gpuwarden_collectors.active_test.kernels.mixing import ODD, mix
from gpuwarden_collectors.active_test.kernels.ptx import entry, module

_FLIGHT = 4
_WORDS = range(layout.UNIT // 4)
LANES = (0x00000000, 0xA5A5A5A5, 0x3C3C3C3C, 0xF00FF00F)
"""Masks that invert the four words of a 16-byte unit of the hash pattern, after rotation by 0, 8, 16 and 24 bits."""
_REGISTERS = {
    "u64": "%i, %last, %threads, %unit, %step, %hop, %wide, %wrong, %slot, %offset, %record, "
    + ", ".join(f"%at{k}" for k in range(_FLIGHT)),
    "b32": "%a, %b, %low, %high, %flip, %whole, %value, %h, %s, %different, "
    + ", ".join(f"%mask{j}, %e{j}" for j in _WORDS)
    + "".join(f", %f{k}{j}" for k in range(_FLIGHT) for j in _WORDS),
    "pred": "%p, %equal, %full, %down_p",
}


def text() -> str:
    """Returns the PTX text of the memory kernels, for sm_70 and later."""
    return module(layout.MEMORY_ARCHITECTURE, map(_entry, layout.MEMORY_ENTRIES))


def _entry(name: str) -> str:
    body = [
        *_start(),
        *_by_kind(name, layout.ADDRESS),
        "HASHED:",
        *_by_kind(name, layout.HASH),
        "DONE:",
        "setp.eq.u64 %p, %wrong, 0;",
        "@%p bra END;",
        "red.global.add.u64 [%report], %wrong;",
        "END:",
    ]
    return entry(name, layout.MEMORY_NAMES, layout.MEMORY_PARAMETERS, _REGISTERS, body, blocks=layout.MEMORY_BLOCKS)


def _start() -> Iterator[str]:
    """Yields the prologue: %i is this thread's running index, %unit the unit it is at, and %at0 that unit's address.

    If the direction is down, units count from the end.
    """
    yield "cvta.to.global.u64 %base, %base;"
    yield "cvta.to.global.u64 %report, %report;"
    yield "mov.u32 %a, %ctaid.x;"
    yield "mov.u32 %b, %ntid.x;"
    yield "mul.wide.u32 %i, %a, %b;"
    yield "mov.u32 %a, %tid.x;"
    yield "cvt.u64.u32 %wide, %a;"
    yield "add.u64 %i, %i, %wide;"
    yield "mov.u32 %a, %nctaid.x;"
    yield "mul.wide.u32 %threads, %a, %b;"
    yield "setp.ne.u32 %down_p, %down, 0;"
    yield "sub.u64 %unit, %count, %i;"
    yield "sub.u64 %unit, %unit, 1;"
    yield "selp.u64 %unit, %unit, %i, %down_p;"
    yield "neg.s64 %step, %threads;"
    yield "selp.u64 %step, %step, %threads, %down_p;"
    yield f"mul.lo.u64 %hop, %step, {layout.UNIT};"
    yield f"mad.lo.u64 %at0, %unit, {layout.UNIT}, %base;"
    yield f"mad.lo.u64 %last, %threads, {_FLIGHT - 1}, %i;"
    yield "mov.u64 %wrong, 0;"
    yield "setp.ne.u64 %full, %wrong, 0;"
    yield "cvt.u32.u64 %low, %seed;"
    yield "shr.u64 %wide, %seed, 32;"
    yield "cvt.u32.u64 %high, %wide;"
    yield "setp.ne.u32 %p, %complement, 0;"
    yield "selp.b32 %flip, 0xFFFFFFFF, 0, %p;"
    yield "xor.b32 %whole, %low, %high;"
    yield "xor.b32 %whole, %whole, %flip;"
    yield from (f"xor.b32 %mask{j}, %flip, {LANES[j]};" for j in _WORDS)
    yield from (f"setp.eq.u32 %p, %kind, {layout.HASH};", "@%p bra HASHED;")


def _by_kind(name: str, kind: int) -> Iterator[str]:
    """Yields two loops: four units at once while the last of them is within the memory, then one unit at a time."""
    yield f"MANY{kind}:"
    yield from ("setp.ge.u64 %p, %last, %count;", f"@%p bra FEW{kind};")
    yield from _units(name, kind, _FLIGHT)
    yield f"bra MANY{kind};"
    yield f"FEW{kind}:"
    yield from ("setp.ge.u64 %p, %i, %count;", "@%p bra DONE;")
    yield from _units(name, kind, 1)
    yield f"bra FEW{kind};"


def _units(name: str, kind: int, flight: int) -> Iterator[str]:
    for k in range(1, flight):
        yield f"add.u64 %at{k}, %at{k - 1}, %hop;"
    if name != layout.WRITE:
        for k in range(flight):
            yield f"ld.global.v4.b32 {_vector(f'%f{k}')}, [%at{k}];"
    for k in range(flight):
        yield from _expected(kind)
        if name != layout.WRITE:
            yield from _compare(k, f"{kind}{flight}{k}")
        if name == layout.VERIFY_WRITE:
            yield from (f"not.b32 %e{j}, %e{j};" for j in _WORDS)
        if name != layout.VERIFY:
            yield f"st.global.v4.b32 [%at{k}], {_vector('%e')};"
        yield "add.u64 %unit, %unit, %step;"
    yield f"add.u64 %at0, %at{flight - 1}, %hop;"
    yield f"mad.lo.u64 %i, %threads, {flight}, %i;"
    yield f"mad.lo.u64 %last, %threads, {flight}, %last;"


def _vector(registers: str) -> str:
    return "{" + ", ".join(f"{registers}{j}" for j in _WORDS) + "}"


def _expected(kind: int) -> Iterator[str]:
    """Yields PTX that computes the expected four words of %unit, into %e0 to %e3.

    ADDRESS uses the index itself, so that a wrong address line shows. The high half of the index is mixed in; otherwise
    words 16 GiB apart would be equal. A unit test compares both patterns with a model on the CPU.
    """
    yield "cvt.u32.u64 %value, %unit;"
    if kind == layout.ADDRESS:
        yield from ("shr.u64 %wide, %unit, 30;", "cvt.u32.u64 %h, %wide;", "shl.b32 %value, %value, 2;")
        yield f"mad.lo.u32 %value, %h, {ODD}, %value;"
        for j in _WORDS:
            yield from (f"add.u32 %e{j}, %value, {j};", f"xor.b32 %e{j}, %e{j}, %whole;")
        return
    yield from ("shr.u64 %wide, %unit, 32;", "cvt.u32.u64 %h, %wide;", f"mad.lo.u32 %h, %h, {ODD}, %high;")
    yield "xor.b32 %value, %value, %low;"
    yield from mix("%value", "%h", "%s")
    for j in _WORDS:
        yield from (f"shf.l.wrap.b32 %e{j}, %value, %value, {8 * j};", f"xor.b32 %e{j}, %e{j}, %mask{j};")


def _compare(k: int, label: str) -> Iterator[str]:
    """Yields PTX that compares %f of unit k with %e, counts each wrong word, and records it while there is room."""
    yield f"xor.b32 %different, %f{k}0, %e0;"
    for j in _WORDS[1:]:
        yield from (f"xor.b32 %s, %f{k}{j}, %e{j};", "or.b32 %different, %different, %s;")
    yield from ("setp.eq.u32 %p, %different, 0;", f"@%p bra GOOD{label};")
    for j in _WORDS:
        yield f"setp.eq.u32 %equal, %f{k}{j}, %e{j};"
        yield f"@%equal bra NEXT{label}{j};"
        yield "add.u64 %wrong, %wrong, 1;"
        yield f"@%full bra NEXT{label}{j};"
        yield "atom.global.add.u64 %slot, [%report+8], 1;"
        yield f"setp.ge.u64 %full, %slot, {layout.REPORT_RECORDS};"
        yield f"@%full bra NEXT{label}{j};"
        yield f"mad.lo.u64 %record, %slot, {layout.REPORT_RECORD.size}, %report;"
        yield f"sub.u64 %offset, %at{k}, %base;"
        yield f"add.u64 %offset, %offset, {4 * j};"
        yield f"st.global.u64 [%record+{layout.REPORT_HEAD.size}], %offset;"
        yield f"st.global.v2.b32 [%record+{layout.REPORT_HEAD.size + 8}], {{%e{j}, %f{k}{j}}};"
        yield f"NEXT{label}{j}:"
    yield f"GOOD{label}:"
