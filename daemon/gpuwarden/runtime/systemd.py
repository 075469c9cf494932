"""Messages to systemd: ready, status, watchdog, stopping. Times are of the event loop's clock.

*Ready* is not *healthy*: the listeners are up, and every collector has answered, failed or missed its first deadline,
at most `READY_WITHIN` after the start. A driver that hangs while it initialises therefore leads to a verdict, not to a
service that systemd restarts again and again.

The watchdog is notified while passes of every collector, with any outcome, arrive and are judged and published. A pass
that failed or timed out counts: it leads to a finding, and a restart would not repair its cause. A restart may repair a
collector that reports nothing any more, and a judge that fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

from gpuwarden.base.log import get_logger
from gpuwarden.base.sd_notify import ServiceManager
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden_collectors.base import Observation, PassOutcome
from gpuwarden_collectors.facts import NvmlFacts, NvmlProblem

READY_WITHIN = 15.0
POLL = 0.05
"""Seconds between two checks for readiness."""
SLACK = 20.0
"""Seconds by which a pass may be late on a loaded machine before it is overdue."""
SIGNS_MISSED = 4
"""Watchdog notifications per timeout: this many may get lost before systemd kills the daemon."""
AGAIN_AFTER = 1.0
"""Seconds between two checks while a notification is withheld. After a pause of the process or of the machine every
pass is overdue; once they arrive again, systemd must learn that before its timeout."""
REASONS_MOST = 300
"""Most characters of the reasons in the line for `systemctl status`."""
_PUBLISHED = "what is published"

log = get_logger()


def ready(collectors: Collection[str], heard: Collection[str], waited: float) -> bool:
    """True if every collector had its first pass, or READY_WITHIN has passed.

    `heard`: collectors with a first pass; `waited`: seconds since the start.
    """
    return waited >= READY_WITHIN or set(collectors) <= set(heard)


def silent(paces: Mapping[str, float], heard: Mapping[str, float], now: float) -> tuple[str, ...]:
    """The collectors whose next pass is overdue. `paces`: most seconds between two passes. `heard`: when the last one
    arrived.
    """
    return tuple(name for name, pace in paces.items() if now - heard[name] > pace + SLACK)


def status(snapshot: Snapshot) -> str:
    """The verdict in one line, for `systemctl status`."""
    verdict = snapshot.verdict
    expected = "?" if verdict.expected is None else verdict.expected
    reasons = f": {', '.join(verdict.reasons)}" if verdict.reasons else ""
    return f"{verdict.health.value.upper()}{reasons[:REASONS_MOST]}; {verdict.present} of {expected} GPUs"


def restart_helps(began_without_driver: bool, observation: Observation[Any]) -> bool:
    """True if the driver was loaded after the start and may not be opened: systemd resolves a unit's devices when it
    starts it.
    """
    facts = observation.facts
    refused = isinstance(facts, NvmlFacts) and facts.problem is NvmlProblem.NO_PERMISSION
    return began_without_driver and refused


def without_driver(observation: Observation[Any]) -> bool:
    facts = observation.facts
    if observation.outcome is PassOutcome.ABSENT:
        return True
    return isinstance(facts, NvmlFacts) and facts.problem is NvmlProblem.DRIVER_NOT_LOADED


class Systemd:
    """Reports readiness and the watchdog to systemd. Without a manager it does nothing.

    `paces`: by running collector, the most seconds between two passes; `pace`: the same for publishing. `restart` is
    set when a new start would allow the daemon to open the GPUs.
    """

    def __init__(self, manager: ServiceManager, paces: Mapping[str, float], pace: float) -> None:
        self._manager = manager
        self._paces = {**paces, _PUBLISHED: pace}
        self._started = 0.0
        self._heard: dict[str, float] = {}
        self._overdue: tuple[str, ...] = ()
        self._status = ""
        self._began_without_driver: bool | None = None
        self._task: asyncio.Task[None] | None = None
        self.restart = asyncio.Event()

    @property
    def present(self) -> bool:
        return bool(self._manager.address)

    def start(self) -> None:
        """Record the time of the start, from which READY_WITHIN counts."""
        self._started = asyncio.get_running_loop().time()

    def run(self) -> None:
        """Start the messages to systemd. Called once the listeners are up."""
        if self._manager.address:
            self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._manager.send("STOPPING=1", "STATUS=stopping")

    def observed(self, observation: Observation[Any]) -> None:
        self._heard[observation.collector] = asyncio.get_running_loop().time()
        if observation.collector != "nvml" or not self._manager.address:
            return
        if self._began_without_driver is None and observation.outcome is not PassOutcome.TIMED_OUT:
            self._began_without_driver = without_driver(observation)
        if restart_helps(bool(self._began_without_driver), observation):
            self.restart.set()

    def published(self, snapshot: Snapshot) -> None:
        self._heard[_PUBLISHED] = asyncio.get_running_loop().time()
        if self._manager.address and (text := status(snapshot)) != self._status:
            self._status = text
            self._manager.send(f"STATUS={text}")

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while not ready(self._paces, self._heard, loop.time() - self._started):  # noqa: ASYNC110 - time is in it
            await asyncio.sleep(POLL)
        missing = [name for name in self._paces if name not in self._heard]
        log.info("ready", seconds=round(loop.time() - self._started, 3), not_heard_of_yet=missing)
        self._manager.send("READY=1")
        while self._manager.watchdog:
            self._sign_of_life(loop.time())
            await asyncio.sleep(AGAIN_AFTER if self._overdue else self._manager.watchdog / SIGNS_MISSED)

    def _sign_of_life(self, now: float) -> None:
        overdue = silent(self._paces, {name: self._heard.get(name, self._started) for name in self._paces}, now)
        if overdue and overdue != self._overdue:
            log.error(
                "watchdog notification withheld; systemd will restart the daemon if this lasts", silent=list(overdue)
            )
        self._overdue = overdue
        if not overdue:
            self._manager.send("WATCHDOG=1")
