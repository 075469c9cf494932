"""Azure Scheduled Events. The service lists events of the whole scale set; only those of this machine are returned.

The first request enables the service and may take two minutes. Approving an event starts it at once, for all
machines that it names. This module approves nothing; each event carries the ids that an approval needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.cloud.facts import (
    REASON_MOST,
    Answer,
    Approval,
    Kind,
    TerminationNotice,
    answer,
    clean,
    identity,
    unknown,
)
from gpuwarden_collectors.cloud.metadata import Metadata, MetadataError
from gpuwarden_collectors.cloud.reply import Reply, ReplyError, choice_of, listing, mapping, text_of, time_of
from gpuwarden_collectors.cloud.source import Question
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

NAME = "azure"
FIRST_WITHIN = 130.0
"""Time limit in seconds of the first request, which enables the service."""
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
HEADERS = {"Metadata": "true"}
_OWN_NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
_OWN_SIZE = "/metadata/instance/compute/vmSize?api-version=2021-02-01&format=text"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}", re.ASCII)
_HARD = {"Preempt": True, "Terminate": True, "Redeploy": True, "Reboot": True, "Freeze": False}
"""Kinds of events, and whether they end the running processes. A freeze pauses the machine for seconds."""
_KINDS = {"Preempt": Kind.INTERRUPTION, "Terminate": Kind.SCALE_IN}
_STARTED = "Started"
_EVENTS_MOST = 256


class Azure:
    name = NAME

    def __init__(self, metadata: Metadata, clock: Clock, interval: float = 1.0, first: float = FIRST_WITHIN) -> None:
        self._metadata = metadata
        self._clock = clock
        self._own = ""
        self._on = False
        self.machine_type = ""
        """`Azure/` and the size of this machine, once it is known."""
        self._first = first
        self.questions: Sequence[Question] = (
            Question(name="events", kind=Kind.INTERRUPTION, ask=self._ask, interval=interval, hangs=first, main=True),
        )

    async def confirm(self) -> str:
        try:
            self._own = await own_name(self._metadata)
        except MetadataError as error:
            return f"the metadata service cannot be confirmed: {error}"
        except ReplyError as error:
            return str(error)
        self.machine_type = await own_size(self._metadata)
        return ""

    async def _ask(self) -> Answer:
        try:
            reply = await self._metadata.get(EVENTS, HEADERS, within=None if self._on else self._first)
        except MetadataError as error:
            return unknown(str(error))
        parsed = events(reply, self._clock(), self._own)
        self._on = self._on or reply.status == 200
        return parsed

    async def close(self) -> None:
        await self._metadata.close()


async def own_name(metadata: Metadata) -> str:
    """Returns the machine's name in Azure, which may differ from its hostname. Raises MetadataError, ReplyError."""
    reply = await metadata.get(_OWN_NAME, HEADERS)
    try:
        reply.expect()
        name = reply.text()
    except ReplyError as error:
        raise ReplyError(f"the metadata service cannot be confirmed: {error}") from error
    if not _NAME.fullmatch(name):
        raise ReplyError("the endpoint's answer names no virtual machine")
    return name


async def own_size(metadata: Metadata) -> str:
    """Returns the machine's type, as in `Azure/Standard_ND96isr_H100_v5`.

    Returns "" if the service does not report it: termination notices do not depend on it.
    """
    try:
        reply = await metadata.get(_OWN_SIZE, HEADERS)
        reply.expect()
        size = reply.text()
    except (MetadataError, ReplyError):
        return ""
    return f"Azure/{size}" if _NAME.fullmatch(size) else ""


@dataclass(frozen=True, slots=True)
class Scheduled:
    """An event of this machine that may be approved. `id` is the notice's id, `event_id` Azure's."""

    id: str
    event_id: str
    approval: Approval


def own_events(reply: Reply, own: str) -> Iterator[Scheduled]:
    """Yields the events that name this machine. Raises ReplyError if one of the events cannot be parsed."""
    reply.expect()
    for item in map(mapping, listing(mapping(reply.json()).get("Events"))[:_EVENTS_MOST]):
        if _names(item, own):
            event_id = text_of(item, "EventId")
            yield Scheduled(identity("events", event_id), event_id, _approval(item, own))


def events(reply: Reply, at: Stamp, own: str) -> Answer:
    """Parses the events one by one; `own` is the machine's name in Azure."""
    try:
        reply.expect()
        items = listing(mapping(reply.json()).get("Events"))
    except ReplyError as error:
        return unknown(f"scheduledevents: {error}")
    by_id: dict[str, TerminationNotice] = {}
    problem = "" if len(items) <= _EVENTS_MOST else "scheduledevents: too many events"
    for item in items[:_EVENTS_MOST]:
        try:
            notice = _event(mapping(item), reply, at, own)
        except ReplyError as error:
            problem = f"scheduledevents: {error}"
        else:
            if notice is not None:
                by_id[notice.id] = notice
    return answer(tuple(by_id.values()), problem)


def _event(item: Mapping[str, Any], reply: Reply, at: Stamp, own: str) -> TerminationNotice | None:
    if not _names(item, own):
        return None
    kind, status = _kind_and_status(item)
    if status == _STARTED and not item.get("NotBefore"):
        deadline = at  # Azure announces failed hardware in this form
    else:
        deadline = reply.deadline(time_of(item, "NotBefore"), at)
    description = item.get("Description")
    text = f"{kind} {status}: {description}" if isinstance(description, str) and description else f"{kind} {status}"
    return TerminationNotice(
        source=NAME,
        kind=_KINDS.get(kind, Kind.MAINTENANCE),
        id=identity("events", text_of(item, "EventId")),
        hard=_HARD[kind],
        deadline=deadline,
        reason=clean(text, REASON_MOST),
        approval=_approval(item, own),
    )


def _kind_and_status(item: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the kind and the status of an event. Raises ReplyError."""
    return choice_of(item, "EventType", _HARD), choice_of(item, "EventStatus", ("Scheduled", _STARTED))


def _approval(item: Mapping[str, Any], own: str) -> Approval:
    kind, status = _kind_and_status(item)
    if status == _STARTED:
        return Approval.BEGUN
    if not _HARD[kind]:
        return Approval.NONE
    return Approval.ALONE if all(_is_own(name, own) for name in listing(item.get("Resources"))) else Approval.SHARED


def _names(item: Mapping[str, Any], own: str) -> bool:
    return any(_is_own(name, own) for name in listing(item.get("Resources")))


def _is_own(name: object, own: str) -> bool:
    """True if `name` is this machine's, in any case and with or without the `_` that old service versions prefix."""
    return isinstance(name, str) and bool(own) and name.removeprefix("_").casefold() == own.removeprefix("_").casefold()
