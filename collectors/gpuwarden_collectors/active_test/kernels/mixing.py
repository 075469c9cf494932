"""The 32-bit mixing function of patterns and operands, as PTX (MurmurHash3's finaliser, public domain)."""

from __future__ import annotations

ODD = 0x9E3779B1
"""2**32 divided by the golden ratio, made odd: it maps neighbouring numbers to distant products."""
FIRST, SECOND = 0x85EBCA6B, 0xC2B2AE35
MASK = 0xFFFFFFFF


def mix(register: str, addend: str, scratch: str) -> list[str]:
    """Returns PTX that mixes a register and `addend` in place: flipping any input bit changes about half of the result's.

    For a fixed `addend` no two values have the same result.
    """
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
