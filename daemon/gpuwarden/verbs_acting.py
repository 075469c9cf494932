"""What operators may order of policy through the control socket: exclude, restore, and the end of this machine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from gpuwarden.acting import Acting
from gpuwarden.policy.situation import Situation
from gpuwarden.publish.control import Peer, Verb, VerbError

NOTICE_MOST = 90 * 86_400.0
"""Seconds; clouds announce maintenance that long before."""
REASON_MOST = 10_000


class Service(Protocol):
    @property
    def acting(self) -> Acting: ...
    @property
    def situation(self) -> Situation: ...


def acting_verbs(service: Service, name_of: Callable[[int], Awaitable[str]]) -> Mapping[str, Verb]:
    """`name_of` a user id."""

    async def exclude(arguments: dict[str, Any], peer: Peer) -> Any:
        text = _reason(arguments)
        try:
            return await service.acting.exclude(await name_of(peer.uid), text)
        except ValueError as error:
            raise VerbError(str(error)) from error

    async def restore(_: dict[str, Any], peer: Peer) -> Any:
        try:
            return await service.acting.restore(await name_of(peer.uid), service.situation)
        except ValueError as error:
            raise VerbError(str(error)) from error

    async def notify(arguments: dict[str, Any], peer: Peer) -> Any:
        by = await name_of(peer.uid)
        if arguments.get("cancel") is True:
            try:
                service.acting.call_off(by)
            except ValueError as error:
                raise VerbError(str(error)) from error
            return "called off"
        within = arguments.get("within")
        if isinstance(within, bool) or not isinstance(within, int | float) or not 0 <= within <= NOTICE_MOST:
            raise VerbError(f"notify-termination needs the seconds until the end, 0 to {NOTICE_MOST:.0f}")
        return service.acting.announce(float(within), _reason(arguments), by)

    return {"exclude": exclude, "restore": restore, "notify-termination": notify}


def _reason(arguments: Mapping[str, Any]) -> str:
    text = arguments.get("reason", "")
    if not isinstance(text, str) or len(text) > REASON_MOST:
        raise VerbError(f"a reason is text of at most {REASON_MOST} characters")
    return text
