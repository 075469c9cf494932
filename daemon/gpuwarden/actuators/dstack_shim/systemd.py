"""systemd as an actuator asks it: by its own commands, each with a deadline, in the words of actuators."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from gpuwarden.actuators.base import ActuatorRefused, ActuatorUnavailable
from gpuwarden.actuators.command import complaint
from gpuwarden_collectors.plugin_run import Process, run

ANSWERS_WITHIN = 5.0
"""Seconds; a manager that is stuck does not come back soon."""
REFUSED = frozenset({4, 5})
"""Of systemctl(1), after the LSB: insufficient privilege; there is no such unit."""
_KEPT = 16 << 10  # bytes of an answer
_HANGING_MOST = 2


class Systemd:
    """`inherited`: of it the commands get PATH."""

    def __init__(self, inherited: Mapping[str, str] = os.environ) -> None:
        path = inherited.get("PATH", os.defpath)
        self._environment = {"PATH": path, "LC_ALL": "C", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": ""}
        self._hanging: list[Process] = []

    async def show(self, unit: str, names: Sequence[str]) -> dict[str, str]:
        """Properties of a unit, as systemctl spells them; empty ones, too."""
        said = await self.do(f"look at {unit}", "systemctl", "show", f"--property={','.join(names)}", "--", unit)
        return dict(line.split("=", 1) for line in said.splitlines() if "=" in line)

    async def do(self, what: str, *command: str, within: float = ANSWERS_WITHIN) -> str:
        """What the command writes. Raises ActuatorUnavailable, or ActuatorRefused where it may not or there is no such unit."""
        self._hanging = [process for process in self._hanging if not process.gone()]
        if len(self._hanging) >= _HANGING_MOST:
            raise ActuatorUnavailable(f"cannot {what}: {len(self._hanging)} earlier commands of systemd's hang")
        done = await run(command, self._environment, within, kept=_KEPT)
        if done.left is not None:
            self._hanging.append(done.left)
        if done.exit_code == 0:
            return done.stdout.decode("utf-8", "replace")
        kind = ActuatorRefused if done.exit_code in REFUSED else ActuatorUnavailable
        raise kind(f"cannot {what}: {command[0]} {complaint(done)}")
