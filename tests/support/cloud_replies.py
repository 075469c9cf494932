"""Answers of metadata services as values, for parsers that need no service."""

from __future__ import annotations

import json
from email.utils import formatdate
from typing import Any

from gpuwarden_collectors.cloud.facts import Answer, TerminationNotice
from gpuwarden_collectors.cloud.reply import Reply
from gpuwarden_collectors.facts import Stamp

NOW = 1_795_230_000.0
"""Sat, 21 Nov 2026 03:00:00 GMT by the clouds' clocks."""
HERE = Stamp(5_000.0, NOW)


def reply(body: Any = b"", status: int = 200, *, date: float | None = NOW, **headers: str) -> Reply:
    """`body` that is neither bytes nor text is written as JSON. `date` None: the reply has no time."""
    data = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()
    fields = {name.replace("_", "-").lower(): value for name, value in headers.items()}
    if date is not None:
        fields["date"] = formatdate(date, usegmt=True)
    return Reply(status, data, fields)


def google(body: Any, status: int = 200) -> Reply:
    return reply(body, status, metadata_flavor="Google")


def only(answer: Answer) -> TerminationNotice:
    assert len(answer.notices) == 1, answer
    return answer.notices[0]


def left(notice: TerminationNotice) -> float:
    """Seconds from HERE until its deadline."""
    assert notice.deadline is not None
    return notice.deadline.boottime - HERE.boottime
