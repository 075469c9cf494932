"""The turn of a node that is tested before its return, among the nodes that gpuwarden tests (at_once.py)."""

from __future__ import annotations

import time

from gpuwarden.actuators.fleet_turn import FleetTurn, TurnOptions
from gpuwarden.features.active_test.at_once import TEST, refusal
from gpuwarden.features.active_test.testers import read_testers
from gpuwarden_collectors.slurm.client import Commands, SlurmClient
from gpuwarden_collectors.slurm.options import SlurmOptions


def gate_turn(
    client: SlurmClient, slurm: SlurmOptions, *, at_once: int, slurm_user: str, lasts: float, pause: float
) -> FleetTurn:
    """Return the turn of this node. `at_once`: how many nodes may be tested at once. `slurm_user`: whose jobs count, too.
    `lasts`: seconds of a test at most. `pause`: seconds between the write and the second count, a second at least.
    """

    async def refused(commands: Commands, name: str) -> str:
        testers = await read_testers(commands, slurm_user, time.time())
        return refusal(at_once, testers.held, name)

    turn = TurnOptions(what=TEST, done="tested", lasts=lasts, pause=pause)
    return FleetTurn(client, slurm, turn, refused)
