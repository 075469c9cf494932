"""Reads the memory of the other GPUs of this host over NVLink or PCIe, with the kernels of the memory test.

Untested on hardware with more than one GPU.
"""

from __future__ import annotations

from collections.abc import Callable

from gpuwarden_collectors.active_test.cuda.device import Device
from gpuwarden_collectors.active_test.facts import PeerMeasured
from gpuwarden_collectors.active_test.memory_kernels import MemoryKernels, pattern, transfer_size
from gpuwarden_collectors.active_test.pcie import best

PEER_PATTERN = 27
"""Number of the pattern; differs from those of the PCIe test."""


def measure(
    device: Device, peer: Device, kernels: MemoryKernels, seed: int, check: Callable[[], None]
) -> PeerMeasured | None:
    """Measures how fast `device` reads from `peer`; returns None where they cannot reach each other.

    `check` is as for `pcie.measure`. Raises CudaError.
    """
    if not device.reach(peer):
        return None
    size, written = transfer_size(device), pattern(seed, PEER_PATTERN)
    with peer.allocated(size) as address:
        device.select()
        mismatches = 0

        def read() -> float:
            nonlocal mismatches
            run = kernels.verify(address, size, written)
            mismatches = max(mismatches, run.mismatches)
            return run.seconds

        kernels.write(address, size, written)
        speed = best(size, read, check)
    device.select()
    return PeerMeasured(peer=peer.uuid, speed=speed, mismatches=mismatches)
