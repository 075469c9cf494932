"""What is asked of a Kubernetes API server: one node, the list of those we hold out, the size of the pool, two patches.

lightkube reads kubeconfig and service account and makes the authenticated client; the few requests are our own, since its
typed models would reject what a newer server may add, and cannot ask for a table instead of whole nodes.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Protocol, cast

from gpuwarden.actuators.base import ActuatorError, ActuatorRefused, ActuatorUnavailable
from gpuwarden.config_kubernetes import KubernetesOptions

Json = dict[str, Any]

MANAGER = "gpuwarden"
"""Whom the API server names in `managedFields` for what we write, with the server's own time."""
BODY_MOST = 16 << 20
"""Bytes. A node is at most some 100 kB, and a page has `PAGE` of them."""
PAGE = 50
ROWS = 500
PAGES_MOST = 1_000
_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
_MERGE = "application/merge-patch+json"
_STRATEGIC = "application/strategic-merge-patch+json"


class Conflict(ActuatorUnavailable):
    """Somebody else has written this node since it was read: read it again."""


class NotAccepted(ActuatorUnavailable):
    """Our token is not accepted. It is renewed under us, so that this is tried again; if it goes on, a person must mend it."""


@dataclass(frozen=True, slots=True)
class Reply:
    """`at`: the server's clock, in whole seconds of Unix time; ours if it does not say."""

    body: Json
    at: float


class Client(Protocol):
    """The part of httpx's AsyncClient that is used here."""

    def stream(self, method: str, url: str, **options: Any) -> Any: ...

    async def aclose(self) -> None: ...


_SAID: Mapping[int, tuple[type[ActuatorError], str]] = {
    401: (NotAccepted, "it does not accept our token, read anew: look whether it is still valid"),
    403: (ActuatorRefused, "our account may not: apply kubernetes/rbac.yaml"),
    404: (ActuatorRefused, "there is no such node: set kubernetes.node to the name that `kubectl get nodes` shows"),
    409: (Conflict, "somebody else wrote it in that moment"),
    422: (ActuatorRefused, "the server finds it invalid: is kubernetes.key a valid label and taint?"),
    429: (ActuatorUnavailable, "it is asked too often"),
}
"""By status: whose fault it is, and what to do."""


class KubernetesApi:
    """Each call has its own deadline and raises ActuatorError and nothing else. Made anew after any failure: what was mended
    in the kubeconfig, a new certificate, a new address is taken up by the next call.
    """

    def __init__(self, options: KubernetesOptions, clock: Any = time.time) -> None:
        self._options = options
        self._wall = clock
        self._client: Client | None = None

    async def node(self, name: str) -> Reply:
        return await self._ask(f"cannot read node {name}", "GET", f"/api/v1/nodes/{name}")

    async def patch_node(self, name: str, patch: Json) -> Reply:
        return await self._patch(f"cannot change node {name}", f"/api/v1/nodes/{name}", patch, _MERGE, MANAGER)

    async def patch_status(self, name: str, patch: Json) -> Reply:
        undone, url = f"cannot write the condition of node {name}", f"/api/v1/nodes/{name}/status"
        return await self._patch(undone, url, patch, _STRATEGIC, f"{MANAGER}-condition")

    async def labelled(self, key: str) -> tuple[list[Json], float]:
        """All nodes with a label of that key, and the server's clock."""
        nodes: list[Json] = []
        at = 0.0
        params: dict[str, str | int] = {"labelSelector": key, "limit": PAGE}
        for reply in await self._pages("cannot count who is held out", params, "application/json"):
            nodes += [item for item in _list(reply.body, "items") if isinstance(item, dict)]
            at = reply.at
        return nodes, at

    async def count(self, selector: str) -> int:
        """How many nodes match: asked for as a table without objects, since whole nodes would be 100 MB in a big cluster."""
        params: dict[str, str | int] = {"limit": ROWS, "includeObject": "None"}
        if selector:
            params["labelSelector"] = selector
        pages = await self._pages(f"cannot count the nodes with {selector!r}", params, _TABLE)
        return sum(len(_list(reply.body, "rows")) for reply in pages)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _pages(self, undone: str, params: dict[str, str | int], accept: str) -> list[Reply]:
        replies: list[Reply] = []
        for _ in range(PAGES_MOST):
            reply = await self._ask(undone, "GET", "/api/v1/nodes", params=params, headers={"Accept": accept})
            replies.append(reply)
            more = _mapping(reply.body.get("metadata")).get("continue")
            if not isinstance(more, str) or not more:
                return replies
            params = {**params, "continue": more}
        raise ActuatorUnavailable(f"{undone}: the list has no end")

    async def _patch(self, undone: str, url: str, patch: Json, kind: str, manager: str) -> Reply:
        return await self._ask(
            undone, "PATCH", url, params={"fieldManager": manager}, content=json.dumps(patch).encode(),
            headers={"Content-Type": kind},
        )  # fmt: skip

    async def _ask(self, undone: str, method: str, url: str, **request: Any) -> Reply:
        try:
            async with asyncio.timeout(self._options.timeout):
                return await self._reply(undone, method, url, **request)
        except (ActuatorUnavailable, ActuatorRefused) as error:
            if not isinstance(error, Conflict):
                await self.close()
            raise
        except TimeoutError:
            await self.close()
            raise ActuatorUnavailable(f"{undone}: no answer within {self._options.timeout:g} s") from None
        except (
            Exception
        ) as error:  # the library's own, of many kinds: TLS, sockets, broken replies, kubeconfig, plugins
            await self.close()
            raise ActuatorUnavailable(f"{undone}: {type(error).__name__}: {error}"[:400]) from error

    async def _reply(self, undone: str, method: str, url: str, **request: Any) -> Reply:
        if self._client is None:
            self._client = _client(self._options)
        async with self._client.stream(method, url, **request) as response:
            body = b""
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > BODY_MOST:
                    raise ActuatorUnavailable(f"{undone}: the answer is longer than {BODY_MOST >> 20} MiB")
            status, date = int(response.status_code), response.headers.get("date", "")
        content = _parsed(body)
        if not 200 <= status < 300:
            kind, advice = _SAID.get(status, (ActuatorUnavailable, "tried again"))
            said = content.get("message", "") if isinstance(content, dict) else ""
            raise kind(f"{undone}: the API server answers {status}, {advice}" + (f" ({said!s:.200})" if said else ""))
        if not isinstance(content, dict):
            raise ActuatorUnavailable(f"{undone}: the answer is no JSON object")
        return Reply(content, _date(date, self._wall()))


def _client(options: KubernetesOptions) -> Client:
    """Raises ActuatorError where the package or the kubeconfig is missing."""
    try:
        from lightkube.config.client_adapter import AsyncClient, ConnectionParams  # noqa: PLC0415 - 7 MB, only here
        from lightkube.config.kubeconfig import KubeConfig  # noqa: PLC0415
    except ImportError as error:
        raise ActuatorRefused(f"Kubernetes needs a package that is not here ({error}): pip install 'gpuwarden[kubernetes]'") from None  # fmt: skip
    try:
        if options.kubeconfig is not None:
            found = KubeConfig.from_file(options.kubeconfig).get(options.context or None)
        else:
            found = KubeConfig.from_service_account(options.service_account).get()
        if found is None or found.user is None:
            raise ValueError("its context names no user")  # noqa: TRY301 - as whatever else is wrong with it
        client = cast("Client", AsyncClient(found, ConnectionParams(trust_env=False)))
    except KeyError as error:
        raise ActuatorRefused(f"the Kubernetes configuration lacks {error}: set kubernetes.kubeconfig") from None
    except Exception as error:  # a file that another program wrote: YAML, certificates and types of any kind
        text = " ".join(str(error).split())
        raise ActuatorRefused(f"the Kubernetes configuration cannot be used: {text:.300}") from error
    return client


def _parsed(body: bytes) -> object:
    try:
        return json.loads(body)
    except ValueError:
        return None


def _mapping(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _list(body: Json, key: str) -> list[Any]:
    value = body.get(key)
    return value if isinstance(value, list) else []


def _date(text: str, otherwise: float) -> float:
    try:
        return parsedate_to_datetime(text).timestamp()
    except ValueError:
        return float(int(otherwise))
