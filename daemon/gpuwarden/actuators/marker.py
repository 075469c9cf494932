"""A marker file as an actuator: its readers treat this node as excluded while it exists."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpuwarden.actuators.base import Counter
from gpuwarden.actuators.marker_file import MarkerFile, marker_text
from gpuwarden.base.paths import marker_path
from gpuwarden.features import Excludes
from gpuwarden.policy.model import Act, FleetCount, Intent, NodeState
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.host import boot_id

if TYPE_CHECKING:  # uses the features that have a marker
    from gpuwarden.config.model import Config


class MarkerActuator:
    """Writes the marker at `path`, for this node alone.

    `over_boots` False: a marker of an earlier boot is void. True, for a persistent path and readers that ignore boots:
    the marker stays valid, like a drain in Slurm. `make_folder`: create the folder.
    """

    sheds_load = False

    def __init__(
        self,
        name: str,
        path: Path,
        *,
        node: str,
        boot_id: str,
        counter: Counter,
        clock: Clock,
        over_boots: bool = False,
        make_folder: bool = False,
    ) -> None:
        self.name = name
        self._file = MarkerFile(name, path, node=node, make_folder=make_folder)
        self._node = node
        self._boot_id = boot_id
        self._counter = counter
        self._clock = clock
        self._over_boots = over_boots

    async def read(self) -> NodeState:
        marker = await self._file.read()
        at, pool = self._clock(), self._counter.pool
        if marker is None or (marker.boot_id != self._boot_id and not self._over_boots):
            return NodeState(at=at, state="no marker", pool=pool)
        return marker.node_state(at=at, state="marked", pool=pool)

    async def fleet_count(self) -> FleetCount:
        return await self._counter.fleet_count()

    async def apply(self, intent: Intent, state: NodeState) -> None:  # noqa: ARG002 - read once more in the thread
        if intent.act is Act.EXCLUDE:
            await self._file.write(
                marker_text(intent, node=self._node, boot_id=self._boot_id, since=self._clock().wall)
            )
        else:
            await self._file.remove()

    async def close(self) -> None:
        """No-op: only a thread on a hung file system may remain."""


def marker_actuators(config: Config, clock: Clock, counter: Counter) -> list[MarkerActuator]:
    """Make the marker actuators that are enabled, for the registry."""
    boot = boot_id(config.paths.proc)
    return [
        MarkerActuator(
            name,
            marker_path(config.run.dir, name),
            node=config.node,
            boot_id=boot,
            counter=counter,
            clock=clock,
            make_folder=True,
        )
        for name in config.excluding(Excludes.BY_MARKER)
    ]
