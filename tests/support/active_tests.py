"""Results of active tests on healthy boards, by the figures that were measured (driver 580.159.04, alone on the GPU).

H100 80GB HBM3, three or four cards, each quick test: int8 1,198 to 1,215 TOPS at 1,689 cycles a loop, reading memory 3,050 to
3,068 GB/s, writing 3,170 to 3,195, PCIe 54.6 to 55.3 GB/s; bf16 584 TFLOPS under the power cap (0x4).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpuwarden_collectors.active_test.facts import (
    Deviation,
    GpuTest,
    KernelMeasured,
    MemoryMeasured,
    Mismatch,
    Outlier,
    PcieMeasured,
)
from gpuwarden_collectors.active_test.level import Level
from gpuwarden_collectors.facts import Stamp
from support.hosts import WALL, slot

H100 = "NVIDIA H100 80GB HBM3"
SIZE = 85_520_809_984
INT8, VERIFY, WRITE, TO_DEVICE, TO_HOST = 1.206e15, 3.058e12, 3.180e12, 54.9e9, 55.2e9
CARD_TO_CARD = (0.0, 0.004, -0.003, 0.006, -0.005, 0.002, -0.006, 0.003)
"""Of eight GPUs, relative: 0.8 % in all for int8, 0.6 % for memory."""


def uuid(index: int) -> str:
    return f"GPU-{index:08d}"


def kernel(name: str, cycles: float, rate: float = 0.0, **more: Any) -> KernelMeasured:
    return KernelMeasured(
        kernel=name, chunks=24, sms=132, cycles=cycles, cycles_least=cycles, cycles_most=cycles * 1.00003, clock=1_848.0,
        rate=rate, **more,
    )  # fmt: skip


def healthy(index: int = 0, level: Level = Level.QUICK, at: float = 0.0, **changes: Any) -> GpuTest:
    """Return a healthy test of one GPU, begun `at` seconds after the hosts of tests booted."""
    share = 1 + CARD_TO_CARD[index % len(CARD_TO_CARD)]
    test = GpuTest(
        uuid=uuid(index), slot=slot(index), name=H100, level=level, started=Stamp(at, WALL + at), seconds=6.2,
        memory=MemoryMeasured(
            total=SIZE, free=int(SIZE * 0.994), tested=int(SIZE * 0.99), marches=9, mismatches=0, write=WRITE * share,
            verify=VERIFY * share,
        ),
        kernels=(
            kernel("int8", 1_689.0, INT8 * share), kernel("bf16", 1_724.0, 584e12 * share), kernel("fp64", 1_091.0),
            kernel("alu", 1_055.0),
        ),
        pcie=PcieMeasured(to_device=TO_DEVICE, to_host=TO_HOST), temperature=36, temperature_most=62, reasons=0x4,
        power_limit=700_000, ecc=True, driver="580.159.04", kernels_version=1, growth=(),
    )  # fmt: skip
    return replace(test, **changes)


def slowed(test: GpuTest, *, int8: float = 1.0, memory: float = 1.0, pcie: float = 1.0) -> GpuTest:
    """Return the test with its speeds multiplied by these shares."""
    assert test.memory is not None
    assert test.pcie is not None
    first, *others = test.kernels
    return replace(
        test,
        kernels=(replace(first, rate=first.rate * int8), *others),
        memory=replace(test.memory, verify=test.memory.verify * memory, write=test.memory.write * memory),
        pcie=replace(test.pcie, to_device=test.pcie.to_device * pcie, to_host=test.pcie.to_host * pcie),
    )


def wrong_words(test: GpuTest, *places: tuple[int, int], **changes: Any) -> GpuTest:
    """`places`: march and offset of each wrong word, one bit each."""
    assert test.memory is not None
    first = tuple(
        Mismatch(march=march, offset=offset, expected=0xDEADBEEF, found=0xDEADBEEF ^ 0x40) for march, offset in places
    )
    return replace(test, memory=replace(test.memory, mismatches=len(places), first=first), **changes)


def wrong_result(test: GpuTest, *sms: tuple[int, int], wrong_chunks: int = 0) -> GpuTest:
    """`sms`: number and chunks in which its int8 result deviated; `wrong_chunks`: those of all SMs."""
    deviations = tuple(Deviation(sm=sm, chunks=chunks, warps=chunks) for sm, chunks in sms)
    first, *others = test.kernels
    changed = replace(first, deviations=deviations, deviating=len(sms), wrong_chunks=wrong_chunks)
    return replace(test, kernels=(changed, *others))


def off(test: GpuTest, *sms: tuple[int, int, float]) -> GpuTest:
    """`sms`: number, chunks and share by which its cycles were off in int8."""
    first, *others = test.kernels
    outliers = tuple(Outlier(sm=sm, chunks=chunks, worst=share) for sm, chunks, share in sms)
    return replace(test, kernels=(replace(first, outliers=outliers), *others))


def beside_partner(test: GpuTest, share: float) -> GpuTest:
    """Somebody else's work on the GPU: all SMs need more cycles, and the rate falls with that."""
    kernels = tuple(
        replace(test_kernel, cycles=test_kernel.cycles * share, cycles_least=test_kernel.cycles * share, cycles_most=test_kernel.cycles * share, rate=test_kernel.rate / share)
        for test_kernel in test.kernels
    )  # fmt: skip
    return replace(test, kernels=kernels)
