"""Faults for simulated GPUs: one table of what can be injected, and the file that holds them.

`gpuwarden inject` writes faults to `faults.json` in the simulation's folder; the simulated library reads it in each
pass. A fault persists until it is cleared. One-time faults (an Xid, a crash) are removed from the file when they
happen, under a lock, because two processes write it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.nvml.simulated_gpu import LINKS, SimulatedGpu

Effect = Callable[[SimulatedGpu, int, float], None]
"""(the GPU, the number given with the fault, seconds since it was injected)"""

_MOST_FAULTS = 256
_FALLEN_OFF_THE_BUS = 79
_MOST_BYTES = 65536
_DRIVER_NOT_LOADED, _GPU_IS_LOST, _RESET_REQUIRED, _LIB_RM_VERSION_MISMATCH = 9, 15, 16, 18  # nvmlReturn_t


@dataclass(frozen=True, slots=True)
class Fault:
    """One injected fault.

    `gpu` is the number of the simulated GPU, None for a fault of the driver. `at` is when it was injected, in seconds
    since boot.
    """

    name: str
    gpu: int | None = None
    number: int | None = None
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A kind of fault.

    `parameter` names the number that follows the fault; it is optional if `default` is set. `driver_error` makes every
    NVML call fail.
    """

    help: str
    effect: Effect | None = None
    parameter: str = ""
    default: int | None = None
    most: int = 1_000_000
    once: bool = False
    driver_error: int = 0


def _set(**values: int) -> Effect:
    return lambda gpu, _number, _age: gpu.values.update(values)


def _set_to_number(name: str) -> Effect:
    return lambda gpu, number, _age: gpu.values.update({name: number})


def _add(*names: str) -> Effect:
    """Return the effect that adds the number of the fault to these counters."""

    def effect(gpu: SimulatedGpu, number: int, _age: float) -> None:
        for name in names:
            gpu.values[name] = gpu.values.get(name, 0) + number

    return effect


def _grow(per_second: float, *names: str) -> Effect:
    """Makes the counters grow at this rate from the injection on."""
    return lambda gpu, _number, age: _add(*names)(gpu, 1 + int(per_second * age), age)


_IDLE = 0x1  # nvmlClocksEventReasonGpuIdle: not set together with another slowdown


def _slow_clock(reasons: int, clock: int) -> Effect:
    def effect(gpu: SimulatedGpu, _number: int, _age: float) -> None:
        gpu.values["clock_event_reasons"] = gpu.values["clock_event_reasons"] & ~_IDLE | reasons
        gpu.values["clock_sm_mhz"] = min(gpu.values["clock_sm_mhz"], clock)

    return effect


def _attribute(**attributes: object) -> Effect:
    def effect(gpu: SimulatedGpu, _number: int, _age: float) -> None:
        for name, value in attributes.items():
            setattr(gpu, name, value)

    return effect


def _delay(gpu: SimulatedGpu, number: int, _age: float) -> None:
    gpu.delay = number / 1000


def _link_down(gpu: SimulatedGpu, number: int, _age: float) -> None:
    gpu.links[number]["active"] = 0


def _link_errors(gpu: SimulatedGpu, number: int, age: float) -> None:
    count = 1 + int(20 * age)
    for name in ("crc_flit_errors", "crc_data_errors", "replay_errors", "recovery_errors"):
        gpu.links[number][name] += count
        gpu.values[f"nvlink_{name}"] += count


def _all(*effects: Effect) -> Effect:
    def effect(gpu: SimulatedGpu, number: int, age: float) -> None:
        for single_effect in effects:
            single_effect(gpu, number, age)

    return effect


FAULTS: dict[str, FaultKind] = {
    "xid": FaultKind("NVML reports Xid N, once; nothing is written to the kernel log. With Xid 79 the GPU is lost, too", parameter="N", once=True),
    "ecc-uncorrectable": FaultKind(
        "N uncorrectable memory errors",
        _add("ecc_uncorrected_volatile", "ecc_uncorrected_volatile_dram", "ecc_uncorrected_aggregate", "ecc_uncorrected_aggregate_dram"),
        "N", default=1),
    "ecc-correctable-storm": FaultKind(
        "1000 correctable memory errors each second",
        _grow(1000, "ecc_corrected_volatile", "ecc_corrected_volatile_dram", "ecc_corrected_aggregate", "ecc_corrected_aggregate_dram")),
    "row-remap-pending": FaultKind(
        "a memory row is remapped at the next reset", _all(_set(remapped_rows_pending=1), _add("remapped_rows_uncorrectable")), default=1),
    "row-remap-failure": FaultKind(
        "a memory row could not be remapped: its bank has no spare row left",
        _set(remapped_rows_failure=1, remap_banks_max=639, remap_banks_none=1)),
    "sram-threshold": FaultKind(
        "more uncorrectable SRAM errors than the vendor's threshold",
        _all(_set(sram_threshold_exceeded=1),
             _add("ecc_uncorrected_volatile", "ecc_uncorrected_volatile_sram", "ecc_uncorrected_aggregate", "ecc_uncorrected_aggregate_sram")),
        default=8),
    "retired-pages": FaultKind(
        "N memory pages retired after double-bit errors, one retirement pending",
        _all(_add("retired_pages_double_bit"), _set(retired_pages_pending=1)), "N", default=1),
    "lost": FaultKind("every call answers GPU_IS_LOST", _attribute(error=_GPU_IS_LOST)),
    "vanish": FaultKind("NVML no longer lists the GPU; those after it are renumbered", _attribute(listed=False)),
    "reset-required": FaultKind("every reading answers RESET_REQUIRED", _attribute(error=_RESET_REQUIRED, identified=True)),
    "recovery-action": FaultKind("the driver requests recovery action N", _set_to_number("recovery_action"), "N", most=255),
    "hang": FaultKind("calls on the GPU do not return until the fault is cleared", _attribute(stall="hang")),
    "hang-hard": FaultKind("as hang, and the worker process ignores SIGTERM", _attribute(stall="hang-hard")),
    "crash": FaultKind("the library crashes its process, once", _attribute(stall="crash"), once=True),
    "overheat": FaultKind(
        "above the slowdown temperature, clocks halved by hardware",
        _all(_set(temperature=91, temperature_memory=99, temperature_margin=-4), _slow_clock(0x48, 990),
             _grow(1e9, "violation_thermal_ns", "slowdown_hw_thermal_ns"))),
    "throttle": FaultKind(
        "clocks lowered by the driver to stay cool", _all(_slow_clock(0x20, 1200), _grow(1e9, "violation_thermal_ns", "slowdown_sw_thermal_ns"))),
    "power-brake": FaultKind(
        "clocks halved by the power supply's brake signal", _all(_slow_clock(0x88, 990), _grow(1e9, "slowdown_hw_power_brake_ns"))),
    "nvlink-down": FaultKind("an NVLink is inactive", _link_down, "LINK", default=0, most=LINKS - 1),
    "nvlink-errors": FaultKind("20 errors of each kind per second on an NVLink", _link_errors, "LINK", default=0, most=LINKS - 1),
    "fabric": FaultKind("the fabric reports the GPU's route as unhealthy", _set(fabric_health_mask=0x19A, fabric_health_summary=2)),
    "pcie-width": FaultKind("the PCIe link runs on N lanes", _set_to_number("pcie_width"), "N", default=8, most=16),
    "pcie-replays": FaultKind("100 PCIe replays each second", _grow(100, "pcie_replays")),
    "slow": FaultKind("reading the GPU takes MS milliseconds longer", _delay, "MS"),
    "driver-gone": FaultKind("NVML reports that the driver is not loaded", driver_error=_DRIVER_NOT_LOADED),
    "driver-mismatch": FaultKind("NVML reports that the library does not fit the loaded driver", driver_error=_LIB_RM_VERSION_MISMATCH),
}  # fmt: skip


def parse_fault(arguments: Sequence[str], gpu: int | None) -> Fault:
    """Parses the fault from command-line arguments. Raises ValueError with the allowed values."""
    name, *rest = arguments or ("",)
    kind = FAULTS.get(name)
    if kind is None:
        raise ValueError(f"{name[:40]!r} is not a fault; known faults: {', '.join(FAULTS)}")
    if kind.driver_error and gpu is not None:
        raise ValueError(f"{name} concerns all GPUs: leave the GPU out")
    if not kind.driver_error and gpu is None:
        raise ValueError(f"{name} concerns one GPU: name it (--gpu N)")
    if gpu is not None and gpu < 0:
        raise ValueError("GPUs are numbered from 0")
    if len(rest) > (1 if kind.parameter else 0):
        raise ValueError(f"{name} takes {'one number' if kind.parameter else 'nothing'}, not {' '.join(rest)[:40]!r}")
    return Fault(name, gpu, _number(name, kind, rest[0] if rest else None))


def _number(name: str, kind: FaultKind, argument: str | None) -> int | None:
    if argument is None:
        if kind.parameter and kind.default is None:
            raise ValueError(f"{name} needs a number: {name} {kind.parameter}")
        return kind.default
    if not (argument.isascii() and argument.isdigit() and len(argument) < 8 and int(argument) <= kind.most):
        raise ValueError(f"{name} {kind.parameter} is a number from 0 to {kind.most}, not {argument[:40]!r}")
    return int(argument)


def add(faults: Iterable[Fault], fault: Fault, at: float) -> tuple[Fault, ...]:
    """Returns `faults` with one more, injected `at`; an identical fault is restarted.

    Raises ValueError when there are too many.
    """
    once = FAULTS[fault.name].once
    kept = [other for other in faults if once or replace(other, at=0.0) != replace(fault, at=0.0)]
    if len(kept) >= _MOST_FAULTS:
        raise ValueError(f"{_MOST_FAULTS} faults are injected already: clear some first")
    return (*kept, replace(fault, at=at))


def brought_by(fault: Fault) -> tuple[Fault, ...]:
    """Returns the faults that follow from this one.

    When the driver reports Xid 79, the GPU is lost from then on.
    """
    return (Fault("lost", fault.gpu),) if (fault.name, fault.number) == ("xid", _FALLEN_OFF_THE_BUS) else ()


def clear(faults: Iterable[Fault], gpu: int | None = None) -> tuple[Fault, ...]:
    """Returns `faults` without those of one GPU, or, without a GPU, no faults at all."""
    return tuple(fault for fault in faults if gpu is not None and fault.gpu != gpu)


def faults_file(directory: Path) -> Path:
    return directory / "faults.json"


def load(directory: Path) -> tuple[Fault, ...]:
    """Returns the active faults; empty without a file. Raises OSError, or ValueError for an invalid file."""
    try:
        with faults_file(directory).open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return ()
    try:
        faults = tuple(Fault(**fault) for fault in json.loads(data)["faults"])
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{faults_file(directory)} cannot be read as injected faults: {error}") from error
    return tuple(fault for fault in faults if fault.name in FAULTS)


def save(directory: Path, faults: Iterable[Fault]) -> None:
    """Replaces the file atomically. Raises OSError."""
    new = directory / "faults.json.new"
    new.write_text(json.dumps({"faults": [asdict(fault) for fault in faults]}), encoding="utf-8")
    new.replace(faults_file(directory))


def update(directory: Path, change: Callable[[tuple[Fault, ...]], tuple[Fault, ...]]) -> tuple[Fault, ...]:
    """Loads, changes and saves the faults under a lock; returns them. Raises as `load`, `save` and `change` do."""
    with (directory / "faults.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        faults = change(load(directory))
        save(directory, faults)
    return faults


def first_time(directory: Path, fault: Fault) -> bool:
    """Removes a fault that occurs once from the file. True if it was still there."""
    before: list[Fault] = []

    def without(faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
        before.extend(faults)
        return tuple(other for other in faults if other != fault)

    with suppress(OSError, ValueError):
        update(directory, without)
    return fault in before


class FaultsFile:
    """Caches the faults, and reads the file again only after it was replaced."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: tuple[int, int] | None = None
        self._faults: tuple[Fault, ...] = ()

    def read(self) -> tuple[Fault, ...]:
        try:
            status = os.stat(faults_file(self._directory))  # noqa: PTH116 - at each call: a Path costs more
            seen = (status.st_ino, status.st_mtime_ns)
            if seen != self._seen:
                self._faults, self._seen = load(self._directory), seen
        except FileNotFoundError:
            self._faults, self._seen = (), None
        except (OSError, ValueError):
            pass  # keeps the faults read before
        return self._faults
