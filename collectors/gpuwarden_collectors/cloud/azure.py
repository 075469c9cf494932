"""Azure Scheduled Events: of this machine alone, though the service tells of the whole set that it is in.

The first question switches the service on and may take two minutes. Approving an event would make it happen at once, for all
machines that it names: nothing is ever approved.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.cloud.facts import (
    REASON_MOST,
    Answer,
    Kind,
    TerminationNotice,
    answer,
    clean,
    identity,
    unknown,
)
from gpuwarden_collectors.cloud.metadata import Metadata, MetadataError
from gpuwarden_collectors.cloud.reply import Reply, ReplyError, listing, mapping, text_of, time_of, word_of
from gpuwarden_collectors.cloud.source import Question
from gpuwarden_collectors.facts import Stamp

NAME = "azure"
FIRST_WITHIN = 130.0
"""Seconds for the question that switches the service on."""
_EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
_OWN_NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
_HEADERS = {"Metadata": "true"}
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}", re.ASCII)
_HARD = {"Preempt": True, "Terminate": True, "Redeploy": True, "Reboot": True, "Freeze": False}
"""Kinds of events, and whether what runs here ends with them. A freeze lasts seconds."""
_KINDS = {"Preempt": Kind.INTERRUPTION, "Terminate": Kind.SCALE_IN}
_EVENTS_MOST = 256


class Azure:
    name = NAME

    def __init__(self, metadata: Metadata, clock: Clock, interval: float = 1.0, first: float = FIRST_WITHIN) -> None:
        self._metadata = metadata
        self._clock = clock
        self._own = ""
        self._on = False
        self._first = first
        self.questions: Sequence[Question] = (
            Question(name="events", kind=Kind.INTERRUPTION, ask=self._ask, interval=interval, hangs=first, main=True),
        )

    async def confirm(self) -> str:
        """The machine's own name is a fact of its cloud: the host's name may be any."""
        try:
            reply = await self._metadata.get(_OWN_NAME, _HEADERS)
            reply.expect()
            name = reply.text()
        except (MetadataError, ReplyError) as error:
            return f"the metadata service cannot be confirmed: {error}"
        if not _NAME.fullmatch(name):
            return "what answers at the endpoint names no virtual machine"
        self._own = name
        return ""

    async def _ask(self) -> Answer:
        try:
            reply = await self._metadata.get(_EVENTS, _HEADERS, within=None if self._on else self._first)
        except MetadataError as error:
            return unknown(str(error))
        said = events(reply, self._clock(), self._own)
        self._on = self._on or reply.status == 200
        return said

    async def close(self) -> None:
        await self._metadata.close()


def events(reply: Reply, at: Stamp, own: str) -> Answer:
    """`own`: the machine's name at its cloud. Every event for itself."""
    try:
        reply.expect()
        items = listing(mapping(reply.json()).get("Events"))
    except ReplyError as error:
        return unknown(f"scheduledevents: {error}")
    found: dict[str, TerminationNotice] = {}
    trouble = "" if len(items) <= _EVENTS_MOST else "scheduledevents: too many events"
    for item in items[:_EVENTS_MOST]:
        try:
            notice = _event(mapping(item), reply, at, own)
        except ReplyError as error:
            trouble = f"scheduledevents: {error}"
        else:
            if notice is not None:
                found[notice.id] = notice
    return answer(tuple(found.values()), trouble)


def _event(item: Mapping[str, Any], reply: Reply, at: Stamp, own: str) -> TerminationNotice | None:
    if not any(_is_own(name, own) for name in listing(item.get("Resources"))):
        return None
    kind, status = word_of(item, "EventType", _HARD), word_of(item, "EventStatus", ("Scheduled", "Started"))
    if status == "Started" and not item.get("NotBefore"):
        deadline = at  # a failure of the hardware begins so
    else:
        deadline = reply.deadline(time_of(item, "NotBefore"), at)
    description = item.get("Description")
    text = f"{kind} {status}: {description}" if isinstance(description, str) and description else f"{kind} {status}"
    return TerminationNotice(
        source=NAME, kind=_KINDS.get(kind, Kind.MAINTENANCE), id=identity("events", text_of(item, "EventId")),
        hard=_HARD[kind], deadline=deadline, reason=clean(text, REASON_MOST),
    )  # fmt: skip


def _is_own(name: object, own: str) -> bool:
    """In any case, and with the _ that old versions of the service put in front."""
    return isinstance(name, str) and bool(own) and name.removeprefix("_").casefold() == own.removeprefix("_").casefold()
