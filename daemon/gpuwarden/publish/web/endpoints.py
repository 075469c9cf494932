"""The pages of the web server, one row each, for the index and docs/reference/endpoints.md."""

from __future__ import annotations

from gpuwarden_collectors.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Endpoint:
    path: str
    about: str
    """Description for the index, in a few words."""
    answer: str
    """Status codes and content."""
    query: str = ""


ENDPOINTS = (
    Endpoint("/", "the verdict, GPUs and findings for a browser; else the list of these pages",
             "200; HTML where the client accepts it, else text"),
    Endpoint("/metrics", "Prometheus text or OpenMetrics",
             "200; 503 if the daemon answers but no longer judges. Compressed with gzip if the client accepts it"),
    Endpoint("/heartbeat", "200 while this node may take work, else 503",
             "the same JSON with both codes: `status`, `schedulable`, `reasons`, and `sequence`, which grows with each pass that observed"),
    Endpoint("/healthz", "the daemon runs", "200, whatever the health of the node: for a liveness probe"),
    Endpoint("/readyz", "the first full pass is done", "200, before that 503"),
    Endpoint("/-/healthy", "the same as /healthz, by Prometheus' name", "as `/healthz`"),
    Endpoint("/-/ready", "the same as /readyz, by Prometheus' name", "as `/readyz`"),
    Endpoint("/v1/status", "everything, as JSON", "200"),
    Endpoint("/v1/gpus", "GPUs", '200; `{"gpus": […]}`'),
    Endpoint("/v1/findings", "findings", '200; `{"findings": […]}`'),
    Endpoint("/v1/events", "events since a time: RFC 3339 or Unix",
             "200; the oldest 1,000 since then, and `truncated` if there are more; 400 for an invalid time, 504 if the ledger does not respond", "?since=TIME"),
    Endpoint("/v1/notice", "the end of this machine; waits until one is imminent, or with tag=ETAG until it changes",
             "200, with an ETag; 400 for a wait beyond 60 s, 503 while too many clients wait", "?wait=S"),
)  # fmt: skip


def listing() -> str:
    """Return the rows of the index."""
    return "".join(f"{e.path + e.query:<24}{e.about}\n" for e in ENDPOINTS if e.path != "/")
