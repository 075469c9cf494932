"""Reads the GPUs from the driver and the bus, and who has them open, in children with a deadline."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gpuwarden.features.repair.helper.children import read_in_child
from gpuwarden.features.repair.helper.host import Host
from gpuwarden_collectors.active_test.host import HostReader
from gpuwarden_collectors.active_test.host_facts import HostFacts
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import GpuAnswer, GpuFacts
from gpuwarden_collectors.host_files import printable, text_or_empty
from gpuwarden_collectors.nvml.library import open_library
from gpuwarden_collectors.nvml.options import NvmlOptions
from gpuwarden_collectors.pci import PciCollector
from gpuwarden_collectors.pci_facts import PciKind

DRIVER_WITHIN = 60.0
"""Seconds. Without persistence mode the driver initialises eight GPUs before its first answer."""
HOST_WITHIN = 20.0
_DRIVER = "/dev/nvidia"
_DEVICE = re.compile(r"/dev/nvidia(\d{1,3})\b")
_UNIT = re.compile(r":/system\.slice/(?:[^/]+\.slice/)*([^/\n]+\.service)(?:/|$)", re.MULTILINE)
_MAJOR, _CONTROL = 195, 254
"""The driver's major number; minors from _CONTROL on are no GPUs (nvidia-modeset, nvidiactl)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, as NVML shows it. `architecture`: nvmlDeviceArchitecture_t; `virtualization`: nvmlGpuVirtualizationMode_t."""

    slot: str
    uuid: str
    index: int
    answers: bool
    minor: int | None = None
    architecture: int | None = None
    virtualization: int | None = None
    mig: bool = False
    persistent: bool = False
    linked: bool = False
    pids: tuple[int, ...] = ()
    asks: str = ""
    """Recovery that the driver still requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """State of the driver, as NVML reports it."""

    gpus: tuple[Gpu, ...] = ()
    confidential: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One NVIDIA function on the bus."""

    slot: str
    kind: str
    driver: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A process that has files of the driver open. `minors`: the GPUs. `unit`: its service by control group, or ""."""

    pid: int
    name: str
    unit: str
    minors: tuple[int, ...]

    def __str__(self) -> str:
        return f"process {self.pid} ({self.name}{f', {self.unit}' if self.unit else ''})"


def read_driver(host: Host, library: str) -> Driver:
    """Read all GPUs by NVML. Raises NoReading."""
    options = NvmlOptions(library=library, gpm=False)
    answer = read_in_child("NVML", lambda: asdict(_driver(options)), host.within("NVML", DRIVER_WITHIN))
    gpus = tuple(Gpu(**{**row, "pids": tuple(row["pids"])}) for row in answer["gpus"])
    return Driver(gpus=gpus, confidential=answer["confidential"])


def read_bus(host: Host) -> tuple[Function, ...]:
    """Read NVIDIA's functions on the PCI bus. Raises NoReading."""
    rows = read_in_child("the PCI bus", lambda: _bus(host.sysfs), host.within("bus", HOST_WITHIN))
    return tuple(Function(**row) for row in rows)


def read_holders(host: Host) -> tuple[Holder, ...]:
    """Read who has files of the driver open. Raises NoReading, since a process that cannot be read may be one."""
    rows = read_in_child(
        "/proc", lambda: [asdict(holder) for holder in _holders(host.proc)], host.within("proc", HOST_WITHIN)
    )
    return tuple(Holder(**{**row, "minors": tuple(row["minors"])}) for row in rows)


def _driver(options: NvmlOptions) -> Driver:
    reader = HostReader(options)
    reader.connect()
    facts = reader.read()
    if facts.nvml.problem is not None:
        raise RuntimeError(facts.nvml.problem_text or facts.nvml.problem.value)
    nvml = open_library(options)
    gpus = tuple(_gpu(gpu, facts, nvml) for gpu in facts.nvml.gpus)
    reader.close()
    return Driver(gpus=gpus, confidential=facts.confidential is True)


def _gpu(gpu: GpuFacts, facts: HostFacts, nvml: Any) -> Gpu:
    settings = facts.settings.get(gpu.slot)
    graphics = settings.graphics if settings is not None else ()
    shown = Gpu(
        slot=gpu.slot,
        uuid=gpu.uuid,
        index=gpu.index,
        answers=gpu.answer is GpuAnswer.OK,
        minor=gpu.minor,
        mig=bool(gpu.readings.mig_mode),
        persistent=bool(gpu.readings.persistence_mode),
        linked=any(link.active for link in gpu.links),
        pids=(*(process.pid for process in gpu.processes), *graphics),
        asks=_asks(gpu),
    )
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(gpu.index)
        shown = replace(shown, architecture=nvml.nvmlDeviceGetArchitecture(handle))
        return replace(shown, virtualization=nvml.nvmlDeviceGetVirtualizationMode(handle))
    except nvml.NVMLError:
        return shown


def _asks(gpu: GpuFacts) -> str:
    if gpu.readings.remapped_rows_failure:
        return "memory that cannot be replaced (a row could not be remapped)"
    if gpu.readings.recovery_action:
        return f"recovery action {gpu.readings.recovery_action}"
    pending = (gpu.readings.remapped_rows_pending, gpu.readings.retired_pages_pending)
    return "a reset, for memory that is to be replaced" if any(pending) else ""


def _bus(sysfs: Path) -> list[dict[str, str]]:
    devices = PciCollector(sysfs, again_after=0.0).read().devices
    return [
        {"slot": device.slot, "kind": device.kind.value, "driver": device.driver}
        for device in devices
        if device.kind is not PciKind.OTHER
    ]


def _holders(proc: Path) -> Iterator[Holder]:
    for entry in os.scandir(proc):
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            minors = _opened(Path(entry.path, "fd"))
        except (FileNotFoundError, ProcessLookupError):
            continue
        if minors is not None:
            name = printable(text_or_empty(f"{entry.path}/comm"), 16)
            unit = _UNIT.search(text_or_empty(f"{entry.path}/cgroup"))
            yield Holder(pid=int(entry.name), name=name, unit=unit[1] if unit else "", minors=tuple(sorted(minors)))


def _opened(folder: Path) -> set[int] | None:
    """Return the minors of the GPUs open there: empty if only other devices of the driver are, None if none are."""
    open_minors: set[int] | None = None
    for name in os.listdir(folder):  # noqa: PTH208 - a Path for each open file
        try:
            target = os.readlink(folder / name)  # noqa: PTH115 - as above
        except FileNotFoundError:
            continue
        if (target.startswith("/dev/") or _DRIVER in target) and (minors := _minors(target, folder / name)) is not None:
            open_minors = (open_minors or set()) | minors
    return open_minors


def _minors(target: str, file: Path) -> set[int] | None:
    """Return the minors by the device's number, if it can be read: a container may give a device another name, and a
    chroot(2) has its own /dev below another folder.
    """
    try:
        status = file.stat()
    except OSError:
        named = _DEVICE.search(target)
        return {int(named[1])} if named else (set() if _DRIVER in target else None)
    if not stat.S_ISCHR(status.st_mode) or os.major(status.st_rdev) != _MAJOR:
        return set() if target.startswith(_DRIVER) else None
    minor = os.minor(status.st_rdev)
    return {minor} if minor < _CONTROL else set()
