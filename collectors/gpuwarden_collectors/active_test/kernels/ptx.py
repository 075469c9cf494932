"""The frame of a PTX text: version, target, entry points, parameters, registers."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence

from gpuwarden_collectors.active_test.kernels.layout import THREADS

_TYPES = {"Q": "u64", "I": "u32"}


def module(architecture: tuple[int, int], entries: Iterable[str]) -> str:
    """Returns a whole PTX text; every driver from 450 on accepts PTX 7.0."""
    major, minor = architecture
    return "\n".join([".version 7.0", f".target sm_{major}{minor}", ".address_size 64", *entries, ""])


def entry(
    name: str,
    names: Sequence[str],
    parameters: struct.Struct,
    registers: Mapping[str, str],
    body: Iterable[str],
    *,
    blocks: int = 1,
) -> str:
    """Returns the PTX of an entry point that is compiled so that `blocks` blocks fit on an SM.

    Each parameter is loaded into the register of its name before `body`. `registers` maps types to names, as `.reg`
    takes them; the name of a special register (%clock) would silently refer to that register.
    """
    types = [_TYPES[letter] for letter in parameters.format[1:]]
    declared = ", ".join(f".param .{kind} p_{parameter}" for parameter, kind in zip(names, types, strict=True))
    return "\n".join(
        [
            f".visible .entry {name}({declared})",
            f".maxntid {THREADS}, 1, 1",
            f".minnctapersm {blocks}",
            "{",
            *(f".reg .{kind} {these};" for kind, these in registers.items()),
            *(f".reg .{kind} %{parameter};" for parameter, kind in zip(names, types, strict=True)),
            *(f"ld.param.{kind} %{parameter}, [p_{parameter}];" for parameter, kind in zip(names, types, strict=True)),
            *body,
            "ret;",
            "}",
        ]
    )
