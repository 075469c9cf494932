"""Writes and verifies patterns on a GPU, for the tests of memory, PCIe and peers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from gpuwarden_collectors.active_test.cuda.device import Device, Function
from gpuwarden_collectors.active_test.cuda.errors import HostError
from gpuwarden_collectors.active_test.kernels import layout, memory
from gpuwarden_collectors.dataclass import dataclass

TRANSFER_MOST = 128 << 20
"""Bytes of one copy: on H100, larger copies are not faster."""
_TRANSFER_SHARE = 64  # of the GPU's memory, at most
_TRANSFER_STEP = 1 << 16


@dataclass(frozen=True, slots=True)
class Pattern:
    """The content that memory is filled with: a function of offset, seed and kind (`kernels.pattern`)."""

    seed: int
    kind: int
    complement: int = 0

    def inverted(self) -> Pattern:
        """Returns the same pattern with every bit inverted."""
        return replace(self, complement=1 - self.complement)


def pattern(seed: int, number: int) -> Pattern:
    """Returns the pattern with this number: kinds alternate, then inversion, each with a seed of its own."""
    return Pattern(seed + number, (layout.ADDRESS, layout.HASH)[number % 2], number // 2 % 2)


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one launch."""

    seconds: float
    mismatches: int
    """32-bit words."""
    records: tuple[layout.MemoryRecord, ...]
    """The first of them."""


class MemoryKernels:
    """The memory kernels of one GPU. `base` is any address that the GPU can access, `size` a multiple of 16 bytes."""

    def __init__(self, device: Device, functions: dict[str, Function], report: int) -> None:
        self._device, self._functions, self._report = device, functions, report

    def write(self, base: int, size: int, pattern: Pattern, *, down: bool = False) -> Run:
        """Writes the pattern to `size` bytes from `base`."""
        return self._run(layout.WRITE, base, size, pattern, down)

    def verify(self, base: int, size: int, pattern: Pattern, *, down: bool = False) -> Run:
        """Reads `size` bytes from `base` and compares them with the pattern."""
        return self._run(layout.VERIFY, base, size, pattern, down)

    def verify_write(self, base: int, size: int, pattern: Pattern, *, down: bool = False) -> Run:
        """Reads the memory, compares it with the pattern, and writes the inverted pattern."""
        return self._run(layout.VERIFY_WRITE, base, size, pattern, down)

    def _run(self, entry: str, base: int, size: int, pattern: Pattern, down: bool) -> Run:
        device = self._device
        parameters = layout.MEMORY_PARAMETERS.pack(
            base, size // layout.UNIT, pattern.seed, pattern.kind, pattern.complement, down, self._report
        )
        device.fill(self._report, 0, layout.REPORT_BYTES)
        grid = layout.memory_grid(device.sms)
        seconds = device.timed(lambda: device.launch(self._functions[entry], grid, layout.THREADS, parameters))
        mismatches, records = layout.report(device.read(self._report, layout.REPORT_BYTES))
        return Run(seconds, mismatches, records)


@contextmanager
def memory_kernels(device: Device) -> Iterator[MemoryKernels]:
    """Loads the memory kernels of a GPU.

    Raises CudaError, and HostError for a GPU that is too old for them or has no memory of its own.
    """
    if device.capability < layout.MEMORY_ARCHITECTURE:
        raise HostError(
            f"{device.uuid} is not tested: its compute capability is {device.capability[0]}.{device.capability[1]}, "
            f"and the kernels need {layout.MEMORY_ARCHITECTURE[0]}.{layout.MEMORY_ARCHITECTURE[1]}; leave this GPU out"
        )
    if device.integrated:
        raise HostError(
            f"{device.uuid} is not tested: it has no memory of its own, so that the test would take the host's; leave this GPU out"
        )
    functions = device.functions(memory.text(), layout.MEMORY_ENTRIES)
    with device.allocated(layout.REPORT_BYTES) as report:
        yield MemoryKernels(device, functions, report)


def transfer_size(device: Device) -> int:
    """Size in bytes of a timed copy: less than usual on a GPU with little memory."""
    share = device.memory()[1] // _TRANSFER_SHARE
    return min(TRANSFER_MOST, share // _TRANSFER_STEP * _TRANSFER_STEP)
