"""Copies between pinned memory of the host and the GPU: what the link can do, and whether the data arrives.

The best of 20 after three that are discarded: in a cold process the first copies ran at 23 to 27 GB/s on a link that does 55 (measured).
"""

from __future__ import annotations

from collections.abc import Callable

from gpuwarden_collectors.active_test.cuda.device import Device
from gpuwarden_collectors.active_test.facts import PcieMeasured
from gpuwarden_collectors.active_test.memory_kernels import MemoryKernels, pattern, transfer_size

DISCARDED, JUDGED = 3, 20
_BLANK = 0xA5  # what the memory holds that the copy back is to overwrite


def best(size: int, copy: Callable[[], float], check: Callable[[], None]) -> float:
    """Bytes per second of the fastest; `copy` gives the seconds of one."""
    check()
    seconds = [copy() for _ in range(DISCARDED + JUDGED)][DISCARDED:]
    check()
    return size / min(seconds)


def measure(device: Device, kernels: MemoryKernels, seed: int, check: Callable[[], None]) -> PcieMeasured:
    """`check` ends the test by an exception if somebody else is on the GPU. Raises CudaError.

    The GPU writes a pattern, which goes to the host and back, and verifies it: a word that was damaged either way is a mismatch.
    """
    size, written = transfer_size(device), pattern(seed, 1)
    with device.pinned(size) as host, device.allocated(size) as address:
        kernels.write(address, size, written)
        to_host = best(size, lambda: device.timed(lambda: device.copy_to_host(host, address, size)), check)
        device.fill(address, _BLANK, size)
        to_device = best(size, lambda: device.timed(lambda: device.copy_to_device(address, host, size)), check)
        found = kernels.verify(address, size, written)
    return PcieMeasured(to_device=to_device, to_host=to_host, mismatches=found.mismatches)
