"""The health and field watches of one connection, and one pass over them.

An engine omits problems silently. Lost GPUs disappear from its health checks together with their incidents, so each
pass reads the status of each GPU. An engine reports a node without GPUs as healthy. Watches that another client
disabled report nothing, so each pass compares the mask. Watches only cover entities that were active when they were
set, so they are set again when a GPU appears or returns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.dcgm.engine import ALL_SYSTEMS, GPU, Engine, Identity
from gpuwarden_collectors.dcgm.errors import described
from gpuwarden_collectors.dcgm.facts import (
    DcgmFacts,
    DcgmGpu,
    DcgmGpuStatus,
    DcgmProblem,
    DcgmProblemKind,
    DcgmReadings,
)
from gpuwarden_collectors.dcgm.incidents import Incidents
from gpuwarden_collectors.dcgm.readings import Readings

_USABLE = (DcgmGpuStatus.OK, DcgmGpuStatus.FAKE)


class Watch:
    """The watches of one connection. Every method raises the bindings' DCGMError when the connection is unusable."""

    def __init__(self, engine: Engine, readings: Readings, clock: Clock) -> None:
        self._engine = engine
        self._readings = readings
        self._clock = clock
        self._version = engine.version()
        self._gpu_group = engine.new_group()
        self._groups = [self._gpu_group, *_group_of_others(engine)]
        self._members: set[int] = set()
        self._usable: set[int] = set()
        self._identities: dict[int, Identity] = {}
        self._incidents = Incidents()
        self._watched_since = clock()
        self._errors = [""] * len(self._groups)  # why the watches of each group could not be set
        self._set_watches()

    def read(self) -> DcgmFacts:
        statuses = {gpu: self._engine.status(gpu) for gpu in self._engine.gpus()}
        self._cover(statuses)
        watches, changed = self._verified()
        responses, errors = self._checked()
        covered = self._members & self._usable
        readings, node = self._readings.read(covered)
        gpus = tuple(self._gpu(gpu, status, readings) for gpu, status in statuses.items())
        slots = {gpu.id: gpu.slot for gpu in gpus}
        return DcgmFacts(
            engine_version=self._version,
            address=self._engine.address,
            gpus=gpus,
            incidents=self._incidents.of(responses, slots, self._clock(), covered),
            overall=max(response.overallHealth for response in responses),
            watches=watches,
            watched_since=self._watched_since,
            profiling_error=self._readings.profiling_error,
            problems=(*changed, *errors, *self._problems(gpus)),
            **node,
        )

    def _cover(self, statuses: dict[int, DcgmGpuStatus]) -> None:
        """Adds GPUs that are new or have returned, and sets the watches again."""
        usable = {gpu for gpu, status in statuses.items() if status in _USABLE}
        fresh, self._usable = usable - self._usable, usable
        for gpu in statuses:
            if gpu in fresh or not self._identities.get(gpu, Identity()).slot:
                self._identities[gpu] = self._engine.identity(gpu)
        self._members |= {gpu for gpu in fresh - self._members if self._engine.add(self._gpu_group, (GPU, gpu))}
        if fresh or self._readings.error:
            self._readings.watch(self._gpu_group)
        if fresh or self._errors[0]:
            self._set_watches()

    def _set_watches(self) -> None:
        self._errors = [self._engine.refusal(self._engine.set_watches, group) for group in self._groups]
        self._watched_since = self._clock()

    def _verified(self) -> tuple[int, list[DcgmProblem]]:
        """Reads the mask of the GPUs' watches, and sets the watches again if another client changed them."""
        masks = [self._engine.watches(group) for group in self._groups]
        changed = [mask for mask, error in zip(masks, self._errors, strict=True) if not error and mask != ALL_SYSTEMS]
        if not changed:
            return masks[0], []
        self._set_watches()
        text = f"another client of the engine changed our health watches to {changed[0]:#x}; they were set again"
        return masks[0], [DcgmProblem(kind=DcgmProblemKind.WATCHES_CHANGED, text=text)]

    def _checked(self) -> tuple[list[Any], list[DcgmProblem]]:
        responses, problems = [], []
        for group in self._groups:
            response, error = self._engine.check(group)
            responses.append(response)
            if error is not None:
                text = f"the health check failed in part: {described(error)}"
                problems.append(DcgmProblem(kind=DcgmProblemKind.CHECK_INCOMPLETE, text=text))
        return responses, problems

    def _gpu(self, gpu: int, status: DcgmGpuStatus, readings: dict[int, DcgmReadings]) -> DcgmGpu:
        identity = self._identities[gpu]
        return DcgmGpu(
            id=gpu,
            slot=identity.slot,
            uuid=identity.uuid,
            name=identity.name,
            status=status,
            watched=gpu in self._members and not self._errors[0],
            readings=readings.get(gpu, DcgmReadings()),
        )

    def _problems(self, gpus: tuple[DcgmGpu, ...]) -> Iterator[DcgmProblem]:
        usable = [gpu for gpu in gpus if gpu.status in _USABLE]
        if not gpus:
            yield DcgmProblem(
                kind=DcgmProblemKind.NO_GPUS,
                text="the engine lists no GPU, and reports that as healthy; if it was started before the driver was loaded, "
                "restart nvidia-dcgm.service",
            )
        if unwatched := [gpu.slot or str(gpu.id) for gpu in usable if not gpu.watched]:
            why = self._errors[0] or "the engine does not take them into a group"
            text = f"the health of {', '.join(unwatched)} is not watched: {why}"
            yield DcgmProblem(kind=DcgmProblemKind.NOT_WATCHED, text=text)
        for error in filter(None, self._errors[1:]):
            text = f"the health of switches, CPUs and adapters is not watched: {error}"
            yield DcgmProblem(kind=DcgmProblemKind.NOT_WATCHED, text=text)
        if self._readings.error:
            text = f"not all fields can be watched: {self._readings.error}"
            yield DcgmProblem(kind=DcgmProblemKind.FIELDS_UNREADABLE, text=text)
        elif (watched := [gpu for gpu in usable if gpu.watched]) and not any(map(_readable, watched)):
            yield DcgmProblem(
                kind=DcgmProblemKind.BLIND,
                text="the engine reads no GPU: after an Xid 119 it does not query the driver until it is restarted, "
                "and reports the GPUs as healthy meanwhile",
            )


def _readable(gpu: DcgmGpu) -> bool:
    return gpu.readings.temperature is not None


def _group_of_others(engine: Engine) -> Iterator[Any]:
    """Yields a group of the switches, CPUs and adapters that DCGM watches, if any exist."""
    others = engine.others()
    if others:
        group = engine.new_group()
        for entity in others:
            engine.add(group, entity)
        yield group
