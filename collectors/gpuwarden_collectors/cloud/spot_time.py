"""Parses an answer that consists of one time: Alibaba and Tencent announce the end of a spot instance like this."""

from __future__ import annotations

from gpuwarden_collectors.cloud.facts import NONE, Answer, Kind, TerminationNotice, answer, identity, unknown
from gpuwarden_collectors.cloud.reply import Reply, ReplyError
from gpuwarden_collectors.cloud.times import TimeError, parse_time
from gpuwarden_collectors.facts import Stamp


def spot_at(reply: Reply, at: Stamp, source: str, zone: float | None = None) -> Answer:
    """Parses the end of a spot machine; a status 404 or an empty answer means no notice.

    `zone` is the offset in seconds east of UTC of a time without a zone.
    """
    if reply.status == 404:
        return NONE
    try:
        reply.expect()
        text = reply.text()
        if not text:
            return NONE
        deadline = reply.deadline(parse_time(text, zone), at)
    except (ReplyError, TimeError) as error:
        return unknown(f"spot/termination-time: {error}")
    notice = TerminationNotice(
        source=source,
        kind=Kind.INTERRUPTION,
        id=identity("spot", "termination"),
        hard=True,
        deadline=deadline,
        reason="spot interruption",
    )
    return answer((notice,))
