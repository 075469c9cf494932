"""What the instructions compute that know one lane only, on bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import mul
from struct import Struct, pack, unpack

_SINGLE, _DOUBLE, _WORD, _LONG = Struct("<f"), Struct("<d"), Struct("<I"), Struct("<Q")


def _single(bits: int) -> float:
    return float(_SINGLE.unpack(_WORD.pack(bits))[0])


def _double(bits: int) -> float:
    return float(_DOUBLE.unpack(_LONG.pack(bits))[0])


def _of_single(function: Callable[..., float]) -> Callable[..., int]:
    return lambda *bits: int(_WORD.unpack(_SINGLE.pack(function(*map(_single, bits))))[0])


def _of_double(function: Callable[..., float]) -> Callable[..., int]:
    return lambda *bits: int(_LONG.unpack(_DOUBLE.pack(function(*map(_double, bits))))[0])


def _dot4(a: int, b: int, c: int) -> int:
    products: int = sum(map(mul, unpack("4b", pack("<I", a)), unpack("4b", pack("<I", b))))
    return c + products


def _permuted(a: int, b: int, selector: int) -> int:
    whole = pack("<II", a, b)
    return int.from_bytes(bytes(whole[selector >> 4 * number & 7] for number in range(4)), "little")


PURE: dict[str, Callable[..., int]] = {
    "mov": lambda a: a,
    "cvta.to.global": lambda a: a,
    "cvt.u64": lambda a: a,
    "cvt.u32": lambda a: a & 0xFFFFFFFF,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "neg": lambda a: -a,
    "not": lambda a: ~a,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "shl": lambda a, b: a << b,
    "shr": lambda a, b: a >> b,
    "shf.l.wrap": lambda a, b, c: ((b << 32 | a) << (c & 31)) >> 32,
    "mul.lo": lambda a, b: a * b,
    "mul.wide": lambda a, b: a * b,
    "mad.lo": lambda a, b, c: a * b + c,
    "selp": lambda a, b, p: a if p else b,
    "setp.eq": lambda a, b: a == b,
    "setp.ne": lambda a, b: a != b,
    "setp.ge": lambda a, b: a >= b,
    "popc": lambda a: a.bit_count(),
    "prmt": _permuted,
    "dp4a.s32": _dot4,
    "fma.rn": _of_double(lambda a, b, c: a * b + c),
    "fma.rn.ftz": _of_single(lambda a, b, c: a * b + c),
    "ex2.approx.ftz": _of_single(lambda a: 2.0**a),
    "rsqrt.approx.ftz": _of_single(lambda a: 1 / math.sqrt(a)),
    "lg2.approx.ftz": _of_single(math.log2),
    "sin.approx.ftz": _of_single(math.sin),
}
