"""The part of a Kubernetes API server that has to do with nodes, on loopback, by the documented schema of v1 (1.27 to 1.33).

Merge patches (RFC 7396) and strategic ones (conditions merge by type), `resourceVersion` and 409, `managedFields` with the
server's time, label selectors, pages, tables, Status objects for every error.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import yaml
from aiohttp import web

from support.loops import loop_in_thread

Json = dict[str, Any]
Fault = Callable[[web.Request], Awaitable[web.StreamResponse]]

TOKEN = "a-token"
BUILT_IN = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


def node(name: str, *, gpu: bool = True, taints: list[Json] | None = None, **labels: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": f"uid-of-{name}",
            "resourceVersion": "1",
            "labels": {"kubernetes.io/hostname": name, **({"nvidia.com/gpu.present": "true"} if gpu else {}), **labels},
            "annotations": {"node.alpha.kubernetes.io/ttl": "0"},
            "managedFields": [{"manager": "kubelet", "operation": "Update", "time": "2026-01-01T00:00:00Z"}],
        },
        "spec": {"podCIDR": "10.0.1.0/24", "taints": [dict(BUILT_IN)] if taints is None else taints},
        "status": {
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "KubeletReady",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
            ],
            "aFieldOfTomorrow": {"unknown": [1, None]},
        },
    }


class ApiServer:
    """async with ApiServer(node("n1")) as server: ...

    `faults` affect the next requests, one each; None lets one pass; `of_patch` to the next write. `requests`: method and
    path of each. `denied`: verbs of resources that our account may not, as it answers who asks; of these only new events are refused. `stored`: the
    nodes written; a write with dryRun=All is answered, and not stored.
    """

    def __init__(self, *nodes: Json, tls: ssl.SSLContext | None = None) -> None:
        self.nodes = {n["metadata"]["name"]: n for n in nodes}
        self.tokens = {TOKEN}
        self.faults: deque[Fault | None] = deque()
        self.always: Fault | None = None
        self.of_patch: Fault | None = None
        self.requests: list[tuple[str, str]] = []
        self.stored: list[str] = []
        self.events: list[Json] = []
        self.denied: set[tuple[str, str]] = set()
        self.account = "system:serviceaccount:kube-system:gpuwarden"
        self.before_patch: Callable[[], None] = lambda: None
        self.after_patch: Callable[[], object] = lambda: None
        self._tls = tls
        self._version = 1
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls)
        await site.start()
        port = self._runner.addresses[0][1]
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    def kubeconfig(self, folder: Path, *, token: str = TOKEN, **cluster: str) -> Path:
        """A kubeconfig with a token in a file of its own, as a host's service account has it."""
        (folder / "token").write_text(token)
        # Else each client reads all authorities there are.
        plain = {} if self._tls else {"insecure-skip-tls-verify": True}
        content = {
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": self.url, **plain, **cluster}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {"tokenFile": str(folder / "token")}}],
        }  # fmt: skip
        path = folder / "kubeconfig"
        path.write_text(yaml.safe_dump(content))
        return path

    @property
    def writes(self) -> list[tuple[str, str]]:
        return [request for request in self.requests if request[0] == "PATCH"]

    def edit(self, name: str, change: Callable[[Json], None]) -> None:
        """Change a node as somebody else would."""
        changed = copy.deepcopy(self.nodes[name])
        change(changed)
        self._store(name, changed, None, "")

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path))
        if request.method == "PATCH" and self.of_patch is not None:
            once, self.of_patch = self.of_patch, None
            return await once(request)
        fault = self.always or (self.faults.popleft() if self.faults else None)
        if fault is not None:
            return await fault(request)
        if request.headers.get("Authorization") not in {f"Bearer {token}" for token in self.tokens}:
            return status(401, "Unauthorized")
        if request.method == "POST" and request.path.endswith("/events"):
            return self._create_event(await request.json(), request.path.split("/")[4])
        if request.method == "POST":
            return self._review(request.path.rpartition("/")[2], await request.json())
        return await self._of_nodes(request)

    async def _of_nodes(self, request: web.Request) -> web.Response:
        parts = request.path.strip("/").split("/")[3:]
        if not parts:
            return self._list(request)
        if parts[0] not in self.nodes:
            return status(404, f'nodes "{parts[0]}" not found')
        if request.method == "PATCH":
            return self.take(parts[0], json.loads(await request.read()), request, "/".join(parts[1:]))
        return web.json_response(self.nodes[parts[0]])

    def _list(self, request: web.Request) -> web.Response:
        selector = request.query.get("labelSelector", "")
        if selector.count("(") != selector.count(")"):
            return status(400, "unable to parse requirement: found '', expected: ',', ')' or identifier")
        key, _, value = selector.partition("=")
        nodes = [
            n for n in self.nodes.values()
            if not key or (key in n["metadata"]["labels"] and value in ("", n["metadata"]["labels"][key]))
        ]  # fmt: skip
        name = request.query.get("fieldSelector", "").removeprefix("metadata.name=")
        nodes = [n for n in nodes if name in ("", n["metadata"]["name"])]
        start, limit = int(request.query.get("continue", "0")), int(request.query.get("limit", "0")) or len(nodes)
        page, rest = nodes[start : start + limit], nodes[start + limit :]
        metadata: Json = {"resourceVersion": str(self._version), **({"continue": str(start + limit)} if rest else {})}
        if rest and not key and not name:  # with a selector a server does not know
            metadata["remainingItemCount"] = len(rest)
        if "as=PartialObjectMetadataList" in request.headers.get("Accept", ""):
            items = [{"metadata": n["metadata"]} for n in page]
            return web.json_response({"kind": "PartialObjectMetadataList", "metadata": metadata, "items": items})
        if "as=Table" in request.headers.get("Accept", ""):
            assert request.query["includeObject"] == "None"
            rows = [
                {"cells": [n["metadata"]["name"], "Ready", "<none>", "3d", "v1.33.0"], "object": None} for n in page
            ]
            return web.json_response({"kind": "Table", "metadata": metadata, "columnDefinitions": [], "rows": rows})
        return web.json_response({"kind": "NodeList", "metadata": metadata, "items": page})

    def _create_event(self, event: Json, namespace: str) -> web.Response:
        """Store an event that the server would accept: its namespace is the object's, or `default`, and it has a name."""
        metadata = event["metadata"]
        if ("create", "events") in self.denied:
            return status(403, "events is forbidden: User cannot create resource")
        if metadata["namespace"] != namespace or namespace != "default" or event["involvedObject"].get("namespace"):
            return status(422, "involvedObject.namespace: Invalid value: does not match event.namespace")
        if len(event["message"]) > 1024 or not metadata.get("generateName"):
            return status(422, "Event is invalid")
        self.events.append(event)
        return web.json_response(event, status=201)

    def _review(self, kind: str, review: Json) -> web.Response:
        if kind == "selfsubjectreviews":
            return web.json_response({**review, "status": {"userInfo": {"username": self.account}}}, status=201)
        assert kind == "selfsubjectaccessreviews"
        asked = review["spec"]["resourceAttributes"]
        resource = "/".join(filter(None, (asked["resource"], asked.get("subresource", ""))))
        allowed = (asked["verb"], resource) not in self.denied
        return web.json_response({**review, "status": {"allowed": allowed}}, status=201)

    def take(self, name: str, patch: Json | list[Json], request: web.Request, subresource: str = "") -> web.Response:
        self.before_patch()
        current = self.nodes[name]
        if isinstance(patch, list):
            assert request.headers["Content-Type"] == "application/json-patch+json"
            changed = copy.deepcopy(current)
            if not all(_operate(changed, **operation) for operation in patch):
                return status(422, "the server rejected our request due to an error in our request")
            return self._patched(name, changed, request, subresource)
        version = patch.get("metadata", {}).get("resourceVersion")
        if version == "":
            return status(422, "metadata.resourceVersion: Invalid value: 0x0: must be specified for an update")
        if version not in (None, current["metadata"]["resourceVersion"]):
            return status(409, "the object has been modified; please apply your changes to the latest version")
        if any(len(str(v)) > 63 for v in patch.get("metadata", {}).get("labels", {}).values() if v is not None):
            return status(422, "metadata.labels: Invalid value")
        kind = request.headers["Content-Type"]
        if subresource == "status":
            assert kind == "application/strategic-merge-patch+json"
            assert set(patch) == {"status"}
            changed = copy.deepcopy(current)
            _merge_conditions(changed["status"]["conditions"], patch["status"]["conditions"])
        else:
            assert kind == "application/merge-patch+json"
            assert "status" not in patch
            changed = merged(current, patch)
        return self._patched(name, changed, request, subresource)

    def _patched(self, name: str, changed: Json, request: web.Request, subresource: str) -> web.Response:
        if request.query.get("dryRun") == "All":
            return web.json_response(changed)
        self._store(name, changed, request.query.get("fieldManager"), subresource)
        self.stored.append(name)
        self.after_patch()
        return web.json_response(self.nodes[name])

    def _store(self, name: str, changed: Json, manager: str | None, subresource: str) -> None:
        if changed == self.nodes[name]:
            return
        _disown(self.nodes[name], changed, manager)
        self._version += 1
        changed["metadata"]["resourceVersion"] = str(self._version)
        if manager:
            fields = changed["metadata"]["managedFields"]
            before: Json = next((f.get("fieldsV1", {}) for f in fields if f["manager"] == manager), {})
            fields[:] = [f for f in fields if (f["manager"], f.get("subresource", "")) != (manager, subresource)]
            entry: Json = {
                "manager": manager,
                "operation": "Update",
                "time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            }
            if subresource:
                entry |= {"subresource": subresource, "fieldsType": "FieldsV1"}
                entry["fieldsV1"] = _owned(self.nodes[name], changed, before)
            fields.append(entry)
        self.nodes[name] = changed


def _operate(target: Json, op: str, path: str, value: Any = None) -> bool:
    """Carry out an operation of RFC 6902 on objects. Returns False where it fails."""
    *parents, last = (part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:])
    for parent in parents:
        if not isinstance(target.get(parent), dict):
            return False
        target = target[parent]
    if op != "add" and last not in target:
        return False
    if op == "test":
        return bool(target[last] == value)
    if op == "remove":
        del target[last]
    else:
        target[last] = copy.deepcopy(value)
    return True


def merged(target: Any, patch: Any) -> Any:
    """Return the target with the patch merged as RFC 7396 defines."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return copy.deepcopy(result)


def _disown(old: Json, new: Json, writer: str | None) -> None:
    """Take the fields of conditions that this writer changed from the managed fields of all others."""
    old_entries = {entry["type"]: entry for entry in old["status"]["conditions"]}
    for entry in new["status"]["conditions"]:
        before = old_entries.get(entry["type"], entry)
        for fields in new["metadata"].get("managedFields") or ():
            if fields["manager"] != writer and "fieldsV1" in fields:
                own = fields["fieldsV1"]["f:status"]["f:conditions"].get(_field(entry), {})
                for key in entry:
                    if before.get(key) != entry[key]:
                        own.pop(f"f:{key}", None)


def _field(condition: Json) -> str:
    return f"k:{json.dumps({'type': condition['type']}, separators=(',', ':'))}"


def _owned(old: Json, new: Json, before: Json) -> Json:
    """The conditions of a writer, as `managedFields` has them: those that it changed now, or changed before and that are there."""
    old_entries = {entry["type"]: entry for entry in old["status"]["conditions"]}
    own: Json = {}
    for entry in new["status"]["conditions"]:
        name = _field(entry)
        earlier = before.get("f:status", {}).get("f:conditions", {}).get(name)
        changed: Json = {f"f:{key}": {} for key in entry if old_entries.get(entry["type"], {}).get(key) != entry[key]}
        if earlier or changed:
            own[name] = {".": {}, **(earlier or {}), **changed}
    return {"f:status": {"f:conditions": own}}


def _merge_conditions(existing: list[Json], new_conditions: list[Json]) -> None:
    for condition in new_conditions:
        if condition.get("$patch") == "delete":
            existing[:] = [entry for entry in existing if entry["type"] != condition["type"]]
            continue
        for entry in existing:
            if entry["type"] == condition["type"]:
                entry.update(condition)
                break
        else:
            existing.append(dict(condition))


def status(code: int, message: str, **headers: str) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}
    return web.json_response(body, status=code, headers=headers)


def refusing(code: int, message: str = "no", **headers: str) -> Fault:
    async def fault(_: web.Request) -> web.StreamResponse:
        return status(code, message, **headers)

    return fault


async def silent(_: web.Request) -> web.StreamResponse:
    """Accept the request, and never answer."""
    await asyncio.sleep(3600)
    raise AssertionError


async def half_closed(request: web.Request) -> web.StreamResponse:
    """Close the connection after sending less than announced."""
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"kind":')
    assert request.transport is not None
    request.transport.close()
    return response


async def garbage(_: web.Request) -> web.StreamResponse:
    return web.Response(body=b"\xff\x00 no JSON", content_type="application/json")


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" " * (1 << 20))


@contextlib.contextmanager
def beside(server: ApiServer) -> Iterator[ApiServer]:
    """Run the server in a thread of its own, for tests that wait for another process."""
    with loop_in_thread() as loop:
        try:
            asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(30)
            yield server
        finally:
            asyncio.run_coroutine_threadsafe(server.__aexit__(), loop).result(30)
