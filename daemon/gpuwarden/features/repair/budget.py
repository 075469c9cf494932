"""Limits how many nodes of the fleet are repaired at once and within a day, by marks that all nodes can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuwarden.actuators.fleet_turn import FleetTurn, TurnOptions, read_marks
from gpuwarden.features.repair.options import RepairOptions
from gpuwarden.features.repair.plan import DAY
from gpuwarden.policy.fleet_marks import Mark
from gpuwarden.policy.model import Held, earlier
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.slurm.client import Commands, SlurmClient
from gpuwarden_collectors.slurm.options import SlurmOptions

REPAIR = "repair"
LASTS = 3_600.0
"""Most seconds that a node counts as being repaired: a slow reboot of a large machine is done by then."""


def fleet_turn(
    client: SlurmClient, slurm: SlurmOptions, options: RepairOptions, pause: float, clock: Clock
) -> FleetTurn:
    async def refused(commands: Commands, name: str) -> str:
        return refusal(options, await read_marks(commands, REPAIR), name, clock().wall)

    turn = TurnOptions(what=REPAIR, done="repaired", lasts=LASTS, pause=pause, kept=DAY)
    return FleetTurn(client, slurm, turn, refused, lambda: clock().wall)


def refusal(options: RepairOptions, marks: Mapping[str, Sequence[Mark]], node: str, now: float) -> str:
    """Return why this node may not begin or continue a repair; "" if it may. `marks`: of all nodes, with this one."""
    begun = [Held(mark.since, name) for name, own in marks.items() for mark in own if mark.since > now - DAY]
    newest = max((held for held in begun if held.node == node), default=None)
    running = [
        Held(mark.since, name) for name, own in marks.items() for mark in own if name != node and mark.counts(now)
    ]
    if newest is not None and any(mark.counts(now) for mark in marks[node]):
        running.append(newest)
    if (at_once := len(earlier(running, node))) >= options.at_once:
        return f"being repaired now: {at_once}; repair.at_once allows {options.at_once}"
    before = sum(newest is None or held < newest for held in begun)
    if before >= options.per_day:
        return f"repairs of the fleet within 24 hours: {before}; repair.per_day allows {options.per_day}"
    return ""
