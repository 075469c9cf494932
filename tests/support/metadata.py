"""A metadata service for every cloud, on loopback: its values may change, and any request go wrong.

async with Simulator(AwsCloud()) as service:
    service.set_value("spot", {"action": "terminate", "time": "…"})
    service.faults += [silence, status(503)]      # the fate of the next requests, one each
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any, Protocol, Self
from urllib.parse import parse_qsl

from support.loops import loop_in_thread

Fault = Callable[["Request", asyncio.StreamWriter], Awaitable[None]]
"""Answers, or not, in its own way; the connection is closed after it."""


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(slots=True)
class Response:
    status: int = 200
    body: bytes = b""
    headers: MutableMapping[str, str] = field(default_factory=dict)


class Cloud(Protocol):
    """`values` by names of its own; `changed` is set and made again whenever one changes."""

    values: dict[str, Any]
    changed: asyncio.Event

    async def respond(self, request: Request) -> Response: ...


class Simulator:
    """`skew`: seconds that the service's clock is ahead of the test's."""

    def __init__(self, cloud: Cloud, *, skew: float = 0.0, address: str = "127.0.0.1") -> None:
        self.cloud = cloud
        self.address = address
        self.skew = skew
        self.faults: deque[Fault | None] = deque()
        self.always: Fault | None = None
        self.requests: list[Request] = []
        self.connections = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._server: asyncio.Server | None = None
        self.loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self.address, 0, limit=1 << 16)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)  # an aborted connection is closed in the next turn

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def endpoint(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{self.port}"

    def set_value(self, name: str, value: Any) -> None:
        self.cloud.values[name] = value
        self.cloud.changed.set()
        self.cloud.changed = asyncio.Event()

    def set_value_from_thread(self, name: str, value: Any) -> None:
        assert self.loop is not None
        self.loop.call_soon_threadsafe(self.set_value, name, value)

    def asked(self, part: str) -> int:
        return sum(part in request.path for request in self.requests)

    def now(self) -> float:
        return time.time() + self.skew

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError, OSError):
            while (request := await _read(reader)) is not None:
                self.requests.append(request)
                fault = self.faults.popleft() if self.faults else self.always
                if fault is not None:
                    await fault(request, writer)
                    break
                response = await self.cloud.respond(request)
                response.headers.setdefault("Date", formatdate(self.now(), usegmt=True))
                await send(writer, response)
        writer.close()
        self._tasks.discard(task)
        self._writers.discard(writer)


@contextlib.contextmanager
def beside(cloud: Cloud) -> Iterator[Simulator]:
    """Run the service in a thread with a loop of its own, for tests that have none; set its values through `set_value_from_thread`."""
    with loop_in_thread() as loop:
        service = Simulator(cloud)
        service.loop = loop
        asyncio.run_coroutine_threadsafe(service.__aenter__(), loop).result(30.0)
        try:
            yield service
        finally:
            asyncio.run_coroutine_threadsafe(service.__aexit__(), loop).result(30.0)


async def _read(reader: asyncio.StreamReader) -> Request | None:
    line = await reader.readline()
    if not line:
        return None
    method, target, _ = line.decode().split(" ", 2)
    headers: dict[str, str] = {}
    while (line := await reader.readline()).strip():
        name, _, value = line.decode().partition(":")
        headers[name.strip().lower()] = value.strip()
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    path, _, query = target.partition("?")
    return Request(method, path, dict(parse_qsl(query)), headers, body)


async def send(writer: asyncio.StreamWriter, response: Response) -> None:
    fields = {"Content-Length": str(len(response.body)), **response.headers}
    head = f"HTTP/1.1 {response.status} Reason\r\n" + "".join(f"{n}: {v}\r\n" for n, v in fields.items())
    writer.write(head.encode() + b"\r\n" + response.body)
    await writer.drain()


# --- faults


def status(code: int, body: bytes = b"", **headers: str) -> Fault:
    async def fault(_: Request, writer: asyncio.StreamWriter) -> None:
        await send(writer, Response(code, body, {name.replace("_", "-"): text for name, text in headers.items()}))

    return fault


def raw(data: bytes, *, forever: bytes = b"", pause: float = 0.0) -> Fault:
    """`forever` is repeated after it until the peer goes away."""

    async def fault(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        while forever:
            writer.write(forever)
            await writer.drain()
            await asyncio.sleep(pause)

    return fault


async def silence(_: Request, __: asyncio.StreamWriter) -> None:
    await asyncio.sleep(3_600.0)


async def reset(_: Request, writer: asyncio.StreamWriter) -> None:
    """Reset the connection in the middle of the body."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf")
    await writer.drain()
    await asyncio.sleep(0.02)
    writer.transport.abort()


PORTAL = status(200, b"<!doctype html><html><body>Please log in to the network</body></html>", Content_Type="text/html")


# --- the clouds


def _json(value: Any) -> Response:
    return Response(200, json.dumps(value).encode(), {"Content-Type": "application/json"})


NOT_FOUND = b'<?xml version="1.0"?><html><head><title>404 - Not Found</title></head></html>'


class _Cloud:
    def __init__(self, **values: Any) -> None:
        self.values: dict[str, Any] = values
        self.changed = asyncio.Event()

    def _plain(self, name: str) -> Response:
        """The value of a name: None for no such thing, bytes and text as they are, a response whole."""
        value = self.values.get(name)
        if value is None:
            return Response(404, NOT_FOUND)
        if isinstance(value, Response):
            return Response(value.status, value.body, dict(value.headers))
        if isinstance(value, bytes | str):
            return Response(200, value.encode() if isinstance(value, str) else value)
        return _json(value)


class _TokenCloud(_Cloud):
    """`tokens` False: the PUT is refused. `need`: questions without a token are."""

    ttl_header = token_header = ""
    paths: Mapping[str, str] = {}

    def __init__(self, *, tokens: bool = True, need: bool = True, **values: Any) -> None:
        super().__init__(**values)
        self.tokens, self.need = tokens, need
        self.token = "first-token=="
        self.ttl: str | None = "21600"
        self.put: Fault | None = None

    async def respond(self, request: Request) -> Response:
        if request.method == "PUT":
            sound = "x-forwarded-for" not in request.headers and request.headers.get(self.ttl_header)
            if not (self.tokens and sound):
                return Response(403)
            return Response(200, self.token.encode(), {} if self.ttl is None else {self.ttl_header: self.ttl})
        token = request.headers.get(self.token_header)
        if token != self.token.strip() and (self.need or token is not None):
            return Response(401)
        return self._plain(self.paths.get(request.path, request.path))


class AwsCloud(_TokenCloud):
    """`values`: spot, rebalance, maintenance, lifecycle."""

    ttl_header, token_header = "x-aws-ec2-metadata-token-ttl-seconds", "x-aws-ec2-metadata-token"
    paths: Mapping[str, str] = {
        "/latest/meta-data/instance-id": "instance",
        "/latest/meta-data/spot/instance-action": "spot",
        "/latest/meta-data/events/recommendations/rebalance": "rebalance",
        "/latest/meta-data/events/maintenance/scheduled": "maintenance",
        "/latest/meta-data/autoscaling/target-lifecycle-state": "lifecycle",
    }

    def __init__(self, **more: Any) -> None:
        super().__init__(**{"instance": "i-0af01c2300000000a", "maintenance": [], **more})


class AlibabaCloud(_TokenCloud):
    ttl_header, token_header = "x-aliyun-ecs-metadata-token-ttl-seconds", "x-aliyun-ecs-metadata-token"
    paths: Mapping[str, str] = {
        "/latest/meta-data/instance-id": "instance",
        "/latest/meta-data/instance/spot/termination-time": "spot",
    }

    def __init__(self, **more: Any) -> None:
        super().__init__(**{"instance": "i-bp67acfmxazb4p000001", **more})


class TencentCloud(_Cloud):
    def __init__(self, **more: Any) -> None:
        super().__init__(**{"instance": "ins-2uae7wxj", **more})

    async def respond(self, request: Request) -> Response:
        names = {"/latest/meta-data/instance-id": "instance", "/latest/meta-data/spot/termination-time": "spot"}
        return self._plain(names.get(request.path, ""))


class GcpCloud(_Cloud):
    """`values`: machine-type, preempted, maintenance-event, upcoming-maintenance. `etags` False: answers come without one, and never wait."""

    def __init__(self, **more: Any) -> None:
        values = {
            "id": "8087716956832600000",
            "machine-type": "projects/42/machineTypes/a3-highgpu-8g",
            "preempted": "FALSE",
            "maintenance-event": "NONE",
        }
        super().__init__(**{**values, "upcoming-maintenance": "NONE", **more})
        self.etags = True
        self.longest = 60.0

    def etag(self, name: str) -> str:
        return f"{abs(hash(str(self.values.get(name)))):016x}"[:16]

    async def respond(self, request: Request) -> Response:
        if request.headers.get("metadata-flavor") != "Google" or "x-forwarded-for" in request.headers:
            return Response(403)
        name = request.path.removeprefix("/computeMetadata/v1/instance/")
        if request.query.get("wait_for_change") == "true" and self.etags:
            patience = min(float(request.query.get("timeout_sec", "60")), self.longest)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    while request.query.get("last_etag") == self.etag(name):
                        await self.changed.wait()
        response = self._plain(name)
        if response.status == 200:
            response.headers.setdefault("Metadata-Flavor", "Google")
        if self.etags:
            response.headers["ETag"] = self.etag(name)
        return response


class AzureCloud(_Cloud):
    """`values`: name, size, events (a list), or document for a whole answer. `approved`: events that were approved, and have begun then.

    `post` is the fate of the next approvals, one each.
    """

    def __init__(self, **more: Any) -> None:
        super().__init__(**{"name": "gpu-vm-3", "size": "Standard_ND96isr_H100_v5", "events": [], **more})
        self.approved: list[str] = []
        self.post: deque[Response] = deque()

    async def respond(self, request: Request) -> Response:
        if request.headers.get("metadata") != "true" or "api-version" not in request.query:
            return Response(400)
        folder, _, name = request.path.rpartition("/")
        if folder == "/metadata/instance/compute":
            return self._plain({"vmSize": "size"}.get(name, name))
        if request.path != "/metadata/scheduledevents":
            return Response(404)
        if request.method == "POST":
            return self._begin(request)
        if "document" in self.values:
            return self._plain("document")
        return _json({"DocumentIncarnation": len(self.values["events"]), "Events": self.values["events"]})

    def _begin(self, request: Request) -> Response:
        try:
            wanted = [start_request["EventId"] for start_request in json.loads(request.body)["StartRequests"]]
        except (ValueError, KeyError, TypeError):
            return Response(400)
        self.approved += wanted
        if self.post:
            return self.post.popleft()
        for event in self.values["events"]:
            if event["EventId"] in wanted:
                event |= {"EventStatus": "Started", "NotBefore": ""}
        return Response(200)
