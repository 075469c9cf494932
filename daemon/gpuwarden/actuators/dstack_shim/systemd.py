"""systemd as an actuator asks it: by its own commands, each with a deadline, in the words of actuators."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from gpuwarden.actuators.base import ActuatorRefused, ActuatorUnavailable
from gpuwarden.actuators.subprocesses import Runs, complaint

ANSWERS_WITHIN = 5.0
"""Seconds; a manager that is stuck does not come back soon."""
_REFUSED = frozenset({4, 5})
"""Of systemctl(1), after the LSB: insufficient privilege; there is no such unit."""
_REFUSALS = ("Access denied", "authentication required")
"""Of its other verbs, and of systemd-run, which exit with 1 then (systemd 252)."""
_KEPT = 16 << 10  # bytes of an answer


class NoAnswer(ActuatorUnavailable):
    """Not in time; what was asked for may still be done."""


class Systemd:
    """`inherited`: of it the commands get PATH."""

    def __init__(self, inherited: Mapping[str, str] = os.environ) -> None:
        path = inherited.get("PATH", os.defpath)
        # Without its warnings: that files of the unit have changed would come before what is wrong.
        self._environment = {"PATH": path, "LC_ALL": "C", "SYSTEMD_COLORS": "0", "SYSTEMD_LOG_LEVEL": "err"}
        self._runs = Runs(_KEPT)

    async def show(self, unit: str, names: Sequence[str]) -> dict[str, str]:
        """Properties of a unit, as systemctl spells them; empty ones, too."""
        said = await self.do(f"look at {unit}", "systemctl", "show", f"--property={','.join(names)}", "--", unit)
        return dict(line.split("=", 1) for line in said.splitlines() if "=" in line)

    async def do(self, what: str, *command: str, within: float = ANSWERS_WITHIN) -> str:
        """What the command writes. Raises ActuatorError: ActuatorRefused where it may not, or there is no such unit."""
        done = await self._runs.run(f"cannot {what}", command, self._environment, within)
        if done.exit_code == 0:
            return done.stdout.decode("utf-8", "replace")
        if done.exit_code is None:
            raise NoAnswer(f"cannot {what}: {command[0]} {complaint(done)}")
        told = complaint(done)
        refused = done.exit_code in _REFUSED or any(words in told for words in _REFUSALS)
        raise (ActuatorRefused if refused else ActuatorUnavailable)(f"cannot {what}: {command[0]} {told}")
