"""The turn of a node that is tested before its return: at most test.at_once nodes are tested at a time (at_once.py)."""

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
    """Return the turn of this node. `at_once`: most nodes under test. `slurm_user`: the user whose test jobs also
    count. `lasts`: most seconds of a test. `pause`: seconds between writing the mark and the second count, at least
    one.
    """

    async def refused(commands: Commands, name: str) -> str:
        testers = await read_testers(commands, slurm_user, time.time())
        return refusal(at_once, testers.held, name)

    turn = TurnOptions(what=TEST, done="tested", lasts=lasts, pause=pause)
    return FleetTurn(client, slurm, turn, refused)
