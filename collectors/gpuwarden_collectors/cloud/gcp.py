"""Compute Engine: preemption and host maintenance. A hanging GET watches each metadata key.

The first request for a key does not wait: otherwise a value set before it would arrive a minute late.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.cloud.facts import (
    NONE,
    REASON_MOST,
    Answer,
    AnswerKind,
    Kind,
    TerminationNotice,
    answer,
    clean,
    identity,
    unknown,
)
from gpuwarden_collectors.cloud.metadata import Metadata, MetadataError
from gpuwarden_collectors.cloud.reply import Reply, ReplyError, choice_of, mapping, time_of
from gpuwarden_collectors.cloud.source import Question
from gpuwarden_collectors.facts import Stamp

NAME = "gcp"
WAIT = 60
"""Seconds for which the server holds a hanging GET open (`timeout_sec`); the client allows `_SLACK` more."""
_SLACK = 10.0
_BASE = "/computeMetadata/v1/instance/"
_FLAVOR = {"Metadata-Flavor": "Google"}
_ETAG = re.compile(r"[A-Za-z0-9_.:+/=-]{1,128}", re.ASCII)
_READ_AGAIN = 3
"""Requests without waiting after a notice disappears, so that its withdrawal is confirmed within seconds."""
PREEMPTED_WITHIN = 30.0
"""Seconds; preemptionNoticeDuration adds 120, but the metadata does not show whether it is set."""
TERMINATED_WITHIN = 3_600.0
MIGRATED_WITHIN = 60.0
_TYPE = re.compile(r"projects/[0-9]{1,32}/machineTypes/([a-z0-9-]{1,64})", re.ASCII)
_STARTS = ("window_start_time", "windowStartTime", "startTime")
_STATUS = ("maintenance_status", "maintenanceStatus")

Read = Callable[[Reply, Stamp], Answer]


class Gcp:
    name = NAME

    def __init__(self, metadata: Metadata, clock: Clock, interval: float = 1.0) -> None:
        self._metadata = metadata
        self.machine_type = ""
        """`Google/` and the type of this machine, once it is known."""

        def question(
            name: str, kind: Kind, path: str, read: Read, seconds: float, *, main: bool = False, hang: bool = True
        ) -> Question:
            ask = Key(metadata, path, read, clock, hang=hang).ask
            hangs = WAIT + _SLACK if hang else 0.0
            return Question(name=name, kind=kind, ask=ask, interval=seconds, hangs=hangs, main=main)

        self.questions: Sequence[Question] = (
            question("preempted", Kind.INTERRUPTION, "preempted", preempted, interval, main=True),
            question("maintenance-event", Kind.MAINTENANCE, "maintenance-event", maintenance_event, interval),
            question("upcoming", Kind.MAINTENANCE, "upcoming-maintenance?alt=json", upcoming, 60.0, hang=False),
        )

    async def confirm(self) -> str:
        try:
            reply = await self._metadata.get(f"{_BASE}id", _FLAVOR)
            _expect_google(reply)
            if not reply.text().isdigit():
                return "what answers at the endpoint names no Compute Engine instance"
        except (MetadataError, ReplyError) as error:
            return f"the metadata server cannot be confirmed: {error}"
        self.machine_type = await own_type(self._metadata)
        return ""

    async def close(self) -> None:
        await self._metadata.close()


async def own_type(metadata: Metadata) -> str:
    """Returns the machine's type, as in `Google/a3-highgpu-8g`.

    Returns "" if the server does not report it: termination notices do not depend on it.
    """
    try:
        reply = await metadata.get(f"{_BASE}machine-type", _FLAVOR)
        _expect_google(reply)
        match = _TYPE.fullmatch(reply.text())
    except (MetadataError, ReplyError):
        return ""
    return f"Google/{match[1]}" if match else ""


class Key:
    """One metadata key, polled with a hanging GET, or with a plain GET if `hang` is False."""

    def __init__(self, metadata: Metadata, path: str, read: Read, clock: Clock, *, hang: bool) -> None:
        self._metadata = metadata
        self._path = path
        self._read = read
        self._clock = clock
        self._hang = hang
        self._etag = ""  # ETag of the last good answer; without one the next request does not wait
        self._noticed = False
        self._plain = 0

    async def ask(self) -> Answer:
        waits = self._hang and bool(self._etag) and not self._plain
        query = f"?wait_for_change=true&timeout_sec={WAIT}&last_etag={self._etag}" if waits else ""
        try:
            reply = await self._metadata.get(
                _BASE + self._path + query, _FLAVOR, within=WAIT + _SLACK if waits else None
            )
        except MetadataError as error:
            self._etag = ""  # the next request does not wait
            return unknown(str(error))
        parsed = self._read(reply, self._clock())
        self._remember(reply, parsed)
        return parsed

    def _remember(self, reply: Reply, parsed: Answer) -> None:
        if parsed.kind is AnswerKind.UNKNOWN:
            self._etag = ""
            return
        etag = reply.headers.get("etag", "")
        self._etag = etag if _ETAG.fullmatch(etag) else ""
        if self._noticed and parsed.kind is AnswerKind.NONE:
            self._plain = _READ_AGAIN
        self._plain = max(0, self._plain - 1)
        self._noticed = parsed.kind is AnswerKind.NOTICE


def _expect_google(reply: Reply) -> None:
    """Raises ReplyError if the reply is an error, or comes from another server, such as a proxy or a captive portal."""
    reply.expect()
    if reply.headers.get("metadata-flavor") != "Google":
        raise ReplyError("the answer lacks Metadata-Flavor: Google")


def preempted(reply: Reply, at: Stamp) -> Answer:
    try:
        _expect_google(reply)
        value = reply.text()
    except ReplyError as error:
        return unknown(f"preempted: {error}")
    if value == "FALSE":
        return NONE
    if value != "TRUE":
        return unknown(f"preempted: {value[:40]!r}")
    return answer((_after(PREEMPTED_WITHIN, at, Kind.INTERRUPTION, identity("preempted", "TRUE"), "preempted"),))


def maintenance_event(reply: Reply, at: Stamp) -> Answer:
    try:
        _expect_google(reply)
        value = reply.text()
    except ReplyError as error:
        return unknown(f"maintenance-event: {error}")
    name = identity("maintenance-event", value)
    match value:
        case "NONE":
            return NONE
        case "MIGRATE_ON_HOST_MAINTENANCE":
            return answer((_after(MIGRATED_WITHIN, at, Kind.MAINTENANCE, name, value, hard=False),))
        case "TERMINATE_ON_HOST_MAINTENANCE":
            return answer((_after(TERMINATED_WITHIN, at, Kind.MAINTENANCE, name, value),))
    return unknown(f"maintenance-event: {value[:40]!r}")


def _after(seconds: float, at: Stamp, kind: Kind, name: str, reason: str, *, hard: bool = True) -> TerminationNotice:
    deadline = Stamp(at.boottime + seconds, at.wall + seconds)
    return TerminationNotice(
        source=NAME, kind=kind, id=name, hard=hard, deadline=deadline, estimated=True, reason=reason
    )


def upcoming(reply: Reply, at: Stamp) -> Answer:
    """Parses upcoming maintenance. Machine types without it answer 404. The keys exist in two spellings."""
    try:
        _expect_google(reply)
        document = "NONE" if reply.body.strip() == b"NONE" else reply.json()
        if document == "NONE":
            return NONE
        document = mapping(document)
        key = next((key for key in _STATUS if key in document), "")
        if key:
            choice_of(document, key, ("PENDING", "ONGOING"))
        start = time_of(document, next((key for key in _STARTS if key in document), _STARTS[0]))
        deadline = reply.deadline(start, at, past_most=30 * 86_400.0)  # a window lasts for a while
    except ReplyError as error:
        return unknown(f"upcoming-maintenance: {error}")
    details = ", ".join(f"{key}={value}" for key, value in document.items() if isinstance(value, str))
    return answer(
        (
            TerminationNotice(
                source=NAME,
                kind=Kind.MAINTENANCE,
                id=identity("upcoming", "maintenance"),
                hard=True,
                deadline=deadline,
                reason=clean(f"host maintenance {details}", REASON_MOST),
            ),
        )
    )
