"""An actuator that excludes only after Slurm's HealthCheckProgram has run: `[slurm] drain_by = "hook"`.

For sites where every drain must follow slurmd's health check. Mode, breaker, ledger, and the reads before and after a
write are unchanged. Restoring and orders of an operator do not wait for the hook.
"""

from __future__ import annotations

from gpuwarden.actuators.base import ActuatorWaits, Register
from gpuwarden.policy.model import Act, FleetCount, Intent, NodeState
from gpuwarden_collectors.base import Clock

OPEN_FOR = 120.0
"""Seconds after a run of the hook, or after a write that it allowed: an attempt and its retries."""


class HookGate:
    """Delays exclusions for failures until Slurm's hook runs. `actuator`: the gated one."""

    sheds_load = False

    def __init__(self, actuator: Register, clock: Clock) -> None:
        self.name = actuator.name
        self.actuator = actuator
        self._clock = clock
        self._hook_at = float("-inf")

    def hook_ran(self) -> None:
        """Record that the hook has run now."""
        self._hook_at = self._clock().boottime

    async def read(self) -> NodeState:
        return await self.actuator.read()

    async def fleet_count(self) -> FleetCount:
        """Count the fleet, or raise ActuatorWaits until the hook runs.

        Exclusions for failures, and nothing else, begin with this call, so it waits before any request to Slurm.
        """
        if self._clock().boottime - self._hook_at > OPEN_FOR:
            raise ActuatorWaits(
                'the drain waits for the next run of HealthCheckProgram (slurm.drain_by = "hook"); is it set in slurm.conf?'
            )
        return await self.actuator.fleet_count()

    async def apply(self, intent: Intent, state: NodeState) -> None:
        """Write the intent. An exclusion keeps the gate open for the breaker's second count."""
        if intent.act is Act.EXCLUDE:
            self._hook_at = self._clock().boottime
        await self.actuator.apply(intent, state)

    async def close(self) -> None:
        await self.actuator.close()
