"""The 32-bit mixing function of patterns and operands, in Python and PTX (MurmurHash3's finaliser, public domain)."""

from __future__ import annotations

ODD = 0x9E3779B1
"""2**32 divided by the golden ratio, made odd: it maps neighbouring numbers to distant products."""
FIRST, SECOND = 0x85EBCA6B, 0xC2B2AE35
MASK = 0xFFFFFFFF


def mixed(value: int, addend: int) -> int:
    """Mixes two 32-bit numbers: flipping any input bit changes about half of the result's bits.

    For a fixed `addend` no two values have the same result.
    """
    value ^= value >> 16
    value = (value * FIRST + addend) & MASK
    value ^= value >> 13
    value = value * SECOND & MASK
    return value ^ value >> 16


def mix(register: str, addend: str, scratch: str) -> list[str]:
    """Returns PTX that applies `mixed` to a register in place."""
    return [
        f"shr.u32 {scratch}, {register}, 16;",
        f"xor.b32 {register}, {register}, {scratch};",
        f"mad.lo.u32 {register}, {register}, {FIRST}, {addend};",
        f"shr.u32 {scratch}, {register}, 13;",
        f"xor.b32 {register}, {register}, {scratch};",
        f"mul.lo.u32 {register}, {register}, {SECOND};",
        f"shr.u32 {scratch}, {register}, 16;",
        f"xor.b32 {register}, {register}, {scratch};",
    ]
