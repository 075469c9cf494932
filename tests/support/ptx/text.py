"""Reads PTX texts: the subset that the kernels of an active test use, one statement on a line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

SIZES = {"32": 4, "64": 8}
"""Bytes by bits."""
_SPECIAL = re.compile(
    r"%(tid|ntid|ctaid|nctaid|laneid|warpid|smid|nsmid|gridid|clock\w*|globaltimer\w*|pm\d|envreg\d+|lanemask_\w+)"
)
_STATEMENT = re.compile(r"(?:@(!?)(%\w+)\s+)?([a-z]\S*)\s*(.*);")
_OPERAND = re.compile(r"\{[^}]*\}|\[[^]]*\]|[^,\s]+")


class PtxError(Exception):
    """The text is not understood, or does what a GPU would stop with an error."""


@dataclass(frozen=True, slots=True)
class Address:
    base: str
    offset: int


Operand = str | int | Address | tuple[str, ...]
"""A register or label; a number, of floating point ones the bits; memory; several registers."""


@dataclass(frozen=True, slots=True)
class Instruction:
    operation: str
    operands: tuple[Operand, ...]
    guard: str
    """Predicate, or empty."""
    wanted: bool
    """Of the predicate."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One entry point of a PTX text."""

    parameters: Mapping[str, tuple[int, int]]
    """Offset and size."""
    registers: Sequence[str]
    instructions: Sequence[Instruction]
    labels: Mapping[str, int]
    threads: int


def kernels(text: str) -> dict[str, Kernel]:
    """The entry points of a text."""
    by_name = {}
    for name, parameters, threads, body in re.findall(
        r"\.visible \.entry (\w+)\((.*?)\)\s*\.maxntid (\d+), 1, 1\s*\.minnctapersm \d+\s*\n\{\n(.*?)\n\}\n",
        text,
        re.DOTALL,
    ):
        by_name[name] = _kernel(parameters, body.splitlines(), int(threads))
    if len(by_name) != text.count(".entry"):
        raise PtxError("an entry point is not understood")
    return by_name


def _kernel(parameters: str, lines: Iterable[str], threads: int) -> Kernel:
    offsets: dict[str, tuple[int, int]] = {}
    end = 0
    for kind, name in re.findall(r"\.param \.[ub](\d+) (\w+)", parameters):
        size = SIZES[kind]
        end = -(-end // size) * size
        offsets[name] = (end, size)
        end += size
    registers: list[str] = []
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in lines:
        if line.startswith(".reg"):
            registers += _declared(line)
        elif line.endswith(":"):
            if labels.setdefault(line[:-1], len(instructions)) != len(instructions):
                raise PtxError(f"two labels {line}")
        else:
            instructions.append(_instruction(line))
    return Kernel(offsets, registers, instructions, labels, threads)


def _declared(line: str) -> list[str]:
    names: list[str] = []
    for name, count in re.findall(r"(%\w+)(?:<(\d+)>)?", line):
        names += [f"{name}{number}" for number in range(int(count))] if count else [name]
    if hidden := [name for name in names if _SPECIAL.fullmatch(name)]:
        raise PtxError(f"registers named as special ones, which would be meant instead: {hidden}")
    return names


def _instruction(line: str) -> Instruction:
    match = _STATEMENT.fullmatch(line)
    if match is None:
        raise PtxError(f"not understood: {line}")
    negated, guard, operation, operands = match.groups()
    return Instruction(operation, tuple(map(_operand, _OPERAND.findall(operands))), guard or "", not negated)


def _operand(text: str) -> Operand:
    if text.startswith("{"):
        return tuple(part.strip() for part in text[1:-1].split(","))
    if text.startswith("["):
        base, _, offset = text[1:-1].partition("+")
        return Address(base, int(offset or 0))
    if text[:2] in {"0f", "0d"}:
        return int("0x" + text[2:], 0)
    return int(text, 0) if text.lstrip("-")[0].isdigit() else text
