"""What Slurm's health check does about a daemon that says nothing, if it is asked to: `[slurm] on_stale = "drain"`.

It goes the daemon's own way: the mode, the intent in the ledger, the breaker before and after the write, the same reason by
which the daemon knows its own and lifts it after clean passes. Only that nobody answers is not enough: it has to be so for
`stale_grace`, counted from the first check that found it and anew after every word of the daemon's.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path

from gpuwarden.actuators.base import Actuator
from gpuwarden.actuators.hook_gate import HookGate
from gpuwarden.actuators.outbox import Limits, Outbox
from gpuwarden.config import Config
from gpuwarden.health.model import Event, EventKind, Json
from gpuwarden.ledger.ledger import Ledger
from gpuwarden.policy import breaker
from gpuwarden.policy.model import Act, Intent, Outcome, Result, Why
from gpuwarden.policy.state import data_of, outcome_data
from gpuwarden.publish.files import replace_file
from gpuwarden.silent_note import NOTE, REASON
from gpuwarden.site import Site
from gpuwarden_collectors.base import Clock, host_clock

MARK = "silent-since"
LEDGER_OPENS_WITHIN = 2.0
SPREAD_MOST = 10.0
"""Seconds that one check can wait for its turn: slurmd ends it after 60. Where a pool needs more, most checks leave it to
a later one, so that a thousand nodes with the same broken package still come one after the other.
"""


def silent_for(state_dir: Path, verdict: str, boot_id: str, now: float) -> float:
    """Seconds since the first check that found the daemon silent; `verdict` is the last that it said, "" for none.

    Raises OSError where that cannot be remembered.
    """
    mark = state_dir / MARK
    spoken = " ".join((boot_id, _stamp(verdict)))
    with contextlib.suppress(OSError, ValueError):
        before, _, since = mark.read_text(encoding="utf-8", errors="replace").strip().rpartition(" ")
        if before == spoken and float(since) <= now:
            return now - float(since)
    replace_file(mark, f"{spoken} {now:.0f}\n", mode=0o600)
    return 0.0


def _stamp(verdict: str) -> str:
    return next((line for line in verdict.splitlines() if line.startswith("stamp=")), "stamp=")


async def check(config: Config, clock: Clock = host_clock) -> str:
    """What was done about it, or why nothing was. Raises OSError where it cannot be remembered since when."""
    site = Site.of(config)
    try:
        said = (config.run.dir / "verdict").read_text(encoding="utf-8", errors="replace")
    except OSError:
        said = ""
    silent, grace = silent_for(config.state.dir, said, site.boot_id, clock().boottime), config.slurm.stale_grace
    if silent < grace:
        return f"found so for {silent:.0f} s, and {grace:.0f} s must pass"
    if config.mode != "enforce":
        return f"mode is {config.mode}: would drain with reason {REASON!r}"
    actuator = next((one for one in site.actuators(clock) if one.name == "slurm"), None)
    if actuator is None:
        return "nothing done: there is no Slurm to ask"
    if isinstance(actuator, HookGate):
        actuator.asked()
    ledger = Ledger(site.ledger, machine=site.machine, boot_id=site.boot_id, clock=clock)
    note = config.state.dir / NOTE
    outcome = await drain(actuator, ledger, site.acting.limits, site.boot_id, clock, note=note)
    return f"drain: {outcome.result.value} {outcome.text}".rstrip()


async def drain(
    actuator: Actuator, ledger: Ledger, limits: Limits, boot_id: str, clock: Clock, *, note: Path | None = None
) -> Outcome:
    """One attempt; the next check makes the next.

    A daemon that hangs has the ledger locked: then `note` tells it what was written, for when it goes on.
    """
    remembers = await ledger.open(LEDGER_OPENS_WITHIN) is not None

    def write(kind: EventKind, data: dict[str, Json]) -> None:
        ledger.append([Event(kind=kind, at=clock(), boot_id=boot_id, data=data)])

    async def committed() -> bool:
        return remembers and await ledger.flush(LEDGER_OPENS_WITHIN)

    now = clock()
    intent = Intent(
        act=Act.EXCLUDE, actuator=actuator.name, why=Why.FAILURE, reason=REASON,
        key=f"exclude {actuator.name} silent {boot_id[:8]} {now.boottime:.0f}", at=now,
    )  # fmt: skip
    box = Outbox(actuator, committed=committed, wanted=lambda _: True, looked=lambda: None, limits=limits, clock=clock)
    box.key = intent.key  # the wait of a first attempt is made here
    try:
        await box.look()
        if box.standing is not None and not box.standing.reachable:  # to ask twice would outlast the hook
            return Outcome(result=Result.RETRY, text=box.standing.trouble)
        if not await _turn(None if box.standing is None else box.standing.pool):
            return Outcome(result=Result.RETRY, text="left to a later check, lest all nodes write at once")
        write(EventKind.INTENDED, data_of(intent))
        outcome, _ = await box.attempt(intent)
        # What is tried again is intended again by the next check: the daemon is to find nothing of this one wanted.
        ended = Result.DROPPED if outcome.result in (Result.RETRY, Result.REFUSED) else outcome.result
        write(EventKind.OUTCOME, outcome_data(intent, ended, outcome.text))
        if outcome.result in (Result.DONE, Result.ALREADY):
            about: dict[str, Json] = {"actuator": actuator.name, "why": Why.FAILURE.value, "reason": REASON}
            write(EventKind.EXCLUDED, {**about, "since": outcome.since})
            if note is not None and not await committed():
                with contextlib.suppress(OSError):
                    replace_file(note, f"{boot_id} {outcome.since:.0f}\n", mode=0o600)
        return outcome
    finally:
        await actuator.close()
        await ledger.close(LEDGER_OPENS_WITHIN)


async def _turn(pool: int | None) -> bool:
    """Whether it is this node's turn now, after a wait by chance."""
    spread = breaker.spread(pool)
    chance = random.Random()  # noqa: S311 - spreads load, guards nothing
    if chance.random() * spread > SPREAD_MOST:
        return False
    await asyncio.sleep(chance.uniform(0.0, min(spread, SPREAD_MOST)))
    return True
