"""A firewall before the shim: while it is closed only we can reach it, so that no job comes between a question and the stop.

It is systemd's own (`IPAddressDeny=` of systemd.resource-control(5)): the kernel drops packets to and from the unit's sockets, on
connections that stand already, too. Nothing is refused: what was sent meanwhile is sent again by the kernel, at ever longer
intervals, and arrives once it is open. dstack's server gives a request up after 9 s (0.22); what was held back for 6 s arrives after 7
(measured with Linux 6.18), so that it is never closed for longer while the shim runs. One address of loopback gets through, from
which only we ask.

A timer of systemd's opens it whatever becomes of this process, but not before a stop that was asked for: systemd starts nothing that
is ordered after a unit which is still to be stopped. Whether it holds is tried each time, since on a host without cgroups v2 or BPF
systemd takes the setting all the same, and does nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

from gpuwarden.actuators.base import ActuatorError, ActuatorRefused, ActuatorUnavailable
from gpuwarden.actuators.dstack_shim.systemd import Systemd
from gpuwarden.base.addresses import Address

OURS = "127.0.0.2"
"""Of loopback, like all of 127.0.0.0/8 (RFC 6890); who asks at 127.0.0.1 asks from there unless told otherwise."""
PROPERTIES = ("IPAddressDeny", "IPAddressAllow")
SETTLES = 1.0
"""Seconds without an answer that show that it holds; what was on its way before has been taken by then."""
RELIED_UPON = 3.0
"""Seconds since the timer was set in which a stop may be asked for."""
CLOSED_MOST = 6.0
"""Seconds after which systemd opens it: long enough for a stop that was asked for just in time to have reached systemd."""
_TIMER = "gpuwarden-dstack-firewall"
_CLOSED = {"IPAddressDeny": frozenset({"0.0.0.0/0", "::/0"}), "IPAddressAllow": frozenset({f"{OURS}/32"})}
_OPEN = ("IPAddressDeny=", "IPAddressAllow=")


class Firewall:
    """Before `unit`, which listens on `address` of 127.0.0.1. Raises ActuatorError."""

    def __init__(self, systemd: Systemd, unit: str, address: Address) -> None:
        self._systemd = systemd
        self._unit = unit
        self._address = address
        self._until = 0.0
        self._stopping = False

    def check(self, said: Mapping[str, str]) -> None:
        """`said`: PROPERTIES of the unit. Raises ActuatorRefused where they are the site's."""
        if any(said.get(name) for name in PROPERTIES) and not is_closed(said):
            told = ", ".join(f"{name}={said.get(name, '')}" for name in PROPERTIES)
            raise ActuatorRefused(
                f"{self._unit} has {told}: it could not be closed and left as it was; set dstack.stop_shim_when_idle to false, "
                "and have the interposer answer dstack"
            )

    @contextlib.asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        """Left while a stop is still to come, it stays closed until that is over, and systemd opens it."""
        self._stopping = False
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
            if not self._stopping:
                with contextlib.suppress(ActuatorError):  # the timer does it then
                    await self._open()

    def rely(self) -> None:
        """Right before a stop is asked for. Raises ActuatorUnavailable where it may be open by now."""
        if asyncio.get_running_loop().time() > self._until:
            raise ActuatorUnavailable(f"{self._unit} is not stopped: systemd is too slow just now")
        self._stopping = True

    def stopped(self) -> None:
        """No stop is to come any more."""
        self._stopping = False

    async def _set_timer(self) -> None:
        with contextlib.suppress(ActuatorError):  # there is none
            await self._clear_timer()
        self._until = asyncio.get_running_loop().time() + RELIED_UPON
        await self._systemd.do(
            "set a timer", "systemd-run", "--quiet", "--collect", f"--unit={_TIMER}", f"--on-active={CLOSED_MOST:g}s",
            "--timer-property=AccuracySec=100ms", f"--property=After={self._unit}", "--property=Restart=on-failure",
            "--property=RestartSec=5s", "systemctl", "set-property", "--runtime", self._unit, *_OPEN,
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


def is_closed(said: Mapping[str, str]) -> bool:
    """`said`: PROPERTIES of the unit. By us, and nobody else sets just these."""
    return {name: frozenset(said.get(name, "").split()) for name in PROPERTIES} == _CLOSED
