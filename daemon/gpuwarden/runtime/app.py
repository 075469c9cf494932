"""The daemon: startup, loop, shutdown. It connects the parts and makes no decisions. `serve.py` runs it.

Observations and host events go to the engine, and each requests a step, whose events go to the journal and whose
verdict goes into the published snapshot. Events in a burst share steps: at most one in `STEP_SPACING`, the first at
once.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from gpuwarden.actuators.detail import detail
from gpuwarden.base.log import LogOutput, get_logger
from gpuwarden.base.process_usage import process_usage
from gpuwarden.base.sd_notify import ServiceManager
from gpuwarden.base.threads import detached
from gpuwarden.collect.collectors import Readers
from gpuwarden.collect.termination_sources import NoticeSources
from gpuwarden.config.model import Config
from gpuwarden.config.sources import in_pod
from gpuwarden.control.handlers import Verbs
from gpuwarden.engine.enforcement import Enforcement
from gpuwarden.engine.engine import Engine
from gpuwarden.engine.faults import Faults
from gpuwarden.engine.journal import Journal, Step
from gpuwarden.engine.log_lines import EventLines
from gpuwarden.engine.reload import ReloadError, in_force, reloaded
from gpuwarden.features import FEATURES, parts
from gpuwarden.health.components import Component, ComponentErrors
from gpuwarden.health.model import Event, EventKind, Health, Verdict
from gpuwarden.ledger.ledger import Ledger
from gpuwarden.ledger.rows import Memory
from gpuwarden.policy.situation import Situation
from gpuwarden.publish.files.verdict import VerdictFile
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden.publish.sockets.control import Control
from gpuwarden.publish.sockets.jobs import NAME as JOB_SOCKET
from gpuwarden.publish.web.pages import Web
from gpuwarden.runtime.jobs import Jobs
from gpuwarden.runtime.leaf_switch import LeafSwitch
from gpuwarden.runtime.parts import Parts
from gpuwarden.runtime.systemd import Systemd
from gpuwarden.runtime.wiring import Site
from gpuwarden_collectors.base import Clock, Observation, host_clock
from gpuwarden_collectors.event_facts import HostEvent
from gpuwarden_collectors.facts import Stamp

STEP_SPACING = 0.05
LEDGER_OPENS_WITHIN = 2.0
"""Seconds to wait for the ledger before judging: a node that was bad before a restart must not be reported healthy."""
LEDGER_CLOSES_WITHIN = 5.0
ENFORCEMENT_STOPS_WITHIN = 2.0
CONFIGURATION_READ_WITHIN = 5.0

log = get_logger()


class Daemon:
    """One daemon on one host. `start` returns when it serves; it then runs by itself until `stop`."""

    _reloading: asyncio.Task[None] | None = None
    _reload_wanted = False
    _judging = False
    _ticker: asyncio.Task[None] | None = None
    _step_timer: asyncio.TimerHandle | None = None
    _stepped = float("-inf")

    def __init__(
        self,
        site: Site,
        output: LogOutput,
        load: Callable[[], Config],
        *,
        manager: ServiceManager,
        clock: Clock = host_clock,
    ) -> None:
        self._site = site
        self._load = load
        self._config = site.config
        self._reloads = asyncio.Lock()
        self._output = output
        self._clock = clock
        self._service = site.service(clock())
        self._faults = Faults(FEATURES)
        self.engine = Engine(site.boot_id, site.rules, faults=self._faults)
        self.engine.kernel = os.uname().release
        self.verdict = Verdict(at=clock(), health=Health.UNKNOWN, reasons=("starting",), unknown=("starting",))
        self.readers = Readers(site.sources, site.boot_id, self._ingest, clock)
        self.manager = Systemd(manager, self.readers.paces, site.sources.nvml.interval)
        self.ledger = Ledger(site.ledger, machine=site.machine, boot_id=site.boot_id, clock=clock)
        self.actuators = site.actuators(clock, lambda: detail(self.verdict))
        self._parts = Parts(parts("daemon"), site, self, clock, self._faults)
        self._switch = LeafSwitch(site.config.publish.switch, site.slurm)
        self._lines = EventLines(self.engine.shadowed)
        self._notifications = site.notifications()
        self.journal = Journal(self.ledger, request_step=self.request_step, clock=clock)
        self.enforcement = Enforcement(
            self.actuators,
            site.enforcement,
            append=self.journal.append,
            changed=self.request_step,
            committed=self.ledger.commit,
            boot_id=site.boot_id,
            clock=clock,
            requirements=self._parts.requirements,
        )
        self._notice_sources = NoticeSources(
            site.notice_sources(clock), self.enforcement.announced, boot_id=site.boot_id, clock=clock
        )
        self._jobs = Jobs(site.config, self, self._parts.job_verbs(), clock, passed=manager.sockets.get(JOB_SOCKET))
        self.journal.projections = (self.engine, self.enforcement, *self._parts.projections)
        self.journal.recorded = self._parts.recorded
        self._verdict_file = VerdictFile(site.config.run.dir, clock)
        self._away: set[str] = set()
        self.holder = site.holder(self._snapshot(clock()), clock)
        verbs = Verbs(self, site.ledger, site.simulation, clock)
        self.journal.outputs = (self._lines.write, self._notify, *self._parts.outputs)
        self._web = Web(
            self.holder,
            verbs.events_since,
            clock=clock,
            notices=self._jobs.notices,
            config=site.config.publish.web_config,
        )
        table = {**verbs.table(), **self._parts.verbs()}
        self._control = Control(site.config.run.dir, table, group=site.config.control.group or None)
        self._errors = self._component_errors()

    def _component_errors(self) -> ComponentErrors:
        """Map each component to the part that reports why it does not work."""
        enforcement = self.enforcement

        def kernel_log(now: Stamp) -> str:
            seen = self.readers.kernel_log_observation(now)
            return "" if seen is None else seen.error

        return ComponentErrors(
            {
                Component.LEDGER: self.ledger.error,
                Component.KERNEL_LOG: kernel_log,
                Component.JOB_LABELS: lambda _: self.holder.job_labels_error(),
                Component.VERDICT: self._verdict_file.error,
                Component.NOTICE: self._jobs.error,
                Component.CONTROL: self._control.error,
                Component.ACTUATOR: lambda _: enforcement.error(),
                Component.ACTUATOR_AWAY: lambda _: enforcement.away(),
                Component.EXCLUSION: lambda _: enforcement.stuck(),
                Component.NOTIFY: lambda _: self._notifications.error(),
                Component.WEB: self._web.error,
                Component.PORT: lambda _: self._web.port_error(),
                Component.CONFIG_FAULTY: lambda _: self._config.fault,
                Component.FEATURE: self._faults.error,
            },
            *self._parts.errors(),
        )

    async def start(self) -> None:
        """Raises ControlError, and ListenError but under systemd or kubelet, if another process is in the way, OSError where simulated GPUs have no directory.

        A run directory that cannot be written is reported by those that need it: heartbeat and metrics do not.
        """
        self.manager.start()
        with suppress(OSError):
            self._site.config.run.dir.mkdir(mode=0o755, parents=True, exist_ok=True)
        if self._site.simulation is not None:
            self._site.simulation.prepare()
        repairs = self._site.config.repairs
        if repairs:  # a repair step of an earlier daemon may still forbid opening a GPU, as the ledger shows
            await self.readers.hold_gpu_passes()
        self.readers.run(self._observed)  # first, since the driver is slow to initialise
        listen = self._site.config.publish.listen
        await self._web.start(listen.host, listen.port, or_later=self.manager.present or in_pod())
        await self._control.start()
        await self._jobs.start()
        memory = await self.ledger.open(LEDGER_OPENS_WITHIN)
        if memory is not None:
            self._recall(memory)
        position = None if memory is None else memory.position
        await self.readers.bus_read()  # and then the kernel log, before remembered findings are judged
        self.readers.follow_kernel_log(position, first=position is None)
        self._judging = True
        self._step()
        about = self._site.about()
        self.journal.append([Event(kind=EventKind.STARTED, at=self._clock(), boot_id=self._site.boot_id, data=about)])
        self._ticker = asyncio.create_task(self._tick())
        self.enforcement.run()
        self._notifications.run(lambda: self.journal.checkpoint(self._clock()))
        self._switch.run()
        self._parts.run()
        if repairs:  # after the tasks of `run` have had a turn to keep the reader off the GPUs
            asyncio.get_running_loop().call_soon(self.readers.let_go)
        self._notice_sources.run()
        self.manager.run()
        log.info("serving", listen=self._web.addresses, **about)

    async def stop(self) -> None:
        """Stop all parts, each with its own deadline, and write all events to the ledger."""
        self.manager.stop()
        if self._ticker is not None:
            self._ticker.cancel()
        await self._control.stop()
        await self._notice_sources.stop()
        await self._switch.stop()
        if self._step_timer is not None:
            self._step()  # so that a notice that has just arrived still reaches the jobs
        await self._jobs.stop()
        await self._parts.stop()
        await self.enforcement.stop(ENFORCEMENT_STOPS_WITHIN)
        await self._notifications.stop(ENFORCEMENT_STOPS_WITHIN)
        await self._web.stop()
        await self.readers.close()
        await self._site.close()
        if self._step_timer is not None:
            self._step_timer.cancel()
            self._step()
        if not await self.ledger.close(LEDGER_CLOSES_WITHIN):
            log.error("stopped with unwritten ledger entries", waiting=self.ledger.unwritten)
        self._verdict_file.close(timeout=1.0)
        self._jobs.close(timeout=1.0)
        await self._parts.close()
        log.info("stopped")
        await self._output.flush(timeout=1.0)

    # --- input

    def _observed(self, observation: Observation[Any]) -> None:
        differs = self.engine.observed(observation)
        self.manager.observed(observation)
        if observation.collector == "nvml":
            self._step()
            if self._somebody_is_away():
                self.readers.read_bus.set()
        elif differs or self.engine.undecided(self._clock()):
            self.request_step()

    def _ingest(self, events: Iterable[HostEvent]) -> None:
        self.engine.ingest(events, self._clock())
        self.request_step()

    def _somebody_is_away(self) -> bool:
        """Return True if NVML newly misses a GPU: the PCI bus is then read at once instead of at its next interval."""
        away = self.engine.away(self._clock())
        newly_away, self._away = away - self._away, away
        return bool(newly_away)

    async def reload(self) -> str:
        """Apply changes of the configuration, and return them as text. Raises ReloadError, and then nothing has
        changed.

        Reloads run one after another, so that the configuration that was read last is in force.
        """
        async with self._reloads:
            reading = detached("configuration", self._load)
            await asyncio.wait((reading,), timeout=CONFIGURATION_READ_WITHIN)
            if not reading.done():
                raise ReloadError(f"the configuration could not be read within {CONFIGURATION_READ_WITHIN:g} s")
            loaded = reading.result()
            changes = reloaded(self.engine.rules, self._config, loaded)
            self._config, self.engine.rules = in_force(self._config, loaded), changes.rules
        self.enforcement.adopt(replace(self._site, config=self._config).enforcement)
        self._parts.reloaded()
        log.info("configuration reloaded", taken_over=changes.taken, waiting_for_a_restart=changes.waiting)
        self._step()
        return str(changes)

    def reload_soon(self) -> None:
        """Reload in the background, for SIGHUP; errors are logged. Requests during a reload cause one more reload after
        it.
        """

        async def work() -> None:
            while self._reload_wanted:
                self._reload_wanted = False
                try:
                    await self.reload()
                except ReloadError as error:
                    log.error("configuration not reloaded", reason=str(error))  # noqa: TRY400 - no traceback needed

        self._reload_wanted = True
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.create_task(work())

    def ends_in(self) -> float:
        """Called on SIGTERM: seconds until the container or the machine ends; 0 if SIGTERM is not a notice."""
        return self._notice_sources.ends_in()

    def jobs_settled(self) -> bool:
        """Return True if no job has to be signalled, and no acknowledgement is awaited."""
        return self._parts.settled()

    async def jobs_signalled(self) -> str:
        return await self._parts.announced()

    async def saved(self) -> None:
        """Return once all parts have saved, or failed to save, what a repair step may destroy."""
        await self._parts.saved()

    # --- steps

    def request_step(self, when: Step = Step.SOON) -> None:
        if when is Step.NOW:
            self._step()
            return
        loop = asyncio.get_running_loop()
        at = loop.time() if when is Step.NEXT else max(loop.time(), self._stepped + STEP_SPACING)
        if self._step_timer is not None and self._step_timer.when() > at:
            self._step_timer.cancel()
            self._step_timer = None
        if self._step_timer is None:
            self._step_timer = loop.call_at(at, self._step)

    def _step(self) -> None:
        if self._step_timer is not None:
            self._step_timer.cancel()
            self._step_timer = None
        if not self._judging:
            return
        self._stepped = asyncio.get_running_loop().time()
        try:
            self._judge_and_publish()
        except Exception:  # a bug must end neither the passes nor the daemon; the published snapshot gets old
            log.exception("step failed: until one succeeds the node becomes unknown")

    def _judge_and_publish(self) -> None:
        if (memory := self.ledger.recall()) is not None:
            self._recall(memory, late=True)
        now = self._clock()
        self.engine.of_machine_type(self._notice_sources.machine_type)
        self.engine.switch = self._switch.known
        self.engine.set_errors(self._errors.at(now), now)
        self.engine.log_read(self.readers.log_read)
        reached = self.readers.log_position  # everything up to here is in the engine, and is judged in this step
        step = self.engine.step(now)
        self.verdict = step.verdict
        self.journal.append(step.events, by=self.engine, position=reached)
        situation = Situation(
            verdict=step.verdict,
            sequence=self.engine.sequence,
            ready=self.holder.snapshot.ready,
            boot_id=self._site.boot_id,
            instance=self._site.instance,
            remembered=self.journal.recalled,
        )
        situation = self._parts.seen(situation, now)
        self.journal.append(self.enforcement.step(situation, now), by=self.enforcement)
        self._parts.step()
        self.journal.tend()
        self.enforcement.carry_out()
        self.holder.show(self._snapshot(now))
        self._verdict_file.publish(self.holder.snapshot)
        self._jobs.publish(self.holder.snapshot)
        self._parts.publish(self.holder.snapshot)
        self.manager.published(self.holder.snapshot)

    def _snapshot(self, now: Stamp) -> Snapshot:
        kernel_log = self.readers.kernel_log_observation(now)
        if kernel_log is not None:
            self.engine.note(kernel_log)
        dropped = {
            "log": self._output.dropped,
            "ledger": self.ledger.dropped,
            "events": self.engine.discarded + self.readers.events_dropped,
        }
        self.engine.kept_out = self.readers.disbelieved
        snapshot = self.engine.snapshot(self._service, now, verdict=self.verdict, dropped=dropped)
        snapshot = replace(
            snapshot,
            enforced=self.enforcement.shown(),
            notice_sources=self._notice_sources.shown(now),
            receivers=self._notifications.shown(),
            process=process_usage(),
            feature_errors=dict(self._faults.counts),
        )
        return self._parts.shown(snapshot, now)

    async def _tick(self) -> None:
        """Make a step at least once per interval, and when the snapshot gets too old, so that silence becomes visible,
        too.
        """
        interval = self._site.sources.nvml.interval
        while True:
            left = self.holder.snapshot.lasts(self._clock())
            await asyncio.sleep(min(interval, left) if left > 0 else interval)
            waited = asyncio.get_running_loop().time() - self._stepped
            if waited >= interval or self.holder.snapshot.lasts(self._clock()) <= 0:
                self._step()

    def _notify(self, events: Iterable[Event]) -> None:
        self._notifications.send(events, self.engine.state, self.engine.shadowed, self.enforcement.state.overridden)

    def _recall(self, memory: Memory, *, late: bool = False) -> None:
        """Restore the state from the ledger, and apply the events since this start on top of it."""
        self._lines.recalled(memory)
        self.journal.recall(memory, late=late)
        self._notice_sources.remember(self.enforcement.state.notices.values())
