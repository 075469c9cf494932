"""What the daemon does in Kubernetes beside taking this node out: it keeps the node's condition, in mode enforce."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gpuwarden.actuators.base import Actuator
from gpuwarden.config.model import Config
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden_collectors.base import Clock

if TYPE_CHECKING:  # loaded only where it is enabled
    from gpuwarden.actuators.kubernetes.condition import ConditionWriter


class KubernetesConditions:
    def __init__(self, config: Config, actuators: Iterable[Actuator], clock: Clock) -> None:
        options = config.kubernetes
        self._keepers: list[ConditionWriter] = []
        if not (options.enabled and config.mode == "enforce"):
            return
        from gpuwarden.actuators.kubernetes.actuator import KubernetesActuator  # noqa: PLC0415 - as in actuators/registry.py
        from gpuwarden.actuators.kubernetes.condition import ConditionWriter  # noqa: PLC0415

        self._keepers = [
            ConditionWriter(actuator, options, clock=clock)
            for actuator in actuators
            if isinstance(actuator, KubernetesActuator)
        ]

    def run(self) -> None:
        for keeper in self._keepers:
            keeper.run()

    def publish(self, snapshot: Snapshot) -> None:
        for keeper in self._keepers:
            keeper.publish(snapshot)

    def error(self) -> str:
        return "; ".join(keeper.error for keeper in self._keepers if keeper.error)

    async def stop(self) -> None:
        """Stop the keepers. Must come before the actuators are closed, whose connection they use."""
        for keeper in self._keepers:
            await keeper.stop()
