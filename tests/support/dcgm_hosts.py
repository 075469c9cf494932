"""A host of the judge's (see `hosts`) with DCGM on it, and DCGM's reports about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpuwarden.health.dcgm.xids import Known, xids_of
from gpuwarden.health.judge import Step
from gpuwarden.health.model import Finding
from gpuwarden_collectors.base import Observation, PassOutcome
from gpuwarden_collectors.dcgm.facts import (
    NOT_ANSWERING,
    DcgmFacts,
    DcgmGpu,
    DcgmGpuStatus,
    DcgmIncident,
    DcgmProblem,
    DcgmProblemKind,
    DcgmReadings,
)
from gpuwarden_collectors.event_facts import HostEvent
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.host_facts import ServiceFacts, ServicesFacts
from support.hosts import WALL, Host, slot

CONNECTION_LOST = f"{NOT_ANSWERING}cannot read DCGM at unix:///engine: ConnectionNotValid (-21)"
WARN, FAIL = 10, 20
GPU, SWITCH, CPU, CONNECTX = 1, 3, 7, 9


class DcgmHost(Host):
    """Every step brings a pass of DCGM too: its facts, or, with another `outcome`, why there are none.

    `services`: the units that systemd has, None where it does not run.
    """

    def __init__(self, gpus: int = 2, *, uptime: float = 10_000.0) -> None:
        super().__init__(gpus, uptime=uptime)
        watched_since = Stamp(uptime - 1000, WALL + uptime - 1000)
        self.dcgm = DcgmFacts(
            engine_version="4.6.0",
            gpus=tuple(DcgmGpu(id=n, slot=slot(n), uuid=f"GPU-{n:08d}") for n in range(gpus)),
            watched_since=watched_since,
        )
        self.outcome: PassOutcome | None = PassOutcome.OBSERVED
        self.error = ""
        self.services: tuple[ServiceFacts, ...] | None = None
        self._taken: DcgmFacts | None = None

    def step(self, *events: HostEvent, **more: Any) -> Step:
        if self.outcome is not None:
            self.view = self.view.after(
                Observation(
                    collector="dcgm", outcome=self.outcome, started=self.now, finished=self.now, error=self.error,
                    facts=self.dcgm if self.outcome is PassOutcome.OBSERVED else None,
                )
            )  # fmt: skip
        if self.services is not None:
            units = ServicesFacts(services=self.services)
            self.view = self.view.after(
                Observation(
                    collector="services", outcome=PassOutcome.OBSERVED, started=self.now, finished=self.now, facts=units
                )
            )
        xids: list[HostEvent] = []
        if (facts := self.view.dcgm.facts) is not None:
            xids += xids_of(self._taken, facts, self.now, Known(self.state.records, self.boot_id))
            self._taken = facts
        return super().step(*events, *xids, **more)

    def away(self, outcome: PassOutcome, error: str = "") -> None:
        """The passes of DCGM end like this from now on."""
        self.outcome, self.error = outcome, error

    def back(self) -> None:
        self.away(PassOutcome.OBSERVED)

    def incident(
        self, code: int, *, gpu: int = 0, health: int = FAIL, entity: tuple[int, int] | None = None, **more: Any
    ) -> None:
        """Add an incident that is first seen now. `entity`: kind and id of its subject, if that is no GPU."""
        kind, number = entity or (GPU, gpu)
        made = DcgmIncident(
            system=1, health=health, code=code, entity_kind=kind, entity_id=number,
            **{"first_seen": self.now, "slot": slot(gpu) if entity is None else "", "message": "GPU 31 is odd", **more},
        )  # fmt: skip
        self.dcgm = replace(self.dcgm, incidents=(*self.dcgm.incidents, made))

    def imex(self, domain: str, daemon: int | None) -> None:
        """Set the fields 1502 and 1503, and the incident that the engine makes of them (DcgmHealthWatch.cpp: MonitorImex)."""
        self.dcgm = replace(self.dcgm, imex_domain=domain, imex_daemon=daemon)
        if domain in ("DOWN", "DEGRADED") or daemon not in (None, 5, 7, -1, -2):
            self.incident(122, entity=(0, 0), message=f"IMEX daemon status is {daemon} (not READY)")

    def silence(self) -> None:
        self.dcgm = replace(self.dcgm, incidents=(), problems=())

    def problem(self, problem_kind: DcgmProblemKind) -> None:
        self.dcgm = replace(self.dcgm, problems=(DcgmProblem(kind=problem_kind, text=f"it has {problem_kind}"),))

    def engine_gpu(self, index: int, **changes: Any) -> None:
        """Change the engine's readings of one GPU."""
        gpus = [replace(each, **changes) if each.id == index else each for each in self.dcgm.gpus]
        self.dcgm = replace(self.dcgm, gpus=tuple(gpus))

    def status(self, index: int, status: DcgmGpuStatus) -> None:
        self.engine_gpu(index, status=status)

    def field(self, index: int, **readings: Any) -> None:
        self.engine_gpu(index, readings=replace(self.dcgm.gpus[index].readings, **readings))

    def restart_daemon(self) -> None:
        """A new connection to the same engine: it did not see anything begin."""
        super().restart_daemon()
        self._taken = None
        incidents = (replace(each, preexisting=True, first_seen=self.now) for each in self.dcgm.incidents)
        self.dcgm = replace(self.dcgm, incidents=tuple(incidents), watched_since=self.now)

    def finding(self) -> Finding:
        """Return the only finding; fail if there is another number."""
        (only,) = self.findings
        return only


__all__ = ["CONNECTION_LOST", "CONNECTX", "CPU", "FAIL", "SWITCH", "WARN", "DcgmHost", "DcgmReadings"]
