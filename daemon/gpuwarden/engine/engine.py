"""The engine: takes in observations and events, and judges them in steps.

It has no clock, I/O or event loop, so the daemon, `gpuwarden check` and a replay use it alike. Listeners get every
input, in order, as a trace records it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from gpuwarden.engine.faults import Faults, Guard
from gpuwarden.features import parts
from gpuwarden.health.checkpoint import checkpoint
from gpuwarden.health.confirmation import remembered
from gpuwarden.health.dcgm.xids import Known, xids_of
from gpuwarden.health.domain import domain_of
from gpuwarden.health.gpu.pods import pods_on_gpus
from gpuwarden.health.inventory import Presence, accept, presences
from gpuwarden.health.judge import Step, acknowledge, judge
from gpuwarden.health.model import Event, EventKind, Key, Pin, Verdict
from gpuwarden.health.severity import in_shadow
from gpuwarden.health.state import State, fold
from gpuwarden.health.view import Rules, Seen, Sight, View
from gpuwarden.health.xid.witnesses import UNKNOWN_SLOT, undecided
from gpuwarden.publish.metrics.machine import machine_labels
from gpuwarden.publish.snapshot import NVML_PASSES, CollectorStatus, Service, Snapshot, XidCount
from gpuwarden.trace.records import (
    Accepted,
    Acknowledged,
    ActiveTested,
    ErrorsChanged,
    HostEventsSeen,
    Passed,
    Record,
    RulesChanged,
)
from gpuwarden_collectors.base import Observation, PassOutcome
from gpuwarden_collectors.dataclass import replace
from gpuwarden_collectors.dcgm.facts import DcgmFacts
from gpuwarden_collectors.event_facts import HostEvent, XidEvent
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.host_facts import InfinibandFacts

_SHOWN = parts("snapshot")
MEMORY_EVENTS = "memory.events"
"""The name of the call that returns a feature's memory for a checkpoint."""
NO_EVENTS: list[Event] = []
WAITING_MOST = 100_000
"""Most host events that wait for the next step. The sources have limits of their own."""


class Engine:
    """Holds the judge's state and the view. `listeners` may be added and removed at any time; they must not block, and
    their exceptions are ignored.
    """

    def __init__(self, boot_id: str, rules: Rules, past: Iterable[Event] = (), *, faults: Faults | None = None) -> None:
        self.rules = rules
        self.state = State()
        for event in past:
            self.fold(event)
        self.view = View(boot_id=boot_id)
        self.listeners: list[Callable[[Record], None]] = []
        self.sequence = 0
        self.observed_at: Stamp | None = None
        self.collectors: dict[str, CollectorStatus] = {}
        self.log_gaps = 0
        self.log_lost = 0
        self.switch = ""
        """The leaf switch of this node; "" until it is known."""
        self._domain = ""  # of the last pass that had one
        self.kernel = ""
        """The release of the kernel."""
        self._nvml_passes = NVML_PASSES
        self.discarded = 0
        self.disbelieved = 0
        self.kept_out: Mapping[str, int] = {}
        """By reason, kernel log records that their reader rejected as not credible."""
        self._judged_by = rules
        self._waiting: list[HostEvent] = []
        self._dcgm_taken: DcgmFacts | None = None  # their Xids were judged
        self._faults = Faults() if faults is None else faults
        self._guards = {name: Guard(self._faults, name) for name in _SHOWN}

    def fold(self, event: Event) -> None:
        self.state = fold(self.state, event)

    def checkpoint(self, now: Stamp) -> list[Event]:
        return checkpoint(
            self.state, now, lambda name, made: Guard(self._faults, name).call(MEMORY_EVENTS, NO_EVENTS, made)
        )

    @contextmanager
    def rebuilding(self) -> Iterator[None]:
        """Rebuild the state as the fold of the events folded within the context. Short-lived fields are kept."""
        live = self.state
        self.state = State()
        yield
        moments = replace(live.moments, unconfirmed=remembered(self.state, live))
        self.state = replace(self.state, moments=moments)

    def observed(self, observation: Observation[Any]) -> bool:
        """Record a pass of any collector. Returns True if its outcome or facts differ from those of the pass before."""
        self._took(Passed(observation))
        before = self.view.passes.get(observation.collector, Seen())
        self.view = self.view.after(observation)
        self.note(observation)
        if observation.collector == "nvml" and observation.outcome in (PassOutcome.OBSERVED, PassOutcome.ABSENT):
            self.sequence += 1  # both outcomes describe the host
            self.observed_at = observation.finished
        after = self.view.passes[observation.collector]
        return (before.outcome, before.facts) != (after.outcome, after.facts)

    def ingest(self, events: Iterable[HostEvent], now: Stamp) -> None:
        events = tuple(events)
        self._took(HostEventsSeen(at=now, events=events))
        for event in events:
            if len(self._waiting) < WAITING_MOST:
                self._waiting.append(event)
            else:
                self.discarded += 1

    def set_errors(self, errors: Mapping[str, str], now: Stamp) -> None:
        if (new_errors := dict(errors)) != self.view.errors:
            self._took(ErrorsChanged(at=now, errors=new_errors))
            self.view = replace(self.view, errors=new_errors)

    def of_machine_type(self, machine_type: str) -> None:
        """Set the machine type once the cloud has named it, where the firmware does not; "" changes nothing."""
        if machine_type and machine_type != self.rules.machine_type:
            self.rules = replace(self.rules, machine_type=machine_type)

    def log_read(self, read: bool) -> None:
        """Set whether the kernel log was read to its end since the daemon started, with no line lost."""
        if read is not self.view.log_read:
            self.view = replace(self.view, log_read=read)

    def shadowed(self, event: Event) -> bool:
        """True if the event is about a finding that is in shadow by the rules in force."""
        of_finding = event.kind in (EventKind.RAISED, EventKind.CLEARED, EventKind.ACKNOWLEDGED)
        return of_finding and event.key is not None and in_shadow(event.key.code, self.rules)

    def step(self, now: Stamp) -> Step:
        if self.rules is not self._judged_by:  # a reload has replaced them
            self._judged_by = self.rules
            self._took(RulesChanged(at=now, rules=self.rules))
        step = judge(self.state, self.view, [*self._waiting, *self._xids_of_dcgm()], self.rules, now)
        self.state, self._waiting = step.state, []  # after `judge`, so that a failed step loses no event
        self._dcgm_taken = self.view.dcgm.facts or self._dcgm_taken
        self.disbelieved += step.disbelieved
        for event in step.events:
            if event.kind == EventKind.LOG_GAP:
                lost = event.data.get("count")
                self.log_gaps += 1
                self.log_lost += lost if isinstance(lost, int) else 0
        self._domain = domain_of(self.view.nvml.facts) or self._domain
        return replace(step, verdict=replace(step.verdict, domain=self._domain)) if self._domain else step

    def _xids_of_dcgm(self) -> list[XidEvent]:
        """Derive Xids from the last DCGM pass. Called after the ledger was recalled, so that Xids in it are not
        reported again.
        """
        seen = self.view.dcgm
        if seen.facts is None or seen.at is None or seen.facts is self._dcgm_taken:
            return []
        return xids_of(self._dcgm_taken, seen.facts, seen.at, Known(self.state.records, self.view.boot_id))

    def acknowledge(self, finding: str, by: str, now: Stamp) -> Event:
        """The event of an acknowledged finding, for the caller to fold. Raises ValueError, with the reason, for
        anything but a latched finding.
        """
        event = acknowledge(self.state, Key.parse(finding), by, now, self.view.boot_id)
        self._took(Acknowledged(at=now, finding=finding, by=by))
        return event

    def accept_inventory(self, now: Stamp) -> list[Event]:
        """Events that accept the GPUs in the machine as its inventory, for the caller to fold. Raises ValueError if
        they are unknown.
        """
        events = accept(self.state, Sight.of(self.view, self.rules, now))
        self._took(Accepted(at=now))
        return events

    def active_tested(self, events: Iterable[Event], now: Stamp) -> tuple[Event, ...]:
        """Record events of an active test: that it runs, or its results. Returns the events for the caller to fold."""
        events = tuple(events)
        self._took(ActiveTested(at=now, events=events))
        return events

    def _took(self, record: Record) -> None:
        for listener in tuple(self.listeners):
            with suppress(Exception):
                listener(record)

    def undecided(self, now: Stamp) -> bool:
        """True while an Xid 79 waits for the readings of PCI bus and NVML that classify it."""
        return undecided(self.state, now)

    def away(self, now: Stamp) -> set[str]:
        """Slots of expected GPUs that NVML does not list although the PCI bus still does, by the last passes."""
        where = presences(self.state, Sight.of(self.view, self.rules, now))
        return {slot for slot, (presence, _) in where.items() if presence is Presence.UNLISTED}

    def inventory(self, now: Stamp) -> list[dict[str, object]]:
        """Return a document for each GPU that is expected or present."""
        sight = Sight.of(self.view, self.rules, now)
        where = presences(self.state, sight)
        rows = []
        for slot in sorted({*self.state.pins, *sight.gpus, *(sight.devices or ())}):
            pin = self.state.pins.get(slot, Pin(slot=slot))
            presence, why = where.get(slot, (Presence.FOREIGN, "not expected here"))
            rows.append(
                {"pci_bus_id": slot, "uuid": pin.uuid, "name": pin.name, "serial": pin.serial, "why": why}
                | {"expected": slot in self.state.pins, "presence": presence.value, "first_seen": pin.first_seen.wall}
            )
        return rows

    def snapshot(self, service: Service, now: Stamp, *, verdict: Verdict, dropped: Mapping[str, int]) -> Snapshot:
        xids = tuple(
            XidCount(slot=key.subject.slot, xid=int(key.detail), count=record.count, last=record.last.wall)
            for key, record in self.state.records.items()
            if key.code == "xid" and record.count
        )
        nvml = self.view.nvml.fresh(now, service.fresh_for)
        return Snapshot(
            service=service,
            sequence=self.sequence,
            made=now,
            observed=self.observed_at,
            verdict=verdict,
            nvml=nvml,
            pods=pods_on_gpus(self.state.pins, self.view, nvml, now),
            jobs=self.view.jobs.fresh(now, self.rules.host_fresh_for),
            dcgm=self.view.dcgm.fresh(now, self.rules.dcgm_fresh_for),
            machine=self._machine(),
            infiniband=self.view.seen(InfinibandFacts).fresh(now, self.rules.host_fresh_for),
            collectors=tuple(self.collectors.values()),
            xids=xids,
            site_failures=tuple(n for n, rule in self.rules.xids.items() if rule.severity == "failure"),
            ready=self.observed_at is not None and verdict.expected is not None and self.view.pci.outcome is not None,
            nvml_passes=self._nvml_passes,
            features=dict(self._of_features(now)),
            errors=self.view.errors,
            dropped=dropped,
            log_gaps=self.log_gaps,
            log_lost=self.log_lost,
            disbelieved={**self.kept_out, UNKNOWN_SLOT: self.disbelieved},
        )

    def _of_features(self, now: Stamp) -> Iterator[tuple[str, object]]:
        for name, feature in _SHOWN.items():
            shown = self._guards[name].call("snapshot", None, feature.shown, self.state, now)
            if shown is not None:
                yield name, shown

    def _machine(self) -> tuple[str, ...]:
        """Machine labels for metrics. Kept from the last pass when the driver stops answering, because `fleet --why`
        needs them most on failing nodes.
        """
        return machine_labels(
            self.rules.machine_type,
            self.view.nvml.facts,
            self.switch,
            kernel=self.kernel,
            infiniband=self.view.seen(InfinibandFacts).facts,
        )

    def note(self, observation: Observation[Any]) -> None:
        old = self.collectors.get(observation.collector) or CollectorStatus(name=observation.collector)
        timed_out = observation.outcome is PassOutcome.TIMED_OUT
        good = observation.outcome is PassOutcome.OBSERVED
        duration = observation.finished.boottime - observation.started.boottime
        if observation.collector == "nvml" and (good or timed_out):
            self._nvml_passes = self._nvml_passes.with_value(duration)
        self.collectors[observation.collector] = CollectorStatus(
            name=observation.collector,
            outcome=observation.outcome,
            duration=duration,
            last_success=observation.finished if good else old.last_success,
            timeouts=old.timeouts + timed_out,
            error=observation.error,
            worker=observation.worker,
        )
