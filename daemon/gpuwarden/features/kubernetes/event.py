"""The event of an exclusion or restoration. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from gpuwarden.features.kubernetes.api import EVENTS, Json, mapping
from gpuwarden.policy.model import Act, Intent

_NAME_MOST = 200  # characters of a node's name in an event's, which has at most 253
_MESSAGE_MOST = 1_000  # characters; the server takes 1,024


def event(node: Json, name: str, intent: Intent, wall: float) -> Json:
    """Return the event of a write, as `kubectl describe node` shows it: under the node's uid."""
    excluded = intent.act is Act.EXCLUDE
    at = datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    text = intent.reason if excluded else f"restored: {intent.reason}".rstrip(": ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{name[:_NAME_MOST]}.gpuwarden-", "namespace": EVENTS},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Node",
            "name": name,
            "uid": mapping(node.get("metadata")).get("uid", ""),
        },
        "reason": "GpuwardenExcluded" if excluded else "GpuwardenRestored",
        "message": text[:_MESSAGE_MOST],
        "type": "Warning" if excluded else "Normal",
        "source": {"component": "gpuwarden", "host": name},
        "reportingComponent": "gpuwarden",
        "reportingInstance": name,
        "action": "Exclude" if excluded else "Restore",
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
