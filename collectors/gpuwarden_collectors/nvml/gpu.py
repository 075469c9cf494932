"""One GPU over many passes: its identity, its answer and its readings.

Cached data (unsupported calls, readings with a longer cadence) is dropped when it may be outdated: another board in
the slot, another handle, a change of MIG mode or instances, or no answer at all. The next pass reads everything.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from gpuwarden_collectors.facts import CallError, GpuAnswer, GpuFacts
from gpuwarden_collectors.gpu_readings import GpuReadings
from gpuwarden_collectors.nvml.calls import Calls, Unanswered
from gpuwarden_collectors.nvml.due import Due, period
from gpuwarden_collectors.nvml.gpm import Gpm, InstancesGpm
from gpuwarden_collectors.nvml.library import read_text
from gpuwarden_collectors.nvml.links import Links
from gpuwarden_collectors.nvml.mig import Instances, read_processes
from gpuwarden_collectors.nvml.placement import PlacementReader
from gpuwarden_collectors.nvml.poller import Questions
from gpuwarden_collectors.nvml.readings import Cadence

_IDENTITY = {
    "name": "nvmlDeviceGetName",
    "serial": "nvmlDeviceGetSerial",
    "vbios": "nvmlDeviceGetVbiosVersion",
    "inforom": "nvmlDeviceGetInforomImageVersion",
    "board_part": "nvmlDeviceGetBoardPartNumber",
}


class Gpu:
    """The readings of one GPU.

    `gpm` enables performance monitoring. `interval` and `phase` are as in `Questions`.
    """

    def __init__(self, nvml: Any, slot: str, *, interval: float, phase: float = 0.0, gpm: bool = True) -> None:
        self.slot = slot
        self._nvml = nvml
        self._interval = interval
        self._phase = phase
        self._with_gpm = gpm
        self._uuid = ""
        self._identity: dict[str, Any] = {}
        self._mig: tuple[int, bool] | None = None
        self._address: int | None = None
        self._begin()

    def _begin(self) -> None:
        self._calls = Calls(self._nvml)
        self._questions = Questions(self._calls, self._interval, self._phase)
        self._links = Links(self._calls, self._interval, self._phase)
        self._instances = Instances(self._calls, Due(period(Cadence.MINUTE, self._interval), self._phase))
        self._gpm = Gpm(self._calls)
        self._placement = PlacementReader(self._calls)
        self._instances_gpm = InstancesGpm(self._calls)

    def close(self) -> None:
        self._gpm.close()
        self._instances_gpm.close()

    def forget(self) -> None:
        self.close()
        self._begin()

    def unanswered(self, index: int, answer: GpuAnswer, *errors: CallError) -> GpuFacts:
        """Returns the facts of a pass without readings: the last known identity of the GPU, and its answer."""
        return GpuFacts(slot=self.slot, index=index, answer=answer, uuid=self._uuid, errors=errors, **self._identity)

    def waits_for_turn(self, now: float) -> bool:
        """True if a slow reading is due, of which each pass makes only one GPU's."""
        return self._questions.waits_for_turn(now)

    def read(self, handle: Any, index: int, now: float, *, its_turn: bool) -> GpuFacts:
        """Reads the GPU once at `now` (CLOCK_BOOTTIME). `its_turn` allows slow readings."""
        address = ctypes.cast(handle, ctypes.c_void_p).value
        if self._address not in (None, address):
            self.forget()
        self._address = address
        self._calls.begin(handle)
        try:
            self._read_identity()
            return self._read(index, now, its_turn=its_turn)
        except Unanswered as reason:
            errors = self._calls.errors
            self.forget()
            return self.unanswered(index, reason.answer, *errors)

    def _read(self, index: int, now: float, *, its_turn: bool) -> GpuFacts:
        calls, values = self._calls, self._questions.values
        again = self._questions.ask(now, its_turn=its_turn)
        links = self._links.read(now, again=again)
        sums = {name: total for name, total in self._links.sums.items() if values.get(name) is None}
        performance = self._gpm.read(now) if self._with_gpm else {}
        readings = GpuReadings(**{**values, **sums, **performance})
        mig = self._instances.read(now) if readings.mig_mode else ()
        mig = self._instances_gpm.read(mig, now) if self._with_gpm else mig
        facts = GpuFacts(
            slot=self.slot,
            index=index,
            answer=GpuAnswer.RESET_REQUIRED if calls.reset_required else GpuAnswer.OK,
            uuid=self._uuid,
            placement=self._placement.read((readings.fabric_in_cluster, readings.fabric_clique)),
            readings=readings,
            links=links,
            mig=mig,
            processes=read_processes(calls),
            errors=tuple(calls.errors),
            read_at=self._read_at(sums),
            **self._identity,
        )
        if readings.mig_mode is not None:
            self._notice_mig((readings.mig_mode, bool(mig)))
        return facts

    def _read_at(self, sums: Mapping[str, int | None]) -> dict[str, float]:
        times, summed = self._questions.read_at, self._links.read_at
        if summed is not None:
            times |= {name: round(summed, 3) for name, total in sums.items() if total is not None}
        return times

    def _read_identity(self) -> None:
        uuid = self._text("nvmlDeviceGetUUID")
        if uuid and uuid != self._uuid:
            if self._uuid:
                handle = self._calls.handle
                self.forget()
                self._calls.begin(handle)
            self._uuid, self._identity = uuid, {}
        for attribute, function in _IDENTITY.items():
            if attribute not in self._identity and (text := self._text(function)) is not None:
                self._identity[attribute] = text
        if "minor" not in self._identity:
            self._identity["minor"] = self._calls.ask("nvmlDeviceGetMinorNumber")

    def _text(self, function: str) -> str | None:
        try:
            return read_text(getattr(self._nvml, function), self._calls.handle)
        except self._nvml.NVMLError as error:
            return "" if self._calls.failed(function, error.value) else None

    def _notice_mig(self, mig: tuple[int, bool]) -> None:
        """Drops cached data when the GPU's MIG state changes.

        With MIG instances a GPU supports fewer calls than without (nvml.h, nvmlDeviceGetRemappedRows).
        """
        if self._mig not in (None, mig):
            self.forget()
        self._mig = mig
