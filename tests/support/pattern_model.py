"""The words that the memory kernels write and expect, computed in Python: what their PTX must agree with."""

from __future__ import annotations

from gpuwarden_collectors.active_test.kernels.layout import ADDRESS
from gpuwarden_collectors.active_test.kernels.memory import LANES
from gpuwarden_collectors.active_test.kernels.mixing import FIRST, MASK, ODD, SECOND


def mixed(value: int, addend: int) -> int:
    """Mixes two 32-bit numbers as the PTX of `mixing.mix` does."""
    value ^= value >> 16
    value = (value * FIRST + addend) & MASK
    value ^= value >> 13
    value = value * SECOND & MASK
    return value ^ value >> 16


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
