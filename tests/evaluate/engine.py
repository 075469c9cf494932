"""An nv-hostengine beside the node's GPUs, with what DCGM 4.6 makes of them: also where that is more than is true.

It calls a nanosecond of throttling within a minute a warning and one NVLink replay since the driver was loaded a failure
for ever. It keeps Xids until it is restarted, and says nothing more of a GPU that it lost. Its Xids come from NVML's events.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpuwarden_collectors.dcgm.facts import (
    DcgmFacts,
    DcgmGpu,
    DcgmGpuStatus,
    DcgmIncident,
    DcgmProblem,
    DcgmProblemKind,
    DcgmReadings,
)
from gpuwarden_collectors.facts import GpuAnswer, GpuFacts, Stamp
from gpuwarden_collectors.gpu_readings import GpuReadings

ALL_SYSTEMS = 0xFFFFFFFF
PCIE, NVLINK, MEMORY, INFOROM, THERMAL, POWER, DRIVER = 0x1, 0x2, 0x10, 0x40, 0x80, 0x100, 0x200
WARN, FAIL = 10, 20
XIDS: dict[int, tuple[int, int, int]] = {
    **dict.fromkeys((31, 32, 43), (MEMORY, WARN, 101)),
    **dict.fromkeys((38, 39, 42), (PCIE, WARN, 101)),
    **dict.fromkeys((67, 73, 121, 137), (NVLINK, WARN, 101)),
    **dict.fromkeys((61, 62), (THERMAL, WARN, 101)),
    **dict.fromkeys((54, 56, 58, 78), (POWER, WARN, 101)),
    **dict.fromkeys((48, 74, 119, 120, 140), (ALL_SYSTEMS, FAIL, 101)),
    57: (POWER, WARN, 12), 60: (THERMAL, WARN, 10), 63: (MEMORY, WARN, 6), 64: (MEMORY, FAIL, 80),
    79: (ALL_SYSTEMS, FAIL, 120), 94: (ALL_SYSTEMS, WARN, 131), 95: (ALL_SYSTEMS, FAIL, 81),
}  # fmt: skip
"""System, health and code of the incident. Other Xids make none."""
RECOVERY = {1: (FAIL, 125), 2: (FAIL, 126), 3: (WARN, 127), 4: (FAIL, 128)}
GROWING = {
    "slowdown_hw_thermal_ns": (THERMAL, WARN, 10, 1), "slowdown_hw_power_brake_ns": (POWER, WARN, 12, 1),
    "pcie_replays": (PCIE, WARN, 3, 31),
}  # fmt: skip
"""Counters of which so much growth within a minute makes an incident."""
WINDOW = 60.0

_Named = tuple[int, int, int, int | None, int | None]  # system, health, code, Xid, link


class Engine:
    """`runs`, `hung`, `blind` and `empty` may be set; `reported` holds incidents that have no other source here, `lost` GPUs that
    it alone has lost.
    """

    def __init__(self) -> None:
        self.runs = True
        self.hung = False
        self.blind = False
        self.empty = False
        self.lost: set[int] = set()
        self.reported: dict[int, list[_Named]] = {}
        self.node_reports: list[_Named] = []
        self.problems: tuple[DcgmProblem, ...] = ()
        self.imex_domain = ""
        self._noted: dict[int, dict[_Named, None]] = {}
        self._begun: dict[tuple[int, _Named], tuple[Stamp, bool]] = {}
        self._since = Stamp(0.0, 0.0)
        self._first = True
        self._grown: dict[tuple[int, str], tuple[int, float]] = {}
        self._last: tuple[object, DcgmFacts] | None = None

    # --- what befalls it

    def stop(self) -> None:
        self.runs = self.hung = False

    def start(self, now: Stamp) -> None:
        """Nothing that it knew is known any more."""
        self.runs, self.hung, self.blind, self.empty = True, False, False, False
        self.lost.clear()
        self._noted.clear()
        self.connect(now)

    def connect(self, now: Stamp) -> None:
        """A new client: what is there already may be of any age."""
        self._begun.clear()
        self._since, self._first = now, True

    def xid(self, n: int, number: int) -> None:
        if self.runs and number in XIDS:
            self._noted.setdefault(n, {})[*XIDS[number], number, None] = None
            self.blind = self.blind or number == 119

    # --- what it says

    def facts(self, gpus: Sequence[GpuFacts], *, here: Sequence[bool], now: Stamp, driver: bool) -> DcgmFacts:
        """`here`: which of `gpus` NVML lists and can reach. Without a driver there are none, and all is well."""
        key = (list(gpus), list(here), driver, self._kept_apart())
        if (
            self._last is not None
            and self._last[0] == key
            and not any(until > now.boottime for _, until in self._grown.values())
        ):
            return self._last[1]  # the very same, which a quiet replay knows at once
        facts = self._facts(gpus, here=here, now=now, driver=driver)
        self._last = (key, facts)
        return facts

    def _kept_apart(self) -> list[object]:
        """Return everything else that the answer depends on."""
        noted, reported = [list(each) for each in self._noted.values()], [*self.reported.items(), *self.node_reports]
        return [
            self._since,
            self._first,
            self.blind,
            self.empty,
            set(self.lost),
            noted,
            reported,
            self.problems,
            self.imex_domain,
        ]

    def _facts(self, gpus: Sequence[GpuFacts], *, here: Sequence[bool], now: Stamp, driver: bool) -> DcgmFacts:
        if not driver or self.empty:
            none = DcgmProblem(kind=DcgmProblemKind.NO_GPUS, text="the engine lists no GPU")
            return DcgmFacts(engine_version="4.6.0", watched_since=self._since, watches=ALL_SYSTEMS, problems=(none,))
        here = [answers and n not in self.lost for n, answers in enumerate(here)]
        dcgm_gpus = tuple(self._gpu(n, gpu, answers=here[n]) for n, gpu in enumerate(gpus))
        named = [(n, report) for n, gpu in enumerate(gpus) if here[n] for report in self._of(n, gpu, now)]
        kept = {(n, report) for n, noted in self._noted.items() for report in noted}
        begun = {
            each: self._begun.get(each) or (now, self._first)
            for each in (*named, *((-1, o) for o in self.node_reports))
        }
        self._begun = {each: begins for each, begins in self._begun.items() if each in kept} | begun
        self._first = False
        incidents = tuple(self._incident(n, report, begun[n, report], gpus) for n, report in begun)
        overall = max((incident.health for incident in incidents), default=0)
        return DcgmFacts(
            engine_version="4.6.0", address="unix:///run/nv-hostengine.sock", gpus=dcgm_gpus, incidents=incidents, overall=overall,
            watches=ALL_SYSTEMS, watched_since=self._since, imex_domain=self.imex_domain, problems=(*self.problems, *self._blind()),
        )  # fmt: skip

    def _blind(self) -> Iterator[DcgmProblem]:
        if self.blind:
            yield DcgmProblem(kind=DcgmProblemKind.BLIND, text="nothing is readable of any GPU")

    def _gpu(self, n: int, gpu: GpuFacts, *, answers: bool) -> DcgmGpu:
        readings = DcgmReadings() if self.blind else DcgmReadings(temperature=50)
        status = DcgmGpuStatus.OK if answers else DcgmGpuStatus.LOST
        return DcgmGpu(id=n, slot=gpu.slot, uuid=gpu.uuid, name=gpu.name, status=status, readings=readings)

    def _of(self, n: int, gpu: GpuFacts, now: Stamp) -> Iterator[_Named]:
        yield from self._noted.get(n, ())
        yield from self.reported.get(n, ())
        if self.blind:
            yield POWER, WARN, 11, None, None
        elif gpu.answer is GpuAnswer.OK:
            yield from _states(gpu)
            yield from self._rates(n, gpu.readings, now)

    def _rates(self, n: int, readings: GpuReadings, now: Stamp) -> Iterator[_Named]:
        for name, (system, health, code, most) in GROWING.items():
            value = getattr(readings, name) or 0
            old, until = self._grown.get((n, name), (value, 0.0))
            if value - old >= most:
                until = now.boottime + WINDOW
            self._grown[n, name] = (value, until)
            if until > now.boottime and until - now.boottime <= WINDOW:
                yield system, health, code, None, None

    def _incident(self, n: int, named: _Named, begun: tuple[Stamp, bool], gpus: Sequence[GpuFacts]) -> DcgmIncident:
        system, health, code, xid, link = named
        first_seen, preexisting = begun
        incident = DcgmIncident(
            system=system, health=health, code=code, entity_kind=0 if n < 0 else 1, entity_id=max(n, 0), xid=xid, link=link,
            first_seen=first_seen, preexisting=preexisting, latched=xid is not None, message=f"incident {code}",
        )  # fmt: skip
        return incident if n < 0 else replace(incident, slot=gpus[n].slot)


def _states(gpu: GpuFacts) -> Iterator[_Named]:
    """Yield the states that DCGM derives from the readings of a GPU."""
    r = gpu.readings
    holds = {
        (MEMORY, FAIL, 4): bool(r.ecc_uncorrected_volatile),
        (MEMORY, WARN, 6): bool(r.retired_pages_pending),
        (MEMORY, FAIL, 7): (r.retired_pages_double_bit or 0) >= 63,
        (MEMORY, FAIL, 80): bool(r.remapped_rows_failure),
        (INFOROM, WARN, 9): r.inforom_valid == 0,
        (NVLINK, WARN, 123): r.fabric_state == 2,
        (NVLINK, FAIL, 123): r.fabric_state == 1 or bool(r.fabric_status),
        (NVLINK, WARN, 71): bool(r.nvlink5_recoveries),
        (NVLINK, FAIL, 71): bool(r.nvlink_replay_errors or r.nvlink_recovery_errors or r.nvlink5_recovery_failures),
    }
    yield from ((*named, None, None) for named, it_holds in holds.items() if it_holds)
    if r.recovery_action in RECOVERY:
        yield DRIVER, *RECOVERY[r.recovery_action], None, None
    if not r.mig_mode:
        yield from ((NVLINK, FAIL, 14, None, link.link) for link in gpu.links if link.active is False)
