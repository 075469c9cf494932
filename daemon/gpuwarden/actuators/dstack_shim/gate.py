"""A gate before the shim: while it is closed nobody but we can reach it, so that no job comes between a question and the stop.

It is systemd's own (`IPAddressDeny=` of systemd.resource-control(5)): packets to and from the unit's sockets are dropped in the
kernel, on connections that stand already, too. Nothing is refused or lost: a gate that opens again lets through what was sent
meanwhile. It lets one address of loopback through, from which only we ask. Before it is closed a timer is set in systemd that
opens it whatever becomes of this process; and whether it holds is tried each time, since systemd takes the setting on a host
without cgroups v2 or BPF, too, and does nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

from gpuwarden.actuators.base import ActuatorError, ActuatorRefused, ActuatorUnavailable
from gpuwarden.actuators.dstack_shim.systemd import Systemd
from gpuwarden.addresses import Address

OURS = "127.0.0.2"
"""Of loopback, like all of 127.0.0.0/8 (RFC 6890); who asks at 127.0.0.1 asks from there unless told otherwise."""
PROPERTIES = ("IPAddressDeny", "IPAddressAllow")
CLOSED_MOST = 60.0
"""Seconds after which systemd opens it."""
STOPS_WITHIN = 20.0
"""Seconds since the timer was set in which whoever closed it may still rely on it."""
SETTLES = 1.0
"""Seconds without an answer that show that it holds; what was on its way before has been taken by then."""
_TIMER = "gpuwarden-dstack-gate"
_CLOSED = {"IPAddressDeny": frozenset({"0.0.0.0/0", "::/0"}), "IPAddressAllow": frozenset({f"{OURS}/32"})}
_OPEN = ("IPAddressDeny=", "IPAddressAllow=")


class Gate:
    """Before `unit`, which listens on `address` of 127.0.0.1. Raises ActuatorError."""

    def __init__(self, systemd: Systemd, unit: str, address: Address) -> None:
        self._systemd = systemd
        self._unit = unit
        self._address = address
        self._until = 0.0

    def check(self, said: Mapping[str, str]) -> None:
        """`said`: PROPERTIES of the unit. Raises ActuatorRefused where they are the site's."""
        found = {name: frozenset(said.get(name, "").split()) for name in PROPERTIES}
        if any(found.values()) and found != _CLOSED:  # which one of ours is that was never opened
            told = ", ".join(f"{name}={said.get(name, '')}" for name in PROPERTIES)
            raise ActuatorRefused(
                f"{self._unit} has {told}: it could not be held back and left as it was; set dstack.stop_shim_when_idle to "
                "false, and have the interposer answer dstack"
            )

    @contextlib.asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        await self._set_timer()
        try:
            properties = ("IPAddressDeny=any", f"IPAddressAllow={OURS}")
            await self._systemd.do(
                f"hold connections to {self._unit} back",
                "systemctl",
                "set-property",
                "--runtime",
                self._unit,
                *properties,
            )
            await self._try()
            yield
        finally:
            with contextlib.suppress(ActuatorError):  # systemd does it then, by the timer
                await self._open()

    def rely(self) -> None:
        """Raises ActuatorUnavailable where it may have been opened meanwhile."""
        if asyncio.get_running_loop().time() > self._until:
            raise ActuatorUnavailable(f"{self._unit} was not stopped: systemd is too slow just now")

    async def _set_timer(self) -> None:
        with contextlib.suppress(ActuatorError):  # there is none
            await self._clear_timer()
        self._until = asyncio.get_running_loop().time() + STOPS_WITHIN
        await self._systemd.do(
            "set a timer", "systemd-run", "--quiet", "--collect", f"--unit={_TIMER}", f"--on-active={CLOSED_MOST:g}s",
            "--timer-property=AccuracySec=1s", "systemctl", "set-property", "--runtime", self._unit, *_OPEN,
        )  # fmt: skip

    async def _clear_timer(self) -> None:
        await self._systemd.do("clear a timer", "systemctl", "stop", f"{_TIMER}.timer")

    async def _open(self) -> None:
        await self._systemd.do(
            f"let connections to {self._unit} through", "systemctl", "set-property", "--runtime", self._unit, *_OPEN
        )
        await self._clear_timer()

    async def _try(self) -> None:
        host, port = self._address.host, self._address.port
        try:
            async with asyncio.timeout(SETTLES):
                _, writer = await asyncio.open_connection(host, port)
        except TimeoutError:
            return
        except OSError as error:
            raise ActuatorUnavailable(
                f"dstack's agent cannot be reached at {self._address}: {error.strerror}"
            ) from error
        writer.close()
        raise ActuatorRefused(
            f"{self._unit} is not stopped: systemd cannot hold connections to it back on this host (that takes cgroups v2 and "
            "BPF), and a job could come in between; set dstack.stop_shim_when_idle to false, and have the interposer answer dstack"
        )
