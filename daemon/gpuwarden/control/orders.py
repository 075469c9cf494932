"""The control socket's verbs for policy: exclude, restore, and announce the end of this machine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from gpuwarden.base.peer import Peer
from gpuwarden.control.rate_limit import Pushes
from gpuwarden.engine.enforcement import Enforcement
from gpuwarden.engine.operator_orders import StaysOut
from gpuwarden.health.model import Verdict
from gpuwarden.policy.orders import is_announced, is_sooner
from gpuwarden.publish.sockets.control import TRY_AGAIN, Verb, VerbError
from gpuwarden_collectors.base import Clock

NOTICE_MOST = 90 * 86_400.0
"""Most seconds until an announced end; clouds announce maintenance that early."""
REASON_MOST = 10_000
STAYS_OUT = 1
"""Exit code of `restore` if the node stays excluded for failures."""


class Service(Protocol):
    enforcement: Enforcement
    verdict: Verdict

    async def jobs_signalled(self) -> str:
        """Text with the jobs that were or would be signalled for imminent ends; empty if none is imminent."""


def order_verbs(service: Service, name_of: Callable[[int], Awaitable[str]], clock: Clock) -> Mapping[str, Verb]:
    """The verbs for exclusions and restorations. `name_of` returns the name of a uid."""

    async def exclude(arguments: dict[str, Any], peer: Peer) -> Any:
        text = _reason(arguments)
        try:
            return await service.enforcement.orders.exclude(await name_of(peer.uid), text)
        except ValueError as error:
            raise VerbError(str(error)) from error

    async def restore(arguments: dict[str, Any], peer: Peer) -> Any:
        force, untested = arguments.get("force", False), arguments.get("untested", False)
        if not isinstance(force, bool) or not isinstance(untested, bool):
            raise VerbError("restore needs `force` and `untested` to be true or false")
        by = await name_of(peer.uid)
        try:
            return await service.enforcement.orders.restore(by, service.verdict, force=force, untested=untested)
        except StaysOut as error:
            return VerbError(str(error), STAYS_OUT)  # raised once on disk, because it ended an order
        except ValueError as error:
            raise VerbError(str(error)) from error

    return {"exclude": exclude, "restore": restore, "notify-termination": _Notify(service, name_of, clock).verb}


class _Notify:
    def __init__(self, service: Service, name_of: Callable[[int], Awaitable[str]], clock: Clock) -> None:
        self._service = service
        self._name_of = name_of
        self._clock = clock
        self._pushes = Pushes(clock)

    async def verb(self, arguments: dict[str, Any], peer: Peer) -> Any:
        by = await self._name_of(peer.uid)
        if arguments.get("cancel") is True:
            self._in_turn(peer)
            try:
                self._service.enforcement.orders.call_off(by)
            except ValueError as error:
                raise VerbError(str(error)) from error
            return "called off"
        announced = self._announced(_within(arguments), _reason(arguments), by, peer)
        return "; ".join(filter(None, (announced, await self._service.jobs_signalled())))

    def _announced(self, within: float, text: str, by: str, peer: Peer) -> str:
        enforcement, now = self._service.enforcement, self._clock()
        if is_announced(enforcement.state, within, text, by, now):
            return f"announced already: this machine ends in {within:g} s"
        if not is_sooner(enforcement.state, within, now):
            self._in_turn(peer)
        return enforcement.orders.announce(within, text, by)

    def _in_turn(self, peer: Peer) -> None:
        if (seconds := self._pushes.wait(peer.uid)) > 0:
            raise VerbError(f"too many announcements: this one is refused; try again in {seconds:.0f} s", TRY_AGAIN)


def _within(arguments: Mapping[str, Any]) -> float:
    within = arguments.get("within")
    if isinstance(within, bool) or not isinstance(within, int | float) or not 0 <= within <= NOTICE_MOST:
        raise VerbError(f"notify-termination needs the seconds until the end, 0 to {NOTICE_MOST:.0f}")
    return float(within)


def _reason(arguments: Mapping[str, Any]) -> str:
    text = arguments.get("reason", "")
    if not isinstance(text, str) or len(text) > REASON_MOST:
        raise VerbError(f"a reason is text of at most {REASON_MOST} characters")
    return text
