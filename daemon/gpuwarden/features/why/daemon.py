"""Why jobs ended, as a part of the daemon: answers questions on both sockets."""

from __future__ import annotations

from collections.abc import Mapping

from gpuwarden.features.why.answering import Answering
from gpuwarden.features.why.counts import Counts
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden.publish.sockets.control import Verb
from gpuwarden.publish.sockets.jobs import JobVerb
from gpuwarden.runtime.part import Part, Service
from gpuwarden.runtime.wiring import Site
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.facts import Stamp


class Why(Part):
    """Publishes the jobs that the judge follows, and answers questions about them."""

    def __init__(self, site: Site, service: Service, clock: Clock) -> None:
        self._counts = Counts()
        self.outputs = (self._counts.appended,)
        self._answering = Answering(
            lambda: service.holder.snapshot, ledger=site.ledger, proc=site.config.paths.proc, clock=clock
        )

    def verbs(self) -> Mapping[str, Verb]:
        return {"why": self._answering.to_operator}

    def job_verbs(self) -> Mapping[str, JobVerb]:
        return {"why": self._answering.to_job}

    def shown(self, snapshot: Snapshot, now: Stamp) -> Snapshot:  # noqa: ARG002 - counts have no age
        return self._counts.shown(snapshot)

    def publish(self, snapshot: Snapshot) -> None:
        self._answering.follow(snapshot)


def part(site: Site, service: Service, clock: Clock) -> Part:
    return Why(site, service, clock)
