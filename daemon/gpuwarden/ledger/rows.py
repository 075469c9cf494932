"""Events and the other content of the ledger, as values and as rows.

Every row can be written: text is valid UTF-8 and bounded, data is JSON. When a row is read, data that is not a JSON
object becomes empty; other values of a wrong type are errors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from gpuwarden.health.model import Event, Evidence, Json, Key, Subject
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.event_facts import LogPosition
from gpuwarden_collectors.facts import Stamp

_TEXT_MAX = 2_000  # characters of one text; a kernel log record holds at most 1,024 bytes of text
_FIELDS_MAX = 64

Row = tuple[str, str, float, float, str, str, str, str]
"""kind, boot_id, boottime, wall, code, subject, detail, data: the columns of `events` and `checkpoint`."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event in the ledger; `id` grows with every event and is never reused."""

    id: int
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The ledger's content for this machine. `begun`: the ledger, or this machine's era, was just created.

    `events`: the last checkpoint and all later events, which give the state if folded in order. `position`: None until
    a kernel log record was recorded.
    """

    events: tuple[Event, ...] = ()
    position: LogPosition | None = None
    begun: bool = True


def row_of(event: Event) -> Row:
    key = event.key
    code, subject, detail = (key.code, str(key.subject), key.detail) if key else ("", "", "")
    times, about = (_finite(event.at.boottime), _finite(event.at.wall)), (_text(code), _text(subject), _text(detail))
    return (_text(event.kind), _text(event.boot_id), *times, *about, _data(event.data))


def event_of(row: Row) -> Event:
    """Return the event of a row. Raises ValueError for values of other types than were written: SQLite accepts any
    value.
    """
    kind, boot_id, boottime, wall, code, subject, detail, data = row
    texts = all(isinstance(text, str) for text in (kind, boot_id, code, subject, detail))
    if not texts or not all(isinstance(time, float) and math.isfinite(time) for time in (boottime, wall)):
        raise ValueError(f"an event of kind {str(kind)[:40]!r} has values of other types than were written")
    key = Key(code, Subject.parse(subject), detail) if code else None
    return Event(kind=kind, at=Stamp(boottime, wall), boot_id=boot_id, key=key, data=_evidence(data))


def _text(text: object) -> str:
    return str(text)[:_TEXT_MAX].encode("utf-8", "backslashreplace").decode()


def _finite(seconds: float) -> float:
    return seconds if math.isfinite(seconds) else 0.0


def _json(value: object) -> Json:
    return value if value is None or isinstance(value, bool | int | float) else _text(value)


def _data(evidence: Mapping[str, object]) -> str:
    fields = list(evidence.items())[:_FIELDS_MAX]
    return json.dumps({_text(name): _json(value) for name, value in fields}, separators=(",", ":"))


def _evidence(data: object) -> Evidence:
    try:
        value = json.loads(str(data))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
