"""The interface of the kernels of `gpuwarden test`: entry names, parameters, grids, and the records they write.

Two PTX texts: `memory.text()` (sm_70 on) with `MEMORY_ENTRIES`, `tensor.text()` and `mix.text()` (sm_80 on) with
`TENSOR_ENTRIES` and `MIX_ENTRIES`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import MappingProxyType

from gpuwarden_collectors.active_test.kernels.mixing import MASK
from gpuwarden_collectors.dataclass import dataclass

VERSION = 1
"""Version of the PTX texts. Raise it with every change: cycles and speeds of different versions are not comparable."""

THREADS = 256
"""Threads in a block of every kernel."""
WARP = 32
"""Threads in a warp."""
WARPS = THREADS // WARP
"""Warps in a block."""

MEMORY_ARCHITECTURE = (7, 0)
"""Least compute capability for the memory kernels."""
WRITE, VERIFY, VERIFY_WRITE = MEMORY_ENTRIES = ("memory_write", "memory_verify", "memory_verify_write")
"""`memory_verify_write` verifies the pattern, then writes its complement."""
MEMORY_BLOCKS = 4
"""Blocks on each SM: measured on H100, 8 read 1.5 % slower and 16 4 %."""
MEMORY_NAMES = ("base", "count", "seed", "kind", "complement", "down", "report")
"""Parameters: `count` of 16-byte units, `complement` and `down` 0 or 1, `base` and `report` addresses on the GPU."""
MEMORY_PARAMETERS = struct.Struct("@QQQIIIQ")
"""One format letter per name, aligned as the driver requires."""
UNIT = 16
"""Bytes of one access; `base` is a multiple of it."""
ADDRESS, HASH = 0, 1
"""Kinds of a pattern."""

REPORT_HEAD = struct.Struct("<QQ")
"""Count of wrong 32-bit words, and count of records begun; only the first `REPORT_RECORDS` are written."""
REPORT_RECORD = struct.Struct("<QII")
"""Bytes from `base`, expected, found."""
REPORT_RECORDS = 16
"""Most records in a report; of more mismatches, an arbitrary subset is recorded."""
REPORT_BYTES = REPORT_HEAD.size + REPORT_RECORDS * REPORT_RECORD.size
"""All zero before a launch; several launches may add to one report."""

COMPUTE_ARCHITECTURE = (8, 0)
"""Least compute capability for the compute kernels."""
TENSOR_ENTRIES = ("int8", "bf16")
"""Their checksum is known: rounds * `CHECKSUMS[entry][seed]` modulo 2**32."""
MIX_ENTRIES = ("fp64", "alu")
"""Kernels without a known checksum: the majority of warps decides."""
COMPUTE_NAMES = ("out", "seed", "rounds", "spare")
"""Parameters: `out` is the address of the warps' records, `rounds` at least 1, `spare` 0."""
COMPUTE_PARAMETERS = struct.Struct("@QQII")
"""One format letter per name, as in `MEMORY_PARAMETERS`."""
LOOPS = 32
"""Loops in a round; operands of int8 and bf16 start anew with each round."""
OPERATIONS: Mapping[str, int] = MappingProxyType(
    {"int8": 256 * 2 * 16 * 8 * 32, "bf16": 256 * 2 * 16 * 8 * 16, "fp64": 32 * 2 * 8 * 8 * 4, "alu": 0}
)
"""Operations of one warp in one loop; a multiplication and an addition count one each. 0: not measured."""

WARP_RECORD = struct.Struct("<IIQQ")
"""SM, checksum, cycles, nanoseconds; at index block * `WARPS` + warp."""


@dataclass(frozen=True, slots=True)
class MemoryRecord:
    """A 32-bit word that was not as expected."""

    offset: int
    """Bytes from `base`."""
    expected: int
    found: int


@dataclass(frozen=True, slots=True)
class WarpRecord:
    """The record that one warp of a compute kernel writes."""

    sm: int
    """%smid."""
    checksum: int
    cycles: int
    """Cycles of all its loops, by the SM's own clock."""
    nanoseconds: int
    """Time of the same loops; the timer of some GPUs steps by as much as 1 µs."""


def memory_grid(sms: int) -> int:
    """Number of blocks of a memory kernel on a GPU with `sms` SMs."""
    return MEMORY_BLOCKS * sms


def compute_grid(sms: int) -> int:
    """Number of blocks of a compute kernel on a GPU with `sms` SMs: one per SM."""
    return sms


def shared_memory(per_sm: int) -> int:
    """Bytes of dynamic shared memory with which no second block of a compute kernel fits on the SM.

    `per_sm` is CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: 228 KiB on H100 (result 120 KiB), 164 on A100
    (88), 100 on L40S (56). The result is always less than a block's maximum, and more than the 48 KiB that are
    allowed without CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES.
    """
    return per_sm // 2 + 6 * 1024


def records_bytes(sms: int) -> int:
    """Size in bytes of the records that all warps of a compute kernel leave on `sms` SMs."""
    return compute_grid(sms) * WARPS * WARP_RECORD.size


def report(content: bytes) -> tuple[int, tuple[MemoryRecord, ...]]:
    """Parses a report of `REPORT_BYTES`: the count of mismatching words, and those that were recorded."""
    mismatches, begun = REPORT_HEAD.unpack_from(content)
    most = REPORT_HEAD.size + min(begun, REPORT_RECORDS) * REPORT_RECORD.size
    return mismatches, tuple(
        MemoryRecord(*fields) for fields in REPORT_RECORD.iter_unpack(content[REPORT_HEAD.size : most])
    )


def records(content: bytes) -> tuple[WarpRecord, ...]:
    """Parses one record for each warp, in the order of blocks and of their warps."""
    return tuple(WarpRecord(*fields) for fields in WARP_RECORD.iter_unpack(content))


def cycles_per_loop(record: WarpRecord, rounds: int) -> float:
    """Clock cycles per loop of one warp in a launch of `rounds` rounds."""
    return record.cycles / (rounds * LOOPS)


CHECKSUMS: Mapping[str, Mapping[int, int]] = MappingProxyType(
    {
        "int8": MappingProxyType({1: 0x7349F638, 2: 0x6118AF1E, 3: 0x06CDF97B, 4: 0x70E7521B}),
        "bf16": MappingProxyType({1: 0x1A507D25, 2: 0x28B35492, 3: 0x6F8044FC, 4: 0x8B88261B}),
    }
)
"""Checksums of one round of the tensor kernels, by seed. A unit test recomputes them with a model on the CPU."""
SEEDS = tuple(CHECKSUMS["int8"])
"""Seeds for which the result of the tensor kernels is known."""


def expected(entry: str, seed: int, rounds: int) -> int:
    """The checksum of every warp of a tensor kernel; raises KeyError where `entry` has no known result or `seed` is none of `SEEDS`."""
    return rounds * CHECKSUMS[entry][seed] & MASK
