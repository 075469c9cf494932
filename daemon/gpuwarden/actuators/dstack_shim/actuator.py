"""dstack takes a host whose shim does not answer for unreachable, and places nothing there: for hosts without the interposer.

Stopped is only an idle one, behind a closed firewall. Ours is a stop whose marker names the very invocation that it ended, and was
written right before: whoever starts the shim again has lifted it, and what a person stopped stays stopped, even where we had begun to.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from gpuwarden.actuators.base import ActuatorError, ActuatorRefused, ActuatorUnavailable, Counter
from gpuwarden.actuators.dstack_shim.firewall import PROPERTIES, RELIED_UPON, Firewall, is_closed
from gpuwarden.actuators.dstack_shim.systemd import ANSWERS_WITHIN, NoAnswer, Systemd
from gpuwarden.actuators.dstack_shim.tasks import Shim, TasksUnknown
from gpuwarden.actuators.marker_file import Marker, MarkerFile, marker_text
from gpuwarden.base.addresses import Address
from gpuwarden.base.paths import marker_path
from gpuwarden.config.dstack import asked_at
from gpuwarden.policy.model import Act, Census, Intent, Owner, Standing
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.host import boot_id

if TYPE_CHECKING:  # `[dstack]` is its part of it
    from gpuwarden.config.model import Config

UNIT = "dstack-shim.service"
"""On hosts of SSH fleets, and nowhere else: on a cloud's machine the shim has no unit (dstack 0.22)."""
STARTS_WITHIN, STOPS_WITHIN = 15.0, 20.0
_TO_END = 4.0  # seconds that a command may take beyond its time: 2 after SIGTERM, 2 after SIGKILL (plugin_run)
FOLLOWS_WITHIN = RELIED_UPON + (STOPS_WITHIN + _TO_END) + 3 * (ANSWERS_WITHIN + _TO_END)
"""Seconds from our marker to the stop at most: then it was made, or was taken back."""
_EXIT = "ActiveExitTimestampMonotonic"  # CLOCK_MONOTONIC in microseconds, of org.freedesktop.systemd1(5)
_PROPERTIES = ("LoadState", "ActiveState", "SubState", "Job", "InvocationID", _EXIT, *PROPERTIES)
_STOPPED = frozenset({"inactive", "failed"})  # failed: it was stopped, and did not end well
_SETTLED = _STOPPED | {"active"}


class DstackShimActuator:
    """`file` keeps our marker; the shim listens at `address`. `monotonic`: CLOCK_MONOTONIC, by which systemd dates its units."""

    name = "dstack_shim"

    def __init__(
        self,
        file: MarkerFile,
        *,
        address: Address,
        node: str,
        boot_id: str,
        counter: Counter,
        clock: Clock,
        systemd: Systemd | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = file
        self._node = node
        self._boot_id = boot_id
        self._counter = counter
        self._clock = clock
        self._monotonic = monotonic
        self._systemd = systemd or Systemd()
        self._shim = Shim(address, clock)
        self._firewall = Firewall(self._systemd, UNIT, address)

    async def look(self) -> Standing:
        said = await self._settled()
        at, pool, state = self._clock(), self._counter.pool, said.get("ActiveState", "")
        if state == "active":
            try:
                return Standing(at=at, state=state, pool=pool, busy=await self._shim.busy())
            except TasksUnknown as error:
                return Standing(at=at, state=state, pool=pool, busy=str(error), trouble=str(error))
        marker = await self._file.read()
        if marker is not None and self._is_ours(marker, said):
            return marker.standing(at=at, state=state, pool=pool)
        return Standing(
            at=at, owner=Owner.FOREIGN, reason=f"{UNIT} is {_how(said)}", schedulable=False, state=_how(said), pool=pool,
        )  # fmt: skip

    async def census(self) -> Census:
        return await self._counter.census()

    async def apply(self, intent: Intent, standing: Standing) -> None:  # noqa: ARG002 - it is looked at once more here
        if intent.act is Act.EXCLUDE:
            await self._stop(intent)
        else:
            await self._systemd.do(f"start {UNIT}", "systemctl", "start", UNIT, within=STARTS_WITHIN)
            await self._file.remove()

    async def close(self) -> None:
        await self._shim.close()

    async def hindrance(self) -> str:
        """Why it could not be stopped just now, as far as that shows before it is tried; "" if nothing speaks against it.

        Raises ActuatorError.
        """
        said = await self._shown()
        self._firewall.check(said)
        return "connections to it are held back, and dstack cannot reach it" if is_closed(said) else ""

    async def _stop(self, intent: Intent) -> None:
        said = await self._settled()
        if said["ActiveState"] in _STOPPED:
            await self._mark_again(intent, said)
            return
        self._firewall.check(said)
        async with self._firewall.closed():
            if busy := await self._shim.busy():
                raise ActuatorUnavailable(busy)
            said = await self._settled()  # it may have been started anew since
            # Before the stop: it is void while this invocation runs.
            await self._mark(intent, f"{said.get('InvocationID', '')} {self._monotonic():.3f}")
            self._firewall.rely()
            try:
                await self._systemd.do(f"stop {UNIT}", "systemctl", "stop", UNIT, within=STOPS_WITHIN)
            except (NoAnswer, asyncio.CancelledError):
                await self._take_back()
                raise
            except ActuatorError:
                if not (await self._shown()).get("Job"):  # which outlives systemctl where systemd is executed anew
                    self._firewall.stopped()
                raise
            self._firewall.stopped()

    async def _mark_again(self, intent: Intent, said: Mapping[str, str]) -> None:
        """It was stopped for something else, and stays so. Raises ActuatorUnavailable where that was not by us."""
        marker = await self._file.read()
        if marker is None or not self._is_ours(marker, said):
            raise ActuatorUnavailable(f"{UNIT} is {_how(said)}, and not by gpuwarden")
        await self._mark(intent, marker.stopped)

    async def _mark(self, intent: Intent, stopped: str) -> None:
        since = self._clock().wall
        await self._file.write(
            marker_text(intent, node=self._node, boot_id=self._boot_id, since=since, stopped=stopped)
        )

    async def _take_back(self) -> None:
        """A stop that waits, for instance for another unit's, would come when nobody knows of it any more. Raises ActuatorError."""
        said = await self._shown()
        if said.get("Job") and said.get("ActiveState") == "active":
            await self._systemd.do(f"take the stop of {UNIT} back", "systemctl", "cancel", said["Job"])
            said = await self._shown()
        if said.get("ActiveState") == "active" and not said.get("Job"):
            self._firewall.stopped()
            await self._file.remove()  # a stop that a person makes now is theirs

    async def _settled(self) -> dict[str, str]:
        """As `_shown`. Raises ActuatorUnavailable while a start or stop of somebody's, or of a killed daemon of ours, is to come."""
        said = await self._shown()
        state = said.get("ActiveState", "")
        if state not in _SETTLED or said.get("Job"):  # at boot it waits for the network, and nobody stopped it
            raise ActuatorUnavailable(
                f"{UNIT} is {state or 'in no state'} ({said.get('SubState', '')}), and about to change"
            )
        return said

    async def _shown(self) -> dict[str, str]:
        """Raises ActuatorRefused where this host has no such unit."""
        said = await self._systemd.show(UNIT, _PROPERTIES)
        if said.get("LoadState") == "not-found":
            raise ActuatorRefused(
                f"there is no {UNIT}: this host is in no SSH fleet of dstack's, and machines of its clouds are not to be stopped; "
                "set dstack.stop_shim_when_idle to false"
            )
        return said

    def _is_ours(self, marker: Marker, said: Mapping[str, str]) -> bool:
        if said.get("LoadState") != "loaded" or marker.boot_id != self._boot_id:
            return False
        invocation, _, written = marker.stopped.partition(" ")
        return bool(invocation) and invocation == said.get("InvocationID") and _follows(written, said.get(_EXIT, ""))


def _follows(written: str, stopped: str) -> bool:
    """Whether the stop came right after the marker: one that we began and that failed is not ours when a person makes it."""
    try:
        return 0.0 <= int(stopped) / 1e6 - float(written) <= FOLLOWS_WITHIN
    except ValueError:
        return False


def _how(said: Mapping[str, str]) -> str:
    return "masked" if said.get("LoadState") == "masked" else said.get("ActiveState", "")


def dstack_shim_actuators(config: Config, clock: Clock, counter: Counter) -> list[DstackShimActuator]:
    """For the registry."""
    if not config.dstack.stop_shim_when_idle:
        return []
    place = marker_path(config.run.dir, DstackShimActuator.name)
    return [
        DstackShimActuator(
            MarkerFile(DstackShimActuator.name, place, node=config.node, make_folder=True),
            address=asked_at(config.dstack), node=config.node, boot_id=boot_id(config.paths.proc), counter=counter, clock=clock,
        )
    ]  # fmt: skip
