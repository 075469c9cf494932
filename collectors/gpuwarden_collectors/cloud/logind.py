"""Calls to logind over the system bus: org.freedesktop.login1(5)."""

from __future__ import annotations

from jeepney import DBusAddress, HeaderFields, MatchRule, Properties, message_bus, new_method_call

from gpuwarden_collectors.cloud.dbus import Bus
from gpuwarden_collectors.cloud.system_bus import BusError

_NAME = "org.freedesktop.login1"
_MANAGER = DBusAddress("/org/freedesktop/login1", bus_name=_NAME, interface="org.freedesktop.login1.Manager")
_SHUTDOWN = MatchRule(
    type="signal", sender=_NAME, path=_MANAGER.object_path, interface=_MANAGER.interface, member="PrepareForShutdown"
)


class Logind:
    """A connection to logind, made by `connect`. Every method but `close` may raise BusError."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    @classmethod
    async def connect(cls, path: str, timeout: float) -> Logind:  # noqa: ASYNC109 - of each step from now on
        """Connects to logind. `path` is that of the bus; `timeout` is in seconds."""
        return cls(await Bus.connect(path, timeout))

    async def delay(self) -> float:
        """Most seconds for which logind lets an inhibitor delay a shutdown."""
        return await self._property("InhibitDelayMaxUSec") / 1e6

    async def follow_shutdown(self) -> bool:
        """Subscribes to shutdown signals. True if a shutdown is in progress; `shutdown` returns later signals."""
        await self._bus.subscribe(_SHUTDOWN)
        return bool(await self._property("PreparingForShutdown"))

    async def shutdown(self, seconds: float) -> bool | None:
        """True if a shutdown begins, False if it was cancelled, None if logind sent no signal within `seconds`."""
        signal = await self._bus.signal(seconds)
        if signal is None:
            return None
        owner = await self._bus.call(message_bus.GetNameOwner(_NAME), "s")
        if signal.header.fields.get(HeaderFields.sender) not in owner:
            return None  # any client may send a signal of that name
        return signal.body[0] is True

    async def inhibit(self) -> int:
        """Returns a descriptor that delays a shutdown until it is closed or `delay` is over."""
        arguments = ("shutdown", "gpuwarden", "jobs are signalled to save", "delay")
        (inhibitor,) = await self._bus.call(new_method_call(_MANAGER, "Inhibit", "ssss", arguments), "h")
        return int(inhibitor.to_raw_fd())

    def close(self) -> None:
        self._bus.close()

    async def _property(self, name: str) -> float:
        ((_, value),) = await self._bus.call(Properties(_MANAGER).get(name), "v")
        if not isinstance(value, int):
            raise BusError(f"{name} is not a number")
        return float(value)


async def longest_delay(path: str, timeout: float) -> float:  # noqa: ASYNC109 - of each of three steps
    """Most seconds for which logind lets an inhibitor delay a shutdown. Takes no inhibitor. Raises BusError."""
    logind = await Logind.connect(path, timeout)
    try:
        return await logind.delay()
    finally:
        logind.close()
