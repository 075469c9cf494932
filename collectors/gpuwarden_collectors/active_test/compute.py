"""Compute kernels on every SM at once, in chunks whose results and times are judged one by one.

With chunks of 50 ms the GPU is busy 97.5 % of the time (measured; 5 ms: 85 %). Between chunks the worker checks for
other processes on the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from gpuwarden_collectors.active_test.chunks import Chunk, KernelTally, chunk
from gpuwarden_collectors.active_test.cuda.device import Device, Function
from gpuwarden_collectors.active_test.cuda.errors import GpuError, HostError
from gpuwarden_collectors.active_test.kernels import layout, mix, tensor
from gpuwarden_collectors.active_test.kernels.layout import SEEDS, expected

CHUNK = 0.05
"""Seconds."""
LEAST_CHUNKS = 8
"""Least chunks of a kernel, including two for warm-up; with little time, chunks become shorter."""
WARM_UP = 0.3
"""Seconds after which clocks and power have settled, at most a quarter of a kernel's time."""
CONFIRMING = 3
"""Chunks run after the first wrong result, to see whether it recurs on that SM."""
_FIRST_ROUNDS = 32  # of 32 loops: 1 ms on H100
_FASTER, _SLOWER = 20.0, 0.1  # limits of the factor from one chunk's rounds to the next
_MOST_ROUNDS = 1 << 24
_BLANK, _NO_SM = 0xFF, 0xFFFFFFFF


class ComputeKernels:
    """The compute kernels of one GPU."""

    def __init__(self, device: Device, functions: dict[str, Function], records: int) -> None:
        self._device, self._functions, self._records = device, functions, records

    def run(self, entry: str, seed: int, rounds: int) -> tuple[float, Chunk]:
        """Launches a kernel once and returns its seconds and results. Raises CudaError.

        Raises GpuError also if a warp left no result, and HostError if all warps agree on a wrong checksum: no fault is
        the same in every lane of every SM, so the driver or an untested architecture deviates from the model.
        """
        device = self._device
        size = layout.records_bytes(device.sms)
        parameters = layout.COMPUTE_PARAMETERS.pack(self._records, seed, rounds, 0)
        grid, shared = layout.compute_grid(device.sms), layout.shared_memory(device.shared_per_sm)
        device.fill(self._records, _BLANK, size)
        seconds = device.timed(lambda: device.launch(self._functions[entry], grid, layout.THREADS, parameters, shared))
        records = layout.records(device.read(self._records, size))
        if unwritten := sum(record.sm == _NO_SM for record in records):
            raise GpuError(
                f"{device.uuid} did not complete its work: {unwritten} of {len(records)} warps of {entry} left no result, and no call "
                "of the driver failed; see its findings and the kernel log before using it"
            )
        checksum = expected(entry, seed, rounds) if entry in layout.TENSOR_ENTRIES else None
        results = {record.checksum for record in records}
        if checksum is not None and len(results) == 1 and checksum not in results:
            raise HostError(
                f"{device.uuid} is not tested: all its {len(records)} warps compute {entry} alike, and not what is known of it: this driver "
                f"or compute capability {device.capability[0]}.{device.capability[1]} is not supported; report it, with the version of the driver"
            )
        return seconds, chunk(records, rounds, entry, checksum)


@contextmanager
def compute_kernels(device: Device, entries: Sequence[str]) -> Iterator[ComputeKernels]:
    """Loads the kernels that are wanted. Raises CudaError."""
    functions: dict[str, Function] = {}
    for text, members in ((tensor.text, layout.TENSOR_ENTRIES), (mix.text, layout.MIX_ENTRIES)):
        if wanted := [entry for entry in members if entry in entries]:
            functions |= device.functions(text(), wanted)
    for function in functions.values():
        device.allow_shared(function, layout.shared_memory(device.shared_per_sm))
    with device.allocated(layout.records_bytes(device.sms)) as records:
        yield ComputeKernels(device, functions, records)


def measure(
    kernels: ComputeKernels, tally: KernelTally, *, seconds: float, seed: int, check: Callable[[], None]
) -> None:
    """Runs one kernel in chunks for `seconds`, and adds each chunk to `tally`.

    Raises CudaError, and whatever `check` raises if another process uses the GPU. The tally keeps all earlier chunks.
    """
    wanted, warm_after = min(CHUNK, seconds / LEAST_CHUNKS), min(WARM_UP, seconds / 4)
    spent, rounds, number = 0.0, _FIRST_ROUNDS, seed
    confirming: int | None = None
    while spent < seconds or confirming:
        check()
        took, new_chunk = kernels.run(tally.kernel, SEEDS[number % len(SEEDS)], rounds)
        tally.add(new_chunk, warm=spent >= warm_after)
        if confirming:
            confirming -= 1
        elif confirming is None and new_chunk.deviating:
            confirming = CONFIRMING
        spent, number = spent + took, number + 1
        rounds = _next_rounds(rounds, wanted / took if took > 0 else _FASTER)
    check()


def _next_rounds(rounds: int, factor: float) -> int:
    return max(1, min(_MOST_ROUNDS, round(rounds * min(_FASTER, max(_SLOWER, factor)))))
