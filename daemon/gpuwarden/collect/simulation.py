"""A simulated GPU host: its PCI bus, its kernel log, and the faults that an operator injects.

Only the host is simulated. The collectors, the worker process, the judge and everything after them are the real ones,
and read this folder instead of /sys, /dev/kmsg and the vendor's library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path

from gpuwarden_collectors.nvml import simulated_faults as faults
from gpuwarden_collectors.nvml.simulated_faults import Fault
from gpuwarden_collectors.nvml.simulated_gpu import simulated_slot
from gpuwarden_collectors.pci_facts import PciDevice
from gpuwarden_collectors.simulated_pci import h100, write_tree


class Simulation:
    """A simulated host with `gpus` GPUs. No other simulation uses `directory`."""

    def __init__(self, directory: Path, gpus: int) -> None:
        self.directory = directory
        self.sysfs = directory / "sys"
        self.kmsg = directory / "kmsg"
        self._gpus = gpus

    def prepare(self) -> None:
        """Create a healthy host, without the faults of an earlier run. Raises OSError."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.kmsg.touch()
        faults.save(self.directory, ())
        self._plug(())

    def inject(self, arguments: Sequence[str], gpu: int | None, at: float) -> str:
        """Carry out `gpuwarden inject`; returns what was done, as text. Raises ValueError for invalid arguments."""
        if gpu is not None and not 0 <= gpu < self._gpus:
            raise ValueError(f"there is no GPU {gpu}: {self._gpus} are simulated, numbered from 0")
        if list(arguments) == ["clear"]:
            self._plug(faults.update(self.directory, lambda held: faults.clear(held, gpu)))
            return "all faults are cleared" if gpu is None else f"the faults of GPU {gpu} are cleared"
        fault = faults.parse_fault(arguments, gpu)
        both = (fault, *faults.brought_by(fault))
        self._plug(faults.update(self.directory, lambda held: reduce(partial(_added, at=at), both, held)))
        where = "the driver" if gpu is None else f"GPU {gpu} ({simulated_slot(gpu)})"
        return f"injected into {where}: {' '.join(arguments)}{''.join(f', and {each.name}' for each in both[1:])}"

    def _plug(self, held: Sequence[Fault]) -> None:
        """Write the PCI bus with these faults: a lost GPU does not respond there either."""
        write_tree(self.sysfs, [_device(number, held) for number in range(self._gpus)])


def _added(held: tuple[Fault, ...], fault: Fault, *, at: float) -> tuple[Fault, ...]:
    return faults.add(held, fault, at)


def _device(number: int, held: Sequence[Fault]) -> PciDevice:
    device = h100(simulated_slot(number))
    for fault in held:
        if fault.gpu == number and fault.name == "lost":
            device = replace(device, responds=False)
        if fault.gpu == number and fault.name == "pcie-width":
            device = replace(device, width=fault.number)
    return device
