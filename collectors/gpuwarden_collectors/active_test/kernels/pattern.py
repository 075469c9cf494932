"""The words that the memory kernels write and expect."""

from __future__ import annotations

from gpuwarden_collectors.active_test.kernels.layout import ADDRESS
from gpuwarden_collectors.active_test.kernels.mixing import MASK, ODD, mixed

LANES = (0x00000000, 0xA5A5A5A5, 0x3C3C3C3C, 0xF00FF00F)
"""Masks that invert the four words of a 16-byte unit of the hash pattern, after rotation by 0, 8, 16 and 24 bits."""


def word(index: int, seed: int, kind: int, complement: int = 0) -> int:
    """The 32-bit word at `index` (in words from the start) for a 64-bit `seed`; `complement` 1 inverts all its bits.

    `ADDRESS` uses the index itself, so that a wrong address line shows. The high half of the index is mixed in;
    otherwise words 16 GiB apart would be equal.
    """
    low, high = seed & MASK, seed >> 32 & MASK
    if kind == ADDRESS:
        value = (index + (index >> 32) * ODD & MASK) ^ low ^ high
    else:
        unit, lane = divmod(index, 4)
        hashed = mixed(unit & MASK ^ low, high + (unit >> 32) * ODD & MASK)
        value = (hashed << 8 * lane | hashed >> 32 - 8 * lane) & MASK ^ LANES[lane]
    return value ^ MASK if complement else value
