"""Runs PTX texts without a GPU: the subset that the kernels of an active test use, warp by warp.

Lanes that branch apart run one after the other, those behind first. Every register holds bits, and none before something was written to it;
a load or store outside of the memory, or not aligned to its size, is an error. Not as on a GPU: fused multiply-adds are rounded twice, the approximate
functions are those of the CPU, and time is the number of instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from support.ptx.mma import multiply
from support.ptx.operations import PURE
from support.ptx.text import SIZES, Address, Instruction, Kernel, Operand, PtxError

WARP = 32


@dataclass(slots=True)
class Memory:
    """Pieces of the GPU's memory, by address."""

    pieces: dict[int, bytearray] = field(default_factory=dict)

    def piece(self, address: int, size: int) -> tuple[bytearray, int]:
        if address % size:
            raise PtxError(f"misaligned access of {size} bytes at {address:#x}")
        for start, content in self.pieces.items():
            if start <= address and address + size <= start + len(content):
                return content, address - start
        raise PtxError(f"illegal access of {size} bytes at {address:#x}")

    def load(self, address: int, size: int) -> int:
        content, at = self.piece(address, size)
        return int.from_bytes(content[at : at + size], "little")

    def store(self, address: int, size: int, value: int) -> None:
        content, at = self.piece(address, size)
        content[at : at + size] = value.to_bytes(size, "little")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Where a warp runs, and what is done to it."""

    parameters: bytes
    blocks: int
    """Of the grid."""
    block: int
    warp: int
    """In its block."""
    memory: Memory
    sm: int = 0
    faults: Mapping[int, Callable[[Warp], None]] = field(default_factory=dict)
    """Called after so many instructions."""


class Warp:
    """32 lanes of one launch."""

    def __init__(self, kernel: Kernel, launch: Launch) -> None:
        self.kernel, self.launch = kernel, launch
        self.registers: dict[str, list[int]] = {name: [] for name in kernel.registers}
        self.executed = 0
        self.barriers = 0
        lanes = range(WARP)
        self._fixed = {
            "%tid.x": [launch.warp * WARP + lane for lane in lanes],
            "%ntid.x": [kernel.threads] * WARP,
            "%ctaid.x": [launch.block] * WARP,
            "%nctaid.x": [launch.blocks] * WARP,
            "%smid": [launch.sm] * WARP,
        }

    def run(self) -> None:
        """Run until all lanes have returned."""
        at = dict.fromkeys(range(WARP), 0)
        while at:
            here = min(at.values())
            lanes = [lane for lane, place in at.items() if place == here]
            instruction = self.kernel.instructions[here]
            if instruction.guard:
                held = self.registers[instruction.guard]
                taken = [lane for lane in lanes if held[lane] == instruction.wanted]
            else:
                taken = lanes
            after = here + 1
            for lane in lanes:
                at[lane] = after
            if instruction.operation == "bra":
                after = self.kernel.labels[str(instruction.operands[0])]
                for lane in taken:
                    at[lane] = after
            elif instruction.operation == "ret":
                for lane in taken:
                    del at[lane]
            elif taken:
                self._execute(instruction, taken)
            self.executed += 1
            if self.executed in self.launch.faults:
                self.launch.faults[self.executed](self)

    def _execute(self, instruction: Instruction, lanes: list[int]) -> None:
        operation, operands = instruction.operation, instruction.operands
        if operation.startswith("mma."):
            self._whole(lanes)
            multiply(operation, [self._registers(operand) for operand in operands])
        elif operation.startswith(("ld.", "st.", "red.", "atom.")):
            self._access(operation, operands, lanes)
        elif operation.startswith("shfl.sync.bfly"):
            self._whole(lanes)
            values, distances = self._values(operands[1]), self._values(operands[2])
            self._assign(operands[0], lanes, [values[lane ^ distances[lane]] for lane in lanes])
        elif operation == "bar.sync":
            self._whole(lanes)
            self.barriers += 1
        elif operation == "mov.b64":
            self._move_pair(operands, lanes)
        else:
            name, _, kind = operation.rpartition(".")
            function, bits = PURE[name], int(kind[1:]) * (2 if name == "mul.wide" else 1)
            sources = [self._values(operand) for operand in operands[1:]]
            mask = (1 << bits) - 1
            self._assign(operands[0], lanes, [function(*(source[lane] for source in sources)) & mask for lane in lanes])

    def _whole(self, lanes: list[int]) -> None:
        if len(lanes) != WARP:
            raise PtxError("only some lanes of the warp are here")

    def _values(self, operand: Operand) -> list[int]:
        if isinstance(operand, int):
            return [operand] * WARP
        if operand == "%clock64":
            return [1_000_000 + self.executed] * WARP
        if operand == "%globaltimer":
            return [9_000_000_000 + 7 * self.executed] * WARP
        (values,) = [self._fixed[str(operand)]] if operand in self._fixed else self._registers(operand)
        if not values:
            raise PtxError(f"{operand} was never written")
        return values

    def _registers(self, operand: Operand) -> list[list[int]]:
        names = operand if isinstance(operand, tuple) else (str(operand),)
        return [self.registers[name] for name in names]

    def _assign(self, operand: Operand, lanes: list[int], values: list[int]) -> None:
        (register,) = self._registers(operand)
        if not register:
            register.extend([0] * WARP)
        for lane, value in zip(lanes, values, strict=True):
            register[lane] = value

    def _move_pair(self, operands: Sequence[Operand], lanes: list[int]) -> None:
        """A 64-bit register from or to its halves, the low one first."""
        target, source = operands
        if isinstance(target, tuple):
            whole = self._values(source)
            for half, shift in zip(target, (0, 32), strict=True):
                self._assign(half, lanes, [whole[lane] >> shift & 0xFFFFFFFF for lane in lanes])
        else:
            low, high = map(self._values, source if isinstance(source, tuple) else ())
            self._assign(target, lanes, [high[lane] << 32 | low[lane] for lane in lanes])

    def _access(self, operation: str, operands: Sequence[Operand], lanes: list[int]) -> None:
        kind, space, *_, unit = operation.split(".")
        size = SIZES[unit[1:]]
        (address,) = (operand for operand in operands if isinstance(operand, Address))
        others = [operand for operand in operands if not isinstance(operand, Address)]
        if space == "param":
            offset, length = self.kernel.parameters[address.base]
            value = int.from_bytes(self.launch.parameters[offset : offset + length], "little")
            self._assign(others[0], lanes, [value] * len(lanes))
            return
        places = self._values(address.base)
        parts = others[0] if isinstance(others[0], tuple) else (others[0],)
        for lane in lanes:
            place = places[lane] + address.offset
            self.launch.memory.piece(place, size * len(parts))
            if kind in {"red", "atom"}:
                before = self.launch.memory.load(place, size)
                self.launch.memory.store(place, size, before + self._values(others[-1])[lane] & (1 << 8 * size) - 1)
                if kind == "atom":
                    self._assign(others[0], [lane], [before])
                continue
            for number, part in enumerate(parts):
                if kind == "ld":
                    self._assign(part, [lane], [self.launch.memory.load(place + number * size, size)])
                else:
                    self.launch.memory.store(place + number * size, size, self._values(part)[lane])


def run(
    kernel: Kernel, parameters: bytes, *, blocks: int, memory: Memory, warps: Iterable[tuple[int, int]] | None = None
) -> None:
    """All warps of a grid, one after the other, or only some: (block, warp in it)."""
    for block, warp in warps or [(block, warp) for block in range(blocks) for warp in range(kernel.threads // WARP)]:
        Warp(
            kernel, Launch(parameters=parameters, blocks=blocks, block=block, warp=warp, memory=memory, sm=block)
        ).run()
