"""An actuator that excludes only when Slurm's HealthCheckProgram has asked for it: `[slurm] drain_by = "hook"`.

For sites that want every drain to come from slurmd's own rhythm. All else is as ever: mode, breaker, ledger, the look before
and after. Restoring, and what an operator orders, needs no hook.
"""

from __future__ import annotations

from gpuwarden.actuators.base import ActuatorUnavailable, Register
from gpuwarden.policy.model import Act, Census, Intent, Standing
from gpuwarden_collectors.base import Clock

OPEN_FOR = 120.0
"""Seconds after the hook was here, or after a write that it asked for: an attempt and its retries."""


class HookGate:
    """`actuator` is behind it; what others ask of that one waits for no hook."""

    def __init__(self, actuator: Register, clock: Clock) -> None:
        self.name = actuator.name
        self.actuator = actuator
        self._clock = clock
        self._asked = float("-inf")

    def asked(self) -> None:
        """The hook was here."""
        self._asked = self._clock().boottime

    async def look(self) -> Standing:
        return await self.actuator.look()

    async def census(self) -> Census:
        """Every exclusion for a failure begins with it, and nothing else: so it waits here, before Slurm is asked anything."""
        if self._clock().boottime - self._asked > OPEN_FOR:
            raise ActuatorUnavailable(
                'the drain waits for HealthCheckProgram to ask for it (slurm.drain_by = "hook"); is it set in slurm.conf?'
            )
        return await self.actuator.census()

    async def apply(self, intent: Intent, standing: Standing) -> None:
        """The second count of the breaker follows it, and must not wait for the next hook."""
        if intent.act is Act.EXCLUDE:
            self._asked = self._clock().boottime
        await self.actuator.apply(intent, standing)

    async def close(self) -> None:
        await self.actuator.close()
