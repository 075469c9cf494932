"""Facts about one run of `gpuwarden test` on one GPU: measurements, and why one is missing. No verdicts."""

from __future__ import annotations

from enum import StrEnum

from gpuwarden_collectors.active_test.level import Level
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

MISMATCHES_KEPT = 16
"""Most wrong words, and most SMs with wrong results, that the result of one test lists."""


class Obstacle(StrEnum):
    """Why a GPU was not tested, or its test gives no verdict."""

    BUSY = "busy"
    """Another process, job or pod uses the GPU or the node."""
    DISTURBED = "disturbed"
    """Other work ran on the GPU during the test: all SMs slowed down together, or another process appeared."""
    INTERRUPTED = "interrupted"
    """The test was ended by a signal, a termination notice, an exclusion or a reload."""
    UNSUPPORTED = "unsupported"
    """The host, the driver or the GPU cannot run it: no libcuda, no device node, MIG, a compute mode, an old architecture."""
    RESET_FIRST = "reset_first"
    """The GPU needs a reset: a row remap or a recovery action is pending."""
    MEMORY_TAKEN = "memory_taken"
    """Less than 90 % of the memory could be allocated."""
    HUNG = "hung"
    """The worker did not end within its deadline and was killed."""
    CRASHED = "crashed"
    """The worker ended without a result."""
    GPU_ERROR = "gpu_error"
    """A driver call returned a GPU error: an uncorrectable memory error, a failed kernel. See counters and Xids."""
    FAILED_CALL = "failed_call"
    """A driver call returned an error that implies nothing about the GPU's health."""

    @property
    def shown(self) -> str:
        """The obstacle as it is shown to operators."""
        return self.value.replace("_", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """A 32-bit word of GPU memory that did not hold what was written."""

    march: int
    """Number of the march that found it, from 0."""
    offset: int
    """Bytes from the start of the tested memory."""
    expected: int
    """What was written."""
    found: int
    """What was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMeasured:
    """Patterns written into GPU memory, inverted and verified."""

    total: int
    """Bytes of memory that the GPU has."""
    free: int
    """Bytes that were free before."""
    tested: int
    """Bytes that each march covered."""
    marches: int
    """Marches that ended."""
    mismatches: int
    """Wrong 32-bit words in all marches."""
    first: tuple[Mismatch, ...] = ()
    """The first of them, `MISMATCHES_KEPT` at most."""
    write: float = 0.0
    """Median speed of writing, bytes per second."""
    verify: float = 0.0
    """Median speed of reading and comparing, bytes per second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """An SM whose result differs from the known one, or from the majority's."""

    sm: int
    """Number of the SM (%smid), stable within a boot."""
    chunks: int
    """Chunks in which its result deviated, warm-up included; at least three chunks run after the first."""
    warps: int
    """Warps with a wrong result, summed over these chunks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlier:
    """An SM that needed more or fewer cycles for a loop than the median of all SMs."""

    sm: int
    """Number of the SM (%smid)."""
    chunks: int
    """Chunks in which it deviated by more than 0.05 %."""
    worst: float
    """The largest relative deviation, 0.01 is 1 % more cycles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelMeasured:
    """One compute kernel, run in chunks on every SM at once."""

    kernel: str
    """`int8`, `bf16`, `fp64` or `alu`."""
    chunks: int
    """Chunks after the warm-up."""
    sms: int
    """SMs of the GPU."""
    missing: tuple[int, ...] = ()
    """SMs that no warp ran on."""
    deviations: tuple[Deviation, ...] = ()
    """`MISMATCHES_KEPT` at most, most warps first."""
    deviating: int = 0
    """SMs with a deviation, in all."""
    wrong_chunks: int = 0
    """Chunks in which at least one SM deviated."""
    outliers: tuple[Outlier, ...] = ()
    """`MISMATCHES_KEPT` at most, worst first."""
    cycles: float = 0.0
    """Median cycles per loop over SMs and chunks."""
    cycles_least: float = 0.0
    """The least median of a chunk."""
    cycles_most: float = 0.0
    """The greatest median of a chunk."""
    clock: float = 0.0
    """Median clock as the kernel itself measured it, MHz."""
    rate: float = 0.0
    """Operations per second: 0 for `alu`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PcieMeasured:
    """Pinned copies between host and GPU; the best of 20 after three that are discarded."""

    to_device: float
    """Bytes per second."""
    to_host: float
    """Bytes per second."""
    mismatches: int = 0
    """Wrong 32-bit words in all copies, each of which is verified."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerMeasured:
    """Reading another GPU's memory through NVLink or PCIe."""

    peer: str
    """UUID of the GPU that was read."""
    speed: float
    """Bytes per second, best of the runs."""
    mismatches: int = 0
    """Wrong 32-bit words."""
    error: str = ""
    """Why the other GPU could not be read, if a GPU error was the cause; `speed` is 0 then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A counter of the GPU that grew while it was tested."""

    reading: str
    """Its name, as in `GpuReadings`."""
    by: int
    """Value after the test minus value before it, in the counter's unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMeasured:
    """The result of the worker of one GPU: the part of a test that needs CUDA."""

    obstacle: Obstacle | None = None
    """Why there is no verdict; None where the test ran to its end."""
    text: str = ""
    """The obstacle in words, as shown to operators."""
    memory: MemoryMeasured | None = None
    """None where it was not tested."""
    kernels: tuple[KernelMeasured, ...] = ()
    """The compute kernels, in the order in which they ran."""
    pcie: PcieMeasured | None = None
    """None where it was not tested."""
    peers: tuple[PeerMeasured, ...] = ()
    """The GPUs whose memory this GPU read through peer access."""
    temperature: int | None = None
    """°C of the GPU before the test."""
    temperature_most: int | None = None
    """The highest °C during it."""
    reasons: int = 0
    """NVML's slowdown reason bits that were set at any time during the test, without 0x1 (idle)."""
    kernels_version: int = 0
    """Version of the test's kernels: figures of different versions are not compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTest(GpuMeasured):
    """The result of one run on one GPU."""

    uuid: str
    slot: str
    """Its PCI address."""
    name: str
    """Its product name."""
    level: Level
    """The level that was asked for."""
    started: Stamp
    """When its worker was started."""
    seconds: float
    """How long it took."""
    power_limit: int | None = None
    """Enforced power limit, mW."""
    ecc: bool | None = None
    """Whether ECC is on; None where the GPU has none or it could not be read."""
    driver: str = ""
    """Version of the driver."""
    growth: tuple[Growth, ...] | None = None
    """The counters of errors and of slowdowns that grew; None where they could not be read."""
