"""The test of one GPU: PCIe, peers, compute, then memory, which is last because it could harm a starting job."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import field
from pathlib import Path
from typing import Any

from gpuwarden_collectors.active_test import compute, pcie, peers
from gpuwarden_collectors.active_test.chunks import KernelTally
from gpuwarden_collectors.active_test.compute import compute_kernels
from gpuwarden_collectors.active_test.cuda.device import Device, prepare
from gpuwarden_collectors.active_test.cuda.errors import CudaError, GpuError
from gpuwarden_collectors.active_test.cuda.library import Driver
from gpuwarden_collectors.active_test.facts import GpuMeasured, Obstacle, PcieMeasured, PeerMeasured
from gpuwarden_collectors.active_test.kernels import layout
from gpuwarden_collectors.active_test.memory import Allowance, MemoryTally, MemoryTest
from gpuwarden_collectors.active_test.memory_kernels import MemoryKernels, memory_kernels
from gpuwarden_collectors.active_test.obstructed import Obstructed
from gpuwarden_collectors.active_test.others import Others, open_nvml
from gpuwarden_collectors.active_test.request import PLANS, Request
from gpuwarden_collectors.dataclass import dataclass

Progress = Callable[[str], None]
"""Called with the name of each phase when it begins."""
AskCompute = Callable[[], None]
"""Waits until no worker creates contexts on other workers' GPUs: those would slow down all SMs of the GPU."""
AskMemory = Callable[[], Allowance]
"""Asks the parent how much memory may be taken, and waits for the answer."""


def run(request: Request, progress: Progress, ask_compute: AskCompute, ask_memory: AskMemory) -> GpuMeasured:
    """Tests the GPU. Returns the obstacle as a fact if one ends the test early; any other exception is a bug."""
    results = Results()
    try:
        progress("start")
        nvml = open_nvml(request.nvml_library)
        results.others = Others(nvml, request.uuid, request.parent)
        _Run(request, nvml, results.others, results, progress).all(ask_compute, ask_memory)
    except Obstructed as obstructed:
        return results.measured(obstructed.obstacle, str(obstructed))
    return results.measured()


class _Run:
    """One run of the test. Every method raises Obstructed if it cannot continue."""

    def __init__(self, request: Request, nvml: Any, others: Others, results: Results, progress: Progress) -> None:
        self._request, self._plan, self._nvml = request, PLANS[request.level], nvml
        self._results, self._progress, self._check = results, progress, others.check
        others.check(Obstacle.BUSY)
        self._peers = request.peers if self._plan.peers else ()
        prepare(os.environ, (request.uuid, *self._peers))
        self._driver = Driver(request.cuda_library, request.uuid)
        self._driver.call("cuInit", 0)
        self._device = Device(self._driver, 0, request.uuid)
        others.check_view()

    def all(self, ask_compute: AskCompute, ask_memory: AskMemory) -> None:
        """Runs the phases one after the other, until the last check."""
        with memory_kernels(self._device) as kernels:
            if self._plan.pcie:
                with turn(os.environ.get("CUDA_CACHE_PATH"), self._check) as own_turn:
                    if own_turn:
                        self._transfers(kernels)
            if self._plan.peers:
                ask_compute()
            self._compute()
            self._memory(kernels, ask_memory)
        self._check()

    def _transfers(self, kernels: MemoryKernels) -> None:
        self._progress("pcie")
        self._results.pcie = pcie.measure(self._device, kernels, self._request.seed, self._check)
        for number, uuid in enumerate(self._peers, start=1):
            self._progress("peers")
            self._driver.gpu = f"{uuid}, read by {self._request.uuid}"
            self._read_peer(kernels, number, uuid)
            self._driver.gpu = self._request.uuid
            self._device.select()

    def _read_peer(self, kernels: MemoryKernels, number: int, uuid: str) -> None:
        """Reads a peer's memory. Skips a peer that others use or CUDA does not show: its own worker reports that.

        GpuError ends this process, because the error is sticky. The result names the peer, so that the parent starts
        another worker without it.
        """
        try:
            Others(self._nvml, uuid, self._request.parent).check()
        except Obstructed:
            return
        peer = None
        try:
            peer = Device(self._driver, number, uuid)
            measured = peers.measure(self._device, peer, kernels, self._request.seed, self._check)
        except GpuError as error:
            self._results.peers.append(PeerMeasured(peer=uuid, speed=0.0, error=str(error)))
            raise
        except CudaError:
            return
        finally:
            if peer is not None:
                with suppress(CudaError):  # after an error of a GPU no call succeeds
                    peer.release()
        self._results.peers += [measured] if measured is not None else []

    def _compute(self) -> None:
        if self._device.capability < layout.COMPUTE_ARCHITECTURE:
            self._results.text = "memory only: the compute kernels need compute capability {}.{}".format(
                *layout.COMPUTE_ARCHITECTURE
            )
            return
        with compute_kernels(self._device, tuple(self._plan.kernels)) as kernels:
            for name, seconds in self._plan.kernels.items():
                self._progress(name)
                tally = KernelTally(name, self._device.sms)
                self._results.kernels.append(tally)
                compute.measure(kernels, tally, seconds=seconds, seed=self._request.seed, check=self._check)

    def _memory(self, kernels: MemoryKernels, ask_memory: AskMemory) -> None:
        self._check()
        allowance = ask_memory()
        if allowance is Allowance.NONE:
            return
        self._progress("memory")
        test = MemoryTest(self._device, kernels, allowance, self._request.memory_most, self._check)
        self._results.memory = test.tally
        spent, number = 0.0, 0
        while number < self._plan.marches or spent < self._plan.memory_seconds:
            started = time.monotonic()
            on_gpu = test.march(self._request.seed, number)
            # Allocating takes as long as a march: the driver wipes memory first.
            spent += max(on_gpu, time.monotonic() - started)
            number += 1


@dataclass(slots=True)
class Results:
    """The results of one GPU so far. They are kept when the test ends early: a wrong word remains a finding."""

    others: Others | None = None
    pcie: PcieMeasured | None = None
    peers: list[PeerMeasured] = field(default_factory=list)
    kernels: list[KernelTally] = field(default_factory=list)
    memory: MemoryTally | None = None
    text: str = ""
    """The parts of the test that were left out."""

    def measured(self, obstacle: Obstacle | None = None, text: str = "") -> GpuMeasured:
        """Returns all results as facts; `obstacle` and `text` say why the test ended early."""
        others = self.others
        return GpuMeasured(
            obstacle=obstacle,
            text=text or self.text,
            memory=self.memory.facts() if self.memory is not None else None,
            kernels=tuple(facts for tally in self.kernels if (facts := tally.facts()) is not None),
            pcie=self.pcie,
            peers=tuple(self.peers),
            temperature=others.temperature if others is not None else None,
            temperature_most=others.temperature_most if others is not None else None,
            reasons=others.reasons if others is not None else 0,
            kernels_version=layout.VERSION,
        )


WAIT_MOST = 60.0
"""Most seconds to wait for the turn. Eight GPUs that copy to and from the host, then from each other, take some 10."""
_PAUSE = 0.05


@contextmanager
def turn(folder: str | None, check: Callable[[], None]) -> Iterator[bool]:
    """Waits for the turn and holds it until the block ends; yields False if another worker kept it for too long.

    The turn is a lock on the folder that the workers share, which the kernel releases when a worker ends. Without a
    folder there is no other worker.
    """
    if folder is None or not Path(folder).is_dir():
        yield True
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield _locked(descriptor, check)
    finally:
        os.close(descriptor)


def _locked(descriptor: int, check: Callable[[], None]) -> bool:
    until = time.monotonic() + WAIT_MOST
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            check()
            time.sleep(_PAUSE)
        else:
            return True
