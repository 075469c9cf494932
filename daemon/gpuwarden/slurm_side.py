"""What the daemon does for Slurm's scripts and jobs beside draining: settings for the hooks, the job mapping, the hook's word."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from gpuwarden.actuators.base import Actuator
from gpuwarden.actuators.hook_gate import HookGate
from gpuwarden.health.model import Event
from gpuwarden.publish.hook_settings import own_command, settings_text, write_settings
from gpuwarden.publish.job_mapping import JobMapping
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden.schedule import detached
from gpuwarden.silent_note import taken
from gpuwarden.site import Site
from gpuwarden_collectors.base import Clock

SETTINGS_WRITTEN_WITHIN = 2.0
LOOKED_EVERY = 10.0


class SlurmSide:
    """`config_file`: the file that the configuration was read from, where it is not the usual one."""

    def __init__(
        self, site: Site, actuators: Iterable[Actuator], clock: Clock, config_file: Path | None = None
    ) -> None:
        self._site = site
        self._options = site.config.slurm
        self._gates = [actuator for actuator in actuators if isinstance(actuator, HookGate)]
        self._config_file = config_file
        folder = self._options.job_mapping_dir
        wanted = folder is not None and self._options.enabled and self._options.jobs and site.simulation is None
        self._mapping = JobMapping(folder, lambda: clock().boottime) if folder is not None and wanted else None
        self._error = ""
        self._clock = clock
        self._looked = float("-inf")

    async def start(self) -> None:
        """The scripts know the configuration from now on; with simulated GPUs they are told nothing."""
        if self._site.simulation is not None:
            return
        text = settings_text(
            self._options, enabled=self._options.enabled, mode=self._site.config.mode, config=self._config_file,
            command=own_command(),
        )  # fmt: skip
        folder = self._site.config.state.dir
        writing = detached("slurm-hooks", lambda: write_settings(folder, text))
        await asyncio.wait((writing,), timeout=SETTINGS_WRITTEN_WITHIN)
        if not writing.done():
            self._error = f"cannot write {folder}: no answer; Slurm's scripts go by what stood there before"
        elif (error := writing.exception()) is not None:
            self._error = f"cannot write {folder}: {error}; Slurm's scripts go by what stood there before"

    def publish(self, snapshot: Snapshot) -> None:
        if self._mapping is not None:
            self._mapping.publish(snapshot)

    def hook_asked(self) -> bool:
        """Whether anything waits for the health check."""
        for gate in self._gates:
            gate.asked()
        return bool(self._gates)

    async def found(self) -> tuple[Event, ...]:
        """A drain that a health check made while this daemon hung. Looks once in `LOOKED_EVERY`."""
        now = self._clock().boottime
        if self._options.on_stale != "drain" or not self._options.enabled or now - self._looked < LOOKED_EVERY:
            return ()
        self._looked = now
        reading = detached("silent", lambda: taken(self._site.config.state.dir, self._site.boot_id, self._clock))
        await asyncio.wait((reading,), timeout=SETTINGS_WRITTEN_WITHIN)
        return reading.result() if reading.done() and reading.exception() is None else ()

    def trouble(self) -> str:
        """What of this cannot be done; empty if all can. The settings matter only where the scripts are in use."""
        settings = self._error if self._options.enabled else ""
        return "; ".join(filter(None, (settings, "" if self._mapping is None else self._mapping.trouble())))

    async def stop(self) -> None:
        if self._mapping is not None:
            await asyncio.wait(
                (detached("job-mapping", lambda: self._mapping and self._mapping.close(1.0)),), timeout=1.5
            )
