"""Kubernetes as a part of the daemon, apart from exclusion: keeps the node's conditions, in mode enforce."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpuwarden.features.kubernetes.options import KubernetesOptions
from gpuwarden.health.components import Component, Source
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden.runtime.part import Part, Service
from gpuwarden.runtime.wiring import Site
from gpuwarden_collectors.base import Clock

if TYPE_CHECKING:  # loaded only where it is enabled
    from gpuwarden.features.kubernetes.condition import ConditionWriter


class Conditions(Part):
    def __init__(self, writers: list[ConditionWriter]) -> None:
        self._writers = writers

    def run(self) -> None:
        for writer in self._writers:
            writer.run()

    def publish(self, snapshot: Snapshot) -> None:
        for writer in self._writers:
            writer.publish(snapshot)

    def errors(self) -> Mapping[Component, Source]:
        return {Component.ACTUATOR: lambda _: "; ".join(writer.error for writer in self._writers if writer.error)}

    async def stop(self) -> None:
        for writer in self._writers:
            await writer.stop()


def part(site: Site, service: Service, clock: Clock) -> Conditions | None:
    options = site.config.of(KubernetesOptions)
    if not options.enabled or site.config.mode != "enforce":
        return None
    from gpuwarden.features.kubernetes.condition import writers  # noqa: PLC0415 - 0.3 MiB, only where it is enabled

    return Conditions(writers(service.actuators, options, clock))
