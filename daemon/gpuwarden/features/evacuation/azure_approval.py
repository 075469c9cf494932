"""Approves an event of this machine in Azure, so that it begins now instead of at its NotBefore.

The events are read again right before. An event that was withdrawn, has begun or now names another machine is not
approved, because an approval is for all machines that it names. Repeating an approval is harmless.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from gpuwarden.policy.model import Result
from gpuwarden_collectors.cloud.azure import EVENTS, HEADERS, own_events, own_name
from gpuwarden_collectors.cloud.facts import Approval
from gpuwarden_collectors.cloud.metadata import Metadata, MetadataError
from gpuwarden_collectors.cloud.reply import ReplyError

GONE = "it is no longer announced"
_REFUSED = "the service refused the approval: status {status} (400: invalid, 429: too many requests)"


class AzureApproval:
    """Client that approves events. Keeps no state but the connection."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    async def approve(self, id: str, goes_on: Callable[[], bool]) -> tuple[Result, str]:  # noqa: A002 - the notice's
        """Approve an event. `goes_on`: whether it is still needed. Returns the result, and why, for people. Raises
        nothing; an approval that timed out may have been accepted.
        """
        try:
            return await self._approve(id, goes_on)
        except (MetadataError, ReplyError) as error:
            return Result.RETRY, str(error)

    async def close(self) -> None:
        await self._metadata.close()

    async def _approve(self, id: str, goes_on: Callable[[], bool]) -> tuple[Result, str]:  # noqa: A002
        own = await own_name(self._metadata)
        events = [event for event in own_events(await self._metadata.get(EVENTS, HEADERS), own) if event.id == id]
        approvals = {event.approval for event in events}
        if not events or not goes_on():
            return Result.DROPPED, "cancelled in the meantime" if events else GONE
        if approvals == {Approval.BEGUN}:
            return Result.ALREADY, "it has begun"
        if approvals != {Approval.ALONE}:
            return Result.REFUSED, "other machines would end with this one"
        return await self._post(events[0].event_id)

    async def _post(self, event_id: str) -> tuple[Result, str]:
        body = json.dumps({"StartRequests": [{"EventId": event_id}]}).encode()
        headers = {**HEADERS, "Content-Type": "application/json"}
        reply = await self._metadata.ask("POST", EVENTS, headers, body=body)
        if reply.status != 200:
            return Result.RETRY, _REFUSED.format(status=reply.status)
        return Result.DONE, "this machine ends now, before its deadline"
