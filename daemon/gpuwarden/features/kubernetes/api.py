"""The requests to a Kubernetes API server: one node, the nodes excluded by gpuwarden, the size of the pool, two patches.

lightkube's typed models are not used: they would reject what a newer server may add, and cannot request a table instead
of whole nodes. Every list without a `resourceVersion` is a consistent read, and its further pages are of the same
moment.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from gpuwarden.actuators.base import (
    ActuatorDenied,
    ActuatorError,
    ActuatorOverloaded,
    ActuatorRefused,
    ActuatorUnavailable,
)
from gpuwarden.base.json_text import parsed
from gpuwarden.features.kubernetes.connection import Connection
from gpuwarden.features.kubernetes.options import KubernetesOptions
from gpuwarden_collectors.dataclass import dataclass

Json = dict[str, Any]

MANAGER = "gpuwarden"
"""The field manager that the API server records in `managedFields` for gpuwarden's writes, with the server's own time."""
CONDITION_MANAGER = f"{MANAGER}-condition"
MOVER = f"{MANAGER}-move"
"""Field manager of a write that is no new exclusion: the time of `MANAGER`'s write ranks the nodes of a pool."""
EVENTS = "default"
"""The namespace of events about nodes, which have none themselves: all programs write and read them there."""
BODY_MOST = 16 << 20
"""Bytes. A node is at most some 100 kB, and a page has `PAGE` of them."""
PAGE = 20
"""Whole nodes per page: some 500 kB, which take 5 ms to read. Parsing JSON blocks the event loop."""
ROWS = 500
PAGES_MOST = 1_000
_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
_METADATA = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
_MERGE = "application/merge-patch+json"
_JSON = "application/json-patch+json"
_STRATEGIC = "application/strategic-merge-patch+json"


class Conflict(ActuatorUnavailable):
    """Another client has written this node since it was read: read it again."""


class NotAccepted(ActuatorUnavailable):
    """The token is not accepted. It may be renewed in its file, so that this is tried again; if it lasts, an operator must correct it."""


class NoSuchNode(ActuatorUnavailable):
    """The node is not registered. A kubelet registers it some time after the boot, and again after it was deleted:
    tried again soon.
    """


class Busy(ActuatorUnavailable):
    """The server refuses the request for now."""


class TooManyRequests(Busy, ActuatorOverloaded):
    """The server refuses requests of many clients for now."""


_ALIVE = (Conflict, NoSuchNode, Busy)
"""Responses after which the connection is kept: an overloaded server need not shake hands again."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer of the server. `at`: the server's clock, in whole seconds of Unix time; this host's if the server gives
    none.
    """

    body: Json
    at: float


_REJECTED = (
    "it does not accept the token, which was read again: it has expired, or the Node or pod to which it is bound was deleted, even if made again"
    " since: write a new one"
)
_ADVICE: Mapping[int, tuple[type[ActuatorError], str]] = {
    400: (ActuatorRefused, "it cannot parse the request: is kubernetes.pool a valid label selector?"),
    401: (NotAccepted, _REJECTED),
    403: (ActuatorRefused, "the account has no permission: apply kubernetes/rbac.yaml"),
    404: (NoSuchNode, "there is no such node: set kubernetes.node to the name that `kubectl get nodes` shows"),
    409: (Conflict, "another client wrote it at the same time"),
    410: (Busy, "the list is too old to be continued, and is read again from its start"),
    422: (ActuatorRefused, "the server finds it invalid: is kubernetes.key a valid label and taint?"),
    429: (TooManyRequests, "it has too many requests"),
}
"""Errors by status, with what to do."""
_ADMISSION: tuple[tuple[str, str], ...] = (
    ("gpuwarden may change the node", "the token is bound to another node: give this one its own"),
    (
        "gpuwarden may change only",
        "kubernetes.key, or an earlier one whose taint is left, is not in rbac.keys of the chart; or the policy is old: apply kubernetes/rbac.yaml",
    ),
    ("ValidatingAdmissionPolicy", "an admission policy of the cluster refuses it: except gpuwarden's account from it"),
    ("admission webhook", "an admission webhook of the cluster refuses it: except gpuwarden's account from it"),
    ("denied the request", "an admission rule of the cluster refuses it: except gpuwarden's account from it"),
)
"""Parts of the server's message if admission refuses, whatever the status, with what to do; the first two are messages
of gpuwarden's own policy."""


class KubernetesApi:
    """Requests to the API server. Each has its own deadline and raises only ActuatorError. The connection is made again
    after a failure: a corrected kubeconfig, a new certificate or address takes effect with the next call.
    """

    def __init__(self, options: KubernetesOptions, clock: Any = time.time) -> None:
        self._options = options
        self._wall = clock
        self._connection = Connection(options)

    async def node(self, name: str) -> Reply:
        return await self._request(f"cannot read node {name}", "GET", f"/api/v1/nodes/{name}")

    async def patch_node(
        self, name: str, patch: Json | list[Json], manager: str = MANAGER, *, dry: bool = False
    ) -> Reply:
        """Send a merge patch, or as a list a JSON patch. `dry`: the server checks the write, admission included, and stores nothing."""
        kind = _JSON if isinstance(patch, list) else _MERGE
        return await self._patch(f"cannot change node {name}", f"/api/v1/nodes/{name}", patch, kind, manager, dry=dry)

    async def patch_status(self, name: str, patch: Json, *, dry: bool = False) -> Reply:
        undone, url = f"cannot write the condition of node {name}", f"/api/v1/nodes/{name}/status"
        return await self._patch(undone, url, patch, _STRATEGIC, CONDITION_MANAGER, dry=dry)

    async def create_event(self, event: Json) -> None:
        await self._post("cannot write the event", f"/api/v1/namespaces/{EVENTS}/events", event)

    async def labelled(self, key: str) -> AsyncIterator[tuple[list[Json], float]]:
        """Yield all nodes with a label of that key, page by page, and the server's clock."""
        params: dict[str, str | int] = {"labelSelector": key, "limit": PAGE}
        async for reply in self._pages("cannot count the excluded nodes", params, "application/json"):
            yield objects(reply.body.get("items")), reply.at

    async def count(self, selector: str, name: str = "") -> int:
        """Count the nodes that match, of all or of those with that name. The list is requested as a table without
        objects, since whole nodes would be 100 MB in a big cluster.
        """
        params: dict[str, str | int] = {"limit": ROWS, "includeObject": "None"}
        if selector:
            params["labelSelector"] = selector
        if name:
            params["fieldSelector"] = f"metadata.name={name}"
        pages = self._pages(f"cannot count the nodes with {selector!r}", params, _TABLE)
        return sum([len(objects(reply.body.get("rows"))) async for reply in pages])

    async def total(self) -> int | None:
        """Return about how many nodes there are, by one small request; None if the server gives no number."""
        accept = {"Accept": _METADATA}
        reply = await self._request(
            "cannot count the nodes", "GET", "/api/v1/nodes", params={"limit": 1}, headers=accept
        )
        metadata = mapping(reply.body.get("metadata"))
        rest: object = metadata.get("remainingItemCount") if metadata.get("continue") else 0
        return len(objects(reply.body.get("items"))) + rest if isinstance(rest, int) else None

    async def review(self, group: str, kind: str, spec: Json) -> Json:
        """Request the server's review of the own account's permissions; it stores nothing."""
        url = f"/apis/{group}/v1/{kind.lower()}s"
        body = {"apiVersion": f"{group}/v1", "kind": kind, "spec": spec}
        reply = await self._post("cannot read the account's permissions", url, body)
        return mapping(reply.body.get("status"))

    async def close(self) -> None:
        await self._connection.drop()

    async def _pages(self, undone: str, params: dict[str, str | int], accept: str) -> AsyncIterator[Reply]:
        for _ in range(PAGES_MOST):
            reply = await self._request(undone, "GET", "/api/v1/nodes", params=params, headers={"Accept": accept})
            yield reply
            more = mapping(reply.body.get("metadata")).get("continue")
            if not isinstance(more, str) or not more:
                return
            params = {**params, "continue": more}
        raise ActuatorUnavailable(f"{undone}: the list has no end")

    async def _post(self, undone: str, url: str, body: Json) -> Reply:
        return await self._request(
            undone, "POST", url, content=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
        )

    async def _patch(
        self, undone: str, url: str, patch: Json | list[Json], kind: str, manager: str, *, dry: bool
    ) -> Reply:
        params = {"fieldManager": manager, **({"dryRun": "All"} if dry else {})}
        return await self._request(
            undone, "PATCH", url, params=params, content=json.dumps(patch).encode(), headers={"Content-Type": kind}
        )

    async def _request(self, undone: str, method: str, url: str, **request: Any) -> Reply:
        try:
            async with asyncio.timeout(self._options.timeout):
                return await self._reply(undone, method, url, **request)
        except (ActuatorUnavailable, ActuatorRefused) as error:
            if not isinstance(error, _ALIVE):
                await self.close()
            raise
        except TimeoutError:
            await self.close()
            raise ActuatorUnavailable(f"{undone}: no response within {self._options.timeout:g} s") from None
        except Exception as error:  # noqa: BLE001 - the library's own, of many kinds: TLS, sockets, broken replies
            await self.close()
            raise ActuatorUnavailable(f"{undone}: {_why(error)}") from None

    async def _reply(self, undone: str, method: str, url: str, **request: Any) -> Reply:
        body = bytearray()
        async with self._connection.client() as client, client.stream(method, url, **request) as response:
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > BODY_MOST:
                    raise ActuatorUnavailable(f"{undone}: the response is longer than {BODY_MOST >> 20} MiB")
            status, date = int(response.status_code), response.headers.get("date", "")
        content = parsed(body)
        if not 200 <= status < 300:
            message = " ".join(str(content.get("message", "")).split()) if isinstance(content, dict) else ""
            kind, advice = _cause(status, message)
            raise kind(
                f"{undone}: the API server answers {status}, {advice}" + (f" ({message:.200})" if message else "")
            )
        if not isinstance(content, dict):
            raise ActuatorUnavailable(f"{undone}: the response is not a JSON object")
        return Reply(content, _date(date, self._wall()))


def _cause(status: int, message: str) -> tuple[type[ActuatorError], str]:
    if 400 <= status < 500 and status not in _PASSING:
        for words, advice in _ADMISSION:
            if words in message:
                return ActuatorDenied, advice
    return _ADVICE.get(status, (Busy, "tried again"))


_PASSING = (401, 404, 409, 410, 429)


def _why(error: Exception) -> str:
    """Return the text of an error. It never quotes a header: one that cannot be sent contains the token."""
    name = type(error).__name__
    if name == "LocalProtocolError":
        return "the token has characters that no header may have: check the file that holds it"
    return f"{name}: {' '.join(str(error).split())}"[:400]


def mapping(value: object) -> Json:
    """Return the value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def objects(value: object) -> list[Json]:
    """Return the items of a list that are objects; none if it is not a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _date(text: str, otherwise: float) -> float:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return float(int(otherwise))
