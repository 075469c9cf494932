"""Active tests as a part of every daemon: it takes their leases and results through the control socket."""

from __future__ import annotations

from collections.abc import Mapping

from gpuwarden.features.active_test.leases import Leases
from gpuwarden.features.active_test.options import ActiveTestOptions
from gpuwarden.publish.sockets.control import Verb
from gpuwarden.runtime.part import Part, Service
from gpuwarden.runtime.wiring import Site
from gpuwarden_collectors.base import Clock


class ActiveTests(Part):
    """The verbs for tests. Every daemon has this part, because `gpuwarden test` by hand needs no key."""

    def __init__(self, service: Service, clock: Clock) -> None:
        self._leases = Leases(service, clock)
        self.outputs = (self._leases.appended,)

    def verbs(self) -> Mapping[str, Verb]:
        return self._leases.table()

    def reloaded(self) -> None:
        self._leases.reloaded()

    async def stop(self) -> None:
        self._leases.stop()


def part(site: Site, service: Service, clock: Clock) -> Part:
    test = site.config.of(ActiveTestOptions)
    always = test.enabled and test.return_gate
    if not (always or site.config.repairs) or site.simulation is not None:
        return ActiveTests(service, clock)
    from gpuwarden.features.active_test.gate.part import gated  # noqa: PLC0415 - most daemons have no gate, and their memory none of it

    return gated(site, service, clock, always=always)
