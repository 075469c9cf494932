"""Site checks: executables with Nagios exit codes, each run periodically at its own interval.

0 is ok, 1 a warning, 2 a failure; any other code and a timeout are unknown. Other codes can be configured (NHC exits
with 1 for a bad node). The message is the first line on stdout, up to a `|` (Nagios performance data), or of stderr
if stdout is empty.

The first runs are spread over some seconds, and every interval varies by some per cent, so that nodes booted together
do not access a file server at the same moment.

`run.py` makes one run and limits it; `service.py` lets another process run it.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Mapping

from gpuwarden_collectors.base import Clock, Observation, PassOutcome, host_clock
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.host_facts import PluginFacts, PluginResult, PluginState
from gpuwarden_collectors.host_files import printable
from gpuwarden_collectors.plugin.options import SiteCheck
from gpuwarden_collectors.plugin.run import Process, Run, run
from gpuwarden_collectors.plugin.service import run_by_service

_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ", "HOME", "HOSTNAME")
_LONGEST_TEXT = 200
_FIRST_WITHIN = 10.0  # seconds
_JITTER = 0.1  # of the interval, both ways
_MISSED = 3  # intervals without a run after which the last result no longer counts


def plugin_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a site check: PATH and Slurm's variables, but none of the daemon's.

    NOTIFY_SOCKET in particular is removed: with it a child could notify systemd in the daemon's name.
    """
    passed = {name: value for name, value in environment.items() if name in _PASSED_ON or name.startswith("SLURM")}
    return {"PATH": os.defpath, **passed}


class PluginRunner:
    """Runs the checks `plugins` (by name), at most `limit` at a time and never the same one twice at a time.

    `dice` returns random numbers from 0 to 1, for the jitter. `runner`: socket of the service that runs the checks;
    empty: this process.
    """

    def __init__(
        self,
        plugins: Mapping[str, SiteCheck],
        *,
        environment: Mapping[str, str],
        limit: int = 3,
        clock: Clock = host_clock,
        dice: Callable[[], float] = random.random,
        runner: str = "",
    ) -> None:
        self._plugins = plugins
        self._environment = dict(environment)
        self._turns = asyncio.Semaphore(limit)
        self._clock = clock
        self._dice = dice
        self._runner = runner
        self._results: dict[str, PluginResult] = {}
        self._left: dict[str, Process] = {}

    async def run(self, deliver: Callable[[Observation[PluginFacts]], None]) -> None:
        """Runs all checks periodically until cancelled, which kills the running ones.

        Calls `deliver` with the newest results of all checks after each run.
        """
        async with asyncio.TaskGroup() as group:
            for name, check in self._plugins.items():
                group.create_task(self._repeat(name, check, deliver))

    async def once(self) -> Observation[PluginFacts]:
        """Runs each check once and returns the results. Takes as long as the checks do."""
        started = self._clock()
        async with asyncio.TaskGroup() as group:
            for name, check in self._plugins.items():
                group.create_task(self._turn(name, check))
        return self.newest(started)

    def newest(self, started: Stamp | None = None) -> Observation[PluginFacts]:
        """Returns the newest results without running a check; *absent* where no site checks are configured."""
        now = self._clock()
        if not self._plugins:
            why = "no site checks are configured"
            return Observation(
                collector=PluginFacts.collector, outcome=PassOutcome.ABSENT, started=now, finished=now, error=why
            )
        facts = PluginFacts(names=tuple(self._plugins), results=tuple(self._results.values()))
        return Observation(
            collector=PluginFacts.collector,
            outcome=PassOutcome.OBSERVED,
            started=started or now,
            finished=now,
            facts=facts,
        )

    async def _repeat(self, name: str, check: SiteCheck, deliver: Callable[[Observation[PluginFacts]], None]) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._dice() * min(check.interval, _FIRST_WITHIN))
        while True:
            due = loop.time() + check.interval * (1 + _JITTER * (2 * self._dice() - 1))
            deliver(self.newest(await self._turn(name, check)))
            await asyncio.sleep(due - loop.time())

    async def _turn(self, name: str, check: SiteCheck) -> Stamp:
        """Runs a check once and returns when that run started."""
        async with self._turns:
            started = self._clock()
            done = await self._run(name, check)
        self._results[name] = self._result(name, check, done)
        return started

    async def _run(self, name: str, check: SiteCheck) -> Run:
        if self._runner:
            return await run_by_service(self._runner, name, check.timeout)
        left = self._left.get(name)
        if left is not None and not left.gone():
            return Run(None, error=f"was not started: pid {left.pid} of an earlier run is still stuck in the kernel")
        if left is not None:
            left.reap()
        done = await run(check.command, self._environment, check.timeout, whole=True)
        self._left.pop(name, None)
        if done.left is not None:
            self._left[name] = done.left
        return done

    def _result(self, name: str, check: SiteCheck, done: Run) -> PluginResult:
        state = _state(check, done.exit_code)
        before = self._results.get(name)
        unknown_runs = 0 if state is not PluginState.UNKNOWN else 1 + (before.unknown_runs if before else 0)
        return PluginResult(
            name=name,
            state=state,
            at=self._clock(),
            text=_text(done),
            exit_code=done.exit_code,
            unknown_runs=unknown_runs,
            fresh_for=_MISSED * check.interval + check.timeout,
        )


def _state(check: SiteCheck, code: int | None) -> PluginState:
    if code == 0:
        return PluginState.OK
    if code in check.failure_codes:
        return PluginState.FAILURE
    return PluginState.WARNING if code in check.warning_codes else PluginState.UNKNOWN


def _text(done: Run) -> str:
    """Returns one printable line: the error of the run, if it has one, and the first line of its output."""
    output = done.stdout if done.stdout.strip() else done.stderr
    line = output.decode("utf-8", "replace").strip().partition("\n")[0].partition("|")[0].strip()
    text = ": ".join(part for part in (done.error, line) if part)
    return printable(text, _LONGEST_TEXT)
