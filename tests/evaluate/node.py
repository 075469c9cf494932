"""A GPU host that lives on a clock of its own and leaves a trace: what its collectors would have seen, record by record.

Uptime begins again with each boot, and wall time may be set; the clock of the story does neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from evaluate.beside import INTERVALS, Beside
from evaluate.cadence import AsRead
from evaluate.clockwork import Clockwork, Process
from evaluate.engine import Engine
from evaluate.models import MODELS, SINCE_DRIVER_LOAD
from gpuwarden.health.model import Event
from gpuwarden.health.view import Rules
from gpuwarden.trace.records import Acknowledged, ActiveTested, Began, ErrorsChanged, HostEventsSeen, Passed, Record
from gpuwarden_collectors.base import Observation, PassOutcome, WorkerReport
from gpuwarden_collectors.dcgm.facts import NOT_ANSWERING
from gpuwarden_collectors.event_facts import HostEvent, Source, XidEvent
from gpuwarden_collectors.facts import GpuAnswer, GpuFacts, LinkFacts, NvmlFacts, NvmlProblem, Stamp
from gpuwarden_collectors.pci_facts import PciDevice, PciFacts, PciKind
from gpuwarden_collectors.slurm.jobs_facts import JobsFacts
from support.hosts import WALL, readings, slot

INTERVAL, PCI_INTERVAL, DCGM_INTERVAL, JOBS_INTERVAL, DEADLINE = 5.0, 10.0, 15.0, 10.0, 10.0
WALKS_EVERY = 105.0
"""Seconds at least; then with the next pass that reads the counters of all GPUs: two minutes at most."""


class Node(Clockwork):
    """`sink` is given each record as it happens. `true`: codes of warnings that would be true at this moment. `reserved`: GPUs whose
    work, clocks and limits one process alone decides: two that did so would make a GPU that there is not.
    """

    def __init__(
        self,
        sink: Callable[[Record], None],
        dice: Random,
        *,
        gpus: int = 8,
        model: str = "H100",
        links: int | None = None,
        dcgm: bool = True,
        beside: bool = True,
    ) -> None:
        super().__init__()
        self._sink = sink
        self.dice = dice
        self._booted = -86_400.0 - dice.random() * 86_400.0
        self._wall_step = 0.0
        self._boots = 1
        self._up = False
        self._session = 0
        self._unread: list[HostEvent] = []
        self.model = model
        made = MODELS[model]
        self.link_count = made.links if links is None else links
        worker = readings(**made.differing)
        self.gpus = [
            GpuFacts(
                slot=slot(n), index=n, uuid=f"GPU-{n:08x}-0000-4000-8000-{n:012x}", name=made.name, serial=f"16500{n:08d}",
                minor=n, readings=worker, links=self.links_up(),
            )
            for n in range(gpus)
        ]  # fmt: skip
        self.devices = [
            PciDevice(slot=slot(n), kind=PciKind.GPU, device_id=0x2330, driver="nvidia", responds=True)
            for n in range(gpus)
        ]
        switches = (f"0000:{n:02x}:00.0" for n in range(5, 9))
        self.switches = tuple(PciDevice(slot=each, kind=PciKind.SWITCH, device_id=0x22A3) for each in switches)
        self.listed = [True] * gpus
        self.plugged = [True] * gpus
        self.problem: NvmlProblem | None = None
        self.hung = False
        self.stuck = False
        self.bus_hangs = False
        self.jobs: JobsFacts | None = None
        self._worker = WorkerReport(pid=4711, ever_answered=True)
        self.engine = Engine() if dcgm else None
        self.beside = Beside() if beside else None
        self._dcgm_worker = WorkerReport(pid=4712, ever_answered=True)
        self._engine_seen = False
        self._latest: dict[str, Any] = {}
        self._walks_next, self._missed = 0.0, -60.0
        self._answered: Stamp | None = None
        self._as_read = AsRead(INTERVAL)
        self._facts: NvmlFacts | None = None
        self._seen = -1
        self.true: set[str] = set()
        self.warm: list[int] = [60] * gpus
        self.reserved: set[int] = set()
        self.walks = True

    # --- the clock

    @property
    def now(self) -> Stamp:
        return Stamp(round(self.clock - self._booted, 6), round(WALL + self.clock + self._wall_step, 6))

    @property
    def branch(self) -> int:
        """Return the driver's branch: 575 of 575.51.02."""
        return int(MODELS[self.model].driver.partition(".")[0])

    @property
    def boot_id(self) -> str:
        return f"boot-{self._boots}"

    def step_wall_clock(self, seconds: float) -> None:
        self._wall_step += seconds

    # --- the daemon

    def start_daemon(self, *, remembers: bool = True) -> None:
        self._up = True
        self._session += 1
        self._sink(Began(at=self.now, boot_id=self.boot_id, rules=Rules(), memory=None if remembers else ()))
        unread, self._unread = self._unread, []
        if unread:
            self.later(0.05, lambda: self._tell(unread))
        self._answered = None
        self._as_read = AsRead(INTERVAL)
        self._worker, self._dcgm_worker = (
            WorkerReport(pid=4711),
            WorkerReport(pid=4712),
        )  # new ones, which missed nothing yet
        self._passes(self._session, 0.2, INTERVAL, self._nvml_pass)
        self._passes(self._session, 0.1, PCI_INTERVAL, self._pci_pass)
        self._passes(self._session, 0.3, JOBS_INTERVAL, self._jobs_pass)
        if self.engine is not None:
            self.engine.connect(self.now)
            self._engine_seen = False
            self._passes(self._session, 0.4, DCGM_INTERVAL, self._dcgm_pass)
        if self.beside is not None:
            for n, (name, interval) in enumerate(INTERVALS.items()):
                self._passes(self._session, 0.5 + n / 10, interval, partial(self._look_beside, name))

    def stop_daemon(self) -> None:
        self._up = False

    def reboot(self, away: float, uptime: float) -> None:
        """The machine is away for `away` seconds; the daemon starts `uptime` seconds after boot. Memory of errors is gone."""
        self.stop_daemon()
        self._unread.clear()
        self.sleep(away)
        self._boots += 1
        self._booted = self.clock - uptime
        self.hung = self.stuck = self.bus_hangs = False
        self.jobs = None if self.jobs is None else JobsFacts()
        if self.beside is not None:
            self.beside.boots()
        if self.engine is not None:
            self.engine.start(self.now)
        self.load_driver()
        self.start_daemon()

    def report_errors(self, errors: dict[str, str]) -> None:
        """Set the errors of the daemon itself from now on."""
        self._sink(ErrorsChanged(at=self.now, errors=errors))

    def acknowledge(self, finding: str) -> None:
        self._sink(Acknowledged(at=self.now, finding=finding, by="root"))

    def active_tested(self, *events: Event) -> None:
        self._sink(ActiveTested(at=self.now, events=events))

    def _passes(self, session: int, first: float, interval: float, take: Callable[[], float]) -> None:
        def again() -> None:
            if session == self._session and self._up:
                self.later(max(interval, take()), again)

        self.later(first, again)

    # --- passes

    def _nvml_pass(self) -> float:
        """Make one pass, and return the seconds until the next can begin."""
        if self.walks and self.clock >= self._walks_next and self._as_read.due(self.now.boottime):
            self._walk()
            self._walks_next = self.clock + WALKS_EVERY
        if self.hung:
            self.later(DEADLINE, self._timed_out)
            return DEADLINE + 0.001
        facts, started = self._as_read.facts(self.facts, self.now.boottime), self.now
        self._answered = started
        self._worker = replace(self._worker, missed=0, silent_since=None, stuck=False, ever_answered=True)
        self._observed("nvml", started, facts=facts, worker=self._worker)
        seen = sum(gpu.answer is not GpuAnswer.LOST for gpu in facts.gpus)
        if seen < self._seen:  # the daemon asks the bus at once
            self.later(0.02, self._look_at_the_bus)
        self._seen = seen
        return 0.0

    def _timed_out(self) -> None:
        if not self.hung or not self._up:
            return
        since = self._answered or self.now
        missed = self._worker.missed + 1
        self._worker = replace(self._worker, missed=missed, timeouts=missed, silent_since=since, stuck=self.stuck)
        started = Stamp(self.now.boottime - DEADLINE, self.now.wall - DEADLINE)
        self._observed("nvml", started, PassOutcome.TIMED_OUT, worker=self._worker)

    def miss_a_deadline(self) -> Process:
        """Let one pass miss its deadline; two in a row would be a driver that hangs."""
        if self.clock - self._missed >= 60.0:
            self.hung, self._missed = True, self.clock
            yield DEADLINE + INTERVAL
            self.hung = False

    def _pci_pass(self) -> float:
        self._look_at_the_bus()
        return 0.0

    def _look_at_the_bus(self) -> None:
        if self.bus_hangs:
            self._observed("pci", self.now, PassOutcome.TIMED_OUT)
            return
        pairs = zip(self.plugged, self.devices, strict=True)
        gpus = (device for here, device in pairs if here)
        self._observed("pci", self.now, facts=PciFacts(devices=(*gpus, *self.switches)))

    def _dcgm_pass(self) -> float:
        """Make one pass of the engine's reader, which is ended after DEADLINE and begins again."""
        engine = self.engine
        if engine is None:
            return 0.0
        if engine.hung:
            self.later(DEADLINE, self._engine_timed_out)
            return DEADLINE + 0.001
        started, now = self.now, self.now
        if not engine.runs:
            outcome = PassOutcome.FAILED if self._engine_seen else PassOutcome.ABSENT
            self._observed("dcgm", started, outcome, worker=self._dcgm_worker, error=f"{NOT_ANSWERING}it is gone")
            return 0.0
        self._engine_seen = True
        self._dcgm_worker = replace(self._dcgm_worker, missed=0, silent_since=None, ever_answered=True)
        pairs = zip(self.listed, self.gpus, strict=True)
        here = [listed and gpu.answer is not GpuAnswer.LOST for listed, gpu in pairs]
        facts = engine.facts(self.gpus, here=here, now=now, driver=self.problem is not NvmlProblem.DRIVER_NOT_LOADED)
        self._observed("dcgm", started, facts=facts, worker=self._dcgm_worker)
        return 0.0

    def _engine_timed_out(self) -> None:
        if self.engine is None or not self.engine.hung:
            return
        started = Stamp(self.now.boottime - DEADLINE, self.now.wall - DEADLINE)
        since, missed = self._dcgm_worker.silent_since or started, self._dcgm_worker.missed + 1
        self._dcgm_worker = replace(self._dcgm_worker, missed=missed, timeouts=missed, silent_since=since)
        self._observed("dcgm", started, PassOutcome.TIMED_OUT, worker=self._dcgm_worker)

    def _jobs_pass(self) -> float:
        if self.jobs is not None:
            self._observed("jobs", self.now, facts=self.jobs)
        return 0.0

    def _look_beside(self, name: str) -> float:
        if self.beside is not None:
            self._observed(name, self.now, facts=self.beside.facts(name, self.now))
        return 0.0

    def _observed(
        self, name: str, started: Stamp, outcome: PassOutcome = PassOutcome.OBSERVED, *,
        facts: Any = None, worker: WorkerReport | None = None, error: str = "",
    ) -> None:  # fmt: skip
        if not self._up:
            return
        before = self._latest.get(name)
        if facts is not before and facts == before:
            facts = before  # the very same, which a quiet replay knows at once
        self._latest[name] = facts
        if outcome is PassOutcome.TIMED_OUT:
            error = f"{name} has not answered within {DEADLINE:g} s"
        observation = Observation(
            collector=name, outcome=outcome, started=started, finished=self.now, facts=facts, error=error, worker=worker
        )
        self._sink(Passed(observation))

    @property
    def facts(self) -> NvmlFacts:
        if self._facts is None:
            version = MODELS[self.model].driver
            here = () if self.problem else tuple(g for g, listed in zip(self.gpus, self.listed, strict=True) if listed)
            text = f"NVML says {self.problem}" if self.problem else ""
            taken = None if self.problem else round(0.1 + sum(gpu.read_seconds or 0.0 for gpu in here), 1)
            self._facts = NvmlFacts(
                gpus=here, driver_version=version, problem=self.problem, problem_text=text, read_seconds=taken
            )
        return self._facts

    def _walk(self) -> None:
        """Temperatures follow the load, two dozen degrees in two minutes at most."""
        for n, gpu in enumerate(self.gpus):
            now = gpu.readings.temperature or 40
            goal = self.warm[n] + self.dice.randint(-2, 2)
            if goal != now:
                self.heat(n, now + max(-24, min(24, goal - now)))

    # --- what may be done to GPUs

    def change(self, n: int, **values: int | None) -> None:
        """Readings of GPU `n`. Those that this model does not have stay None."""
        gpu = self.gpus[n]
        supported = {
            name: value for name, value in values.items() if getattr(gpu.readings, name) is not None or value is None
        }
        self.put(n, readings=replace(gpu.readings, **supported))

    def give(self, n: int, **values: int) -> None:
        """Change readings like `change`, also those that this model did not have."""
        self.put(n, readings=replace(self.gpus[n].readings, **values))

    def add(self, n: int, **values: int) -> None:
        old = self.gpus[n].readings
        self.change(n, **{name: (getattr(old, name) or 0) + value for name, value in values.items()})

    def heat(self, n: int, celsius: int) -> None:
        highest = self.gpus[n].readings.temperature_gpu_max or 87
        self.change(n, temperature=celsius, temperature_memory=celsius + 5, temperature_margin=highest - celsius)

    def put(self, n: int, **fields: Any) -> None:
        self.gpus[n] = replace(self.gpus[n], **fields)
        self._facts = None

    def plug(self, n: int, **fields: Any) -> None:
        self.devices[n] = replace(self.devices[n], **fields)

    def list_(self, n: int, *, listed: bool) -> None:
        self.listed[n] = listed
        self._facts = None

    def say(self, problem: NvmlProblem | None) -> None:
        """NVML as a whole answers with this problem."""
        self.problem = problem
        self._facts = None

    def links_up(self, down: Iterable[int] = ()) -> tuple[LinkFacts, ...]:
        missing = set(down)
        return tuple(LinkFacts(link=n, active=n not in missing) for n in range(self.link_count))

    def train(self, n: int, *, down: Iterable[int] = ()) -> None:
        self.put(n, links=self.links_up(down))

    def load_driver(self) -> None:
        """Load the driver anew, as after `modprobe`: nothing is wrong, and all counters begin at 0. Permanent records of a GPU stay."""
        self.say(None)
        for n in range(len(self.gpus)):
            self.reset(n)

    def reset(self, n: int) -> None:
        self.change(n, **dict.fromkeys(SINCE_DRIVER_LOAD, 0))
        self.put(n, answer=GpuAnswer.OK, links=self.links_up())
        self.plug(n, driver="nvidia", responds=True)
        self.list_(n, listed=True)

    def repair(self) -> None:
        """The technician was here: whatever went on is over, every GPU is as new, in every slot, and the node boots."""
        self.forget()
        self.walks = True
        for n, gpu in enumerate(self.gpus):
            self.put(
                n, readings=readings(**MODELS[self.model].differing), serial=gpu.serial, processes=(), read_seconds=None
            )
            self.plugged[n] = True
            self.warm[n] = 60
        self.engine = Engine() if self.engine is not None else None
        self.beside = Beside() if self.beside is not None else None
        self.reboot(away=600.0, uptime=60.0)

    # --- lines

    def say_lines(self, *events: HostEvent) -> None:
        """The kernel log says this now; a daemon that is not running reads it when it is back."""
        if self.engine is not None and any(isinstance(e, XidEvent) and e.xid == 119 for e in events):
            self.engine.blind = self.engine.runs  # it reads the kernel log itself, for this
        self._tell(list(events))

    def _tell(self, events: list[HostEvent]) -> None:
        if self._up:
            self._sink(HostEventsSeen(at=self.now, events=tuple(events)))
            if any(isinstance(event, XidEvent) and event.xid == 79 for event in events):  # the daemon asks both at once
                self.later(0.02, self._look_at_the_bus)
                if not self.hung:
                    self.later(0.05, self._extra_pass)
        else:
            self._unread += events

    def _extra_pass(self) -> None:
        self._nvml_pass()

    def xid(
        self, n: int, number: int, text: str = "", *, source: Source = Source.KERNEL_LOG, **fields: Any
    ) -> XidEvent:
        return XidEvent(at=self.now, source=source, slot=slot(n), xid=number, text=text or f"Xid {number}", **fields)

    def xids(self, n: int, *numbers: int, events_too: bool = True) -> None:
        """Lines in the kernel log, and NVML's events of the same Xids up to two seconds later."""
        self.say_lines(*(self.xid(n, number) for number in numbers))
        if events_too and not self.hung:
            for number in numbers:
                self.later(self.dice.uniform(0.01, 2.0), partial(self._nvml_event, n, number))

    def _nvml_event(self, n: int, number: int) -> None:
        if self.engine is not None and not self.hung:
            self.engine.xid(n, number)
        if self._up and not self.hung:  # events of a worker that is not there are nobody's
            self._tell([self.xid(n, number, source=Source.NVML)])
