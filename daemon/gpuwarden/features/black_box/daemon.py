"""The black box as a part of the daemon: it records what the engine reads, and freezes at each new failure."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from gpuwarden.base.paths import black_box
from gpuwarden.features.black_box.boxes import Box, Failure
from gpuwarden.features.black_box.options import BlackBoxOptions
from gpuwarden.features.black_box.recording import Recording
from gpuwarden.features.black_box.shown import NAME, Shown
from gpuwarden.health.components import Component, Source
from gpuwarden.health.model import Event, EventKind, Key, Severity
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden.runtime.part import Part, Service
from gpuwarden.runtime.wiring import Site
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.facts import Stamp

FLUSH_EVERY = 30.0
CLOSES_WITHIN = 2.0


def part(site: Site, service: Service, clock: Clock) -> Part:
    return BlackBox(site, service, clock) if site.config.of(BlackBoxOptions).enabled else NoBlackBox()


class NoBlackBox(Part):
    """The part when the black box is off. It still reports its component, as working."""

    def errors(self) -> Mapping[Component, Source]:
        return {Component.BLACK_BOX: lambda _: ""}


class BlackBox(Part):
    """The part that records and freezes. Only `saved` and `close` wait for the disk."""

    def __init__(self, site: Site, service: Service, clock: Clock) -> None:
        self._service = service
        self._clock = clock
        self._boot_id = site.boot_id
        self._folder = black_box(site.config.state.dir)
        self._recording: Recording | None = None
        self._standing: frozenset[Key] = frozenset()
        self._recalled = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._flushing: asyncio.Task[None] | None = None
        self.outputs = (self._appended,)

    def errors(self) -> Mapping[Component, Source]:
        return {Component.BLACK_BOX: self._error}

    def _error(self, now: Stamp) -> str:
        return "" if self._recording is None else self._recording.error(now)

    # --- life

    def run(self) -> None:
        self._begun()
        self._flushing = asyncio.create_task(self._flush())

    async def _flush(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_EVERY)
            self._begun().flush()

    async def saved(self) -> None:
        if self._recording is not None:
            await self._recording.saved()

    async def stop(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()

    async def close(self) -> None:
        if (recording := self._recording) is not None:
            if recording.take in self._service.engine.listeners:
                self._service.engine.listeners.remove(recording.take)
            await recording.close(CLOSES_WITHIN)

    def _begun(self) -> Recording:
        """Return the recording, which begins with the judge's present memory."""
        if self._recording is None:
            self._loop = asyncio.get_running_loop()
            self._recalled = self._service.journal.recalled
            self._recording = Recording(self._folder, self._service.engine, self._frozen)
            self._recording.tend(self._clock())
            self._service.engine.listeners.append(self._recording.take)
        return self._recording

    # --- steps

    def _appended(self, events: Iterable[Event]) -> None:
        """Freeze at the first of these events that begins a failure, unless it is in shadow."""
        for event in events:
            if event.kind == EventKind.RAISED and event.key is not None and self._is_new(event, event.key):
                self._freeze(event.key)
                return

    def _is_new(self, event: Event, key: Key) -> bool:
        is_failure = event.data.get("severity") == Severity.FAILURE
        return is_failure and key not in self._standing and not self._service.engine.shadowed(event)

    def _freeze(self, key: Key) -> None:
        verdict, engine = self._service.verdict, self._service.engine
        failure = Failure(
            finding=str(key),
            at=verdict.at,
            boot_id=self._boot_id,
            health=verdict.health.value,
            findings=tuple(str(finding.key) for finding in verdict.findings),
            standing=frozenset(map(str, self._failures())),
        )
        self._begun().freeze(failure, engine.view.errors)

    def _failures(self) -> frozenset[Key]:
        tracks = self._service.engine.state.tracks.values()
        return frozenset(track.key for track in tracks if track.raised and track.severity is Severity.FAILURE)

    def step(self) -> None:
        self._standing = self._failures()
        if self._recording is not None:
            anew, self._recalled = self._recalled != self._service.journal.recalled, self._service.journal.recalled
            self._recording.tend(self._clock(), anew=anew)

    def _frozen(self, box: Box) -> None:
        """Announce the box in the event loop: this runs in the thread, and the ledger belongs to the loop."""
        with suppress(RuntimeError):  # the loop is closed; the file exists nevertheless
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._announce, box)

    def _announce(self, box: Box) -> None:
        event = Event(kind=EventKind.BOX_FROZEN, at=self._clock(), boot_id=self._boot_id, data=box.document())
        self._service.journal.append([event])
        self._service.request_step()

    def shown(self, snapshot: Snapshot, now: Stamp) -> Snapshot:  # noqa: ARG002 - it has no age
        if (recording := self._recording) is None:
            return snapshot
        ring = recording.ring
        shown = Shown(seconds=ring.seconds, size=ring.size, lost=recording.lost, boxes=ring.boxes)
        return replace(snapshot, features={**snapshot.features, NAME: shown})
