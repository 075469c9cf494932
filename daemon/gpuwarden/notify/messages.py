"""Notifications: one JSON object for each event that an operator may want to act on.

    {"format":1,"id":"…","node":"n1","mode":"observe","boot_id":"…","at":"2026-03-01T12:00:00.000Z","event":"raised",
     "group":"finding","subject":"finding/xid.79@gpu/0000:1b:00.0","finding":"xid.79@gpu/0000:1b:00.0",
     "title":"…","to_do":"…","runbook":"https://…","data":{…}}

`id` is the same for every delivery attempt, including a resend after a restart. The last message of a `subject` is its
current state. Only `raised` has title, to_do and runbook; exclusions for a failure and restorations have `repair`
(`repair.py`). `"observed":true` in the data of `intended` marks what enforce mode would have done.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping

from gpuwarden.config.notify import Group
from gpuwarden.features import parts
from gpuwarden.health.bookkeeping import OF_FINDINGS, OF_GATES
from gpuwarden.health.conditions import condition
from gpuwarden.health.model import Event, EventKind, Evidence, Json, Key
from gpuwarden.health.runbooks import RUNBOOKS, address
from gpuwarden.health.to_do import of_raised
from gpuwarden.notify.grouping import ACTIVE
from gpuwarden.notify.queue import Message
from gpuwarden.publish.times import rfc3339
from gpuwarden_collectors.dataclass import dataclass

FORMAT = 1
_OF_FEATURES: Mapping[str, tuple[Group, Callable[[Event], Evidence | None]]] = {
    kind: row for feature in parts("events").values() for kind, row in feature.NOTIFIED.items()
}
GROUPS: dict[str, Group] = {
    EventKind.HEALTH: "health",
    EventKind.RAISED: "finding",
    EventKind.CLEARED: "finding",
    EventKind.ACKNOWLEDGED: "finding",
    ACTIVE: "finding",
    EventKind.INTENDED: "exclusion",
    EventKind.OUTCOME: "exclusion",
    EventKind.EXCLUDED: "exclusion",
    EventKind.RESTORED: "exclusion",
    EventKind.LIFTED: "exclusion",
    EventKind.ORDERED: "exclusion",
    EventKind.GATE_ENDED: "exclusion",
    EventKind.NOTICED: "termination",
    EventKind.NOTICE_ENDED: "termination",
    **{kind: group for kind, (group, _) in _OF_FEATURES.items()},
}
"""The groups of the notified kinds of events; other kinds are not notified."""
_ABOUT_INTENTS = (EventKind.INTENDED, EventKind.OUTCOME)
_OWN_SUBJECTS: Mapping[str, str] = {
    EventKind.GATE_ENDED: "exclusion/gate",
    EventKind.REPAIR_BEGUN: "exclusion/repair",
    EventKind.REPAIR_ENDED: "exclusion/repair",
}
"""Subjects of exclusion events that name no actuator."""
_HIDDEN = (*OF_GATES, *OF_FINDINGS, "overridden")
_FIELDS_MOST = 32
_TEXT_MOST = 400  # characters, so that a message has at most about 16 KiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The daemon that sends the messages."""

    node: str
    """Name of the node."""
    mode: str
    """`observe` or `enforce`."""
    boot_id: str
    """Boot id of the running kernel, for events without one."""
    runbooks: str = RUNBOOKS
    """URL of the folder with the runbooks."""


def message(
    event: Event, origin: Origin, *, names: bool = False, repair: Mapping[str, object] | None = None
) -> tuple[Group, Message] | None:
    """Build the message about an event; None if it is not notified.

    `names`: the message may contain names of users, jobs and pods. `repair`: the document of `repair.py`.
    """
    group = GROUPS.get(event.kind)
    if group is None or event.data.get("more") is True:
        return None
    data = _data(event, names=names)
    if data is None:
        return None
    subject = _subject(group, event)
    key = _id(event, subject, origin.node)
    document: dict[str, object] = {
        "format": FORMAT,
        "id": key,
        "node": origin.node,
        "mode": origin.mode,
        "boot_id": event.boot_id or origin.boot_id,
        "at": rfc3339(event.at.wall),
        "event": str(event.kind),
        "group": group,
        "subject": subject,
    }
    if event.key is not None and group != "job":
        document["finding"] = str(event.key)[:_TEXT_MOST]
        document |= _guidance(event, event.key, origin)
    document["data"] = data
    if repair is not None:
        document["repair"] = repair
    return group, Message(subject, key, json.dumps(document, separators=(",", ":")))


def _id(event: Event, subject: str, node: str) -> str:
    """Return the message's id.

    A finding's is made of first sighting, severity and advice: these survive a restart, its latest evidence does not.
    """
    if event.kind == EventKind.RAISED:
        of: list[object] = [event.data.get(name) for name in ("first_wall", "severity", "advice")]
    else:
        of = [event.at.wall, event.data]
    return hashlib.sha256(json.dumps([node, subject, event.kind, of]).encode()).hexdigest()[:32]


def _guidance(event: Event, key: Key, origin: Origin) -> dict[str, str]:
    """Return title, advice and runbook URL of a raised finding; {} for other events."""
    row = condition(key.code)
    if event.kind != EventKind.RAISED or row is None:
        return {}
    return {
        "title": row.title,
        "to_do": of_raised(key, event.data)[:_TEXT_MOST],
        "runbook": address(key.code, origin.runbooks),
    }


def _subject(group: Group, event: Event) -> str:
    """Intents and exclusions have separate subjects: a dropped intent is not the state of the node."""
    match group:
        case "finding":
            return "finding" if event.key is None else f"finding/{event.key}"[:_TEXT_MOST]
        case "exclusion":
            intent = "intent/" if event.kind in _ABOUT_INTENTS else ""
            if (own := _OWN_SUBJECTS.get(event.kind)) is not None:
                return own
            return f"exclusion/{intent}{_text(event, 'actuator') or 'operator'}"
        case "termination":
            return f"termination/{_text(event, 'source')}/{_text(event, 'id')}"
        case "job" if event.key is not None:
            return str(event.key.subject)[:_TEXT_MOST]
    return group


def _text(event: Event, name: str) -> str:
    return str(event.data.get(name, ""))[:_TEXT_MOST]


def _data(event: Event, *, names: bool) -> dict[str, Json] | None:
    """Return the event's data for the message; None if the event is not notified."""
    group, of_feature = _OF_FEATURES.get(event.kind, ("", _whole))
    if (details := of_feature(event)) is None or (group == "job" and not names):
        return None
    hidden = _HIDDEN if names else (*_HIDDEN, "pod")
    shown = [(name, value) for name, value in details.items() if name not in hidden][:_FIELDS_MOST]
    return {name[:_TEXT_MOST]: value[:_TEXT_MOST] if isinstance(value, str) else value for name, value in shown}


def _whole(event: Event) -> Evidence:
    return event.data
