"""Requests an archive at each new failure, before anything is repaired, and reports the result in an event.

Failures within a minute get one archive, which names all of them. While one is being made, no other is requested. A
service outside makes it (`service.py`), so that nothing here waits for a hung driver.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Sequence
from contextlib import suppress

from gpuwarden.base.log import get_logger
from gpuwarden.base.services import NoAnswer
from gpuwarden.engine.journal import Step
from gpuwarden.features.bundle.client import FINDINGS_MOST, ask
from gpuwarden.features.bundle.memory import TEXT_MOST, Answers, BundleFailed, BundleMade, answered, answers_of
from gpuwarden.features.bundle.options import BundleOptions
from gpuwarden.health.model import Finding, Severity
from gpuwarden.runtime.part import Part, Service
from gpuwarden.runtime.wiring import Site
from gpuwarden_collectors.base import Clock

TOGETHER = 60.0
"""Seconds from the first failure on in which others are included in its archive."""
ANSWERED_WITHIN = 900.0
"""Seconds after which a requested archive counts as failed."""
_LEAVES_WITHIN = 1.0
NOT_FOUND = "the service that makes archives has not found it in the ledger"

Failing = tuple[str, float]
"""Id of a failure, and wall time since which it exists."""

log = get_logger()


def unanswered(findings: Iterable[Finding], answers: Answers, asked: Container[Failing]) -> list[Failing]:
    """Return the failures in force that have had no archive, made or failed, since they began.

    They include findings that were warnings for long, or that waited for another archive: repairs wait for the answer.
    """
    failing = []
    for finding in findings:
        name, since = str(finding.key), finding.first_seen.wall
        answer = answers.get(name)
        counts = finding.severity is Severity.FAILURE and finding.confirmed and not finding.shadow
        if counts and (name, since) not in asked and (answer is None or not answer.is_for(since)):
            failing.append((name, since))
    return failing[:FINDINGS_MOST]


class Bundles(Part):
    """Requests archives, one at a time."""

    def __init__(self, site: Site, service: Service, clock: Clock) -> None:
        self._options = site.config.of(BundleOptions)
        self._boot_id, self._service, self._clock = site.boot_id, service, clock
        self._since: float | None = None
        self._task: asyncio.Task[None] | None = None
        self._asked: frozenset[Failing] = frozenset()

    def step(self) -> None:
        if self._task is not None and not self._task.done():
            return
        now = self._clock()
        findings = self._service.verdict.findings
        self._asked &= {(str(finding.key), finding.first_seen.wall) for finding in findings}
        wanted = unanswered(findings, answers_of(self._service.engine.state), self._asked)
        if not wanted:
            self._since = None
            return
        self._since = now.boottime if self._since is None else self._since
        if now.boottime - self._since >= TOGETHER:
            self._since = None
            self._asked |= frozenset(wanted)
            self._task = asyncio.create_task(self._made(wanted))

    async def _made(self, failing: Sequence[Failing]) -> None:
        findings = [name for name, _ in failing]
        log.info("archive for the vendor begins", findings=", ".join(findings))
        try:
            made = await ask(self._options.socket, findings, ANSWERED_WITHIN)
        except NoAnswer as error:
            outcomes: list[BundleMade | BundleFailed] = [
                BundleFailed(finding=finding, why=str(error)[:TEXT_MOST], since=since) for finding, since in failing
            ]
        else:
            missing = ", ".join(made.missing)[:TEXT_MOST]
            outcomes = [
                BundleFailed(finding=finding, why=NOT_FOUND, since=since)
                if finding in made.not_found
                else BundleMade(finding=finding, file=made.file, missing=missing, since=since)
                for finding, since in failing
            ]
        at = self._clock()
        self._service.journal.append([answered(outcome, at, self._boot_id) for outcome in outcomes], step=Step.SOON)

    async def stop(self) -> None:
        """Stop waiting. The service continues, and a restarted daemon requests the archive again."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait((self._task,), timeout=_LEAVES_WITHIN)


def part(site: Site, service: Service, clock: Clock) -> Part | None:
    """Return the part; None if no archive is to be made at a failure."""
    if not site.config.of(BundleOptions).on_failure or site.simulation is not None:
        return None
    return Bundles(site, service, clock)
