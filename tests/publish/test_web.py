"""The HTTP server over real sockets: what it answers, and that no client can keep it from answering others."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import Sequence
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from gpuwarden.health.model import Event, EventKind, Health, gpu
from gpuwarden.publish.metrics.exposition import Holder, Renderer
from gpuwarden.publish.notices import Notices
from gpuwarden.publish.web.endpoints import ENDPOINTS
from gpuwarden.publish.web.listener import Limits, ListenError
from gpuwarden.publish.web.pages import EVENTS_LIMIT, Web, parse_since, wants_gzip, wants_openmetrics
from support.snapshots import FRESH_FOR, UPTIME, at, finding, slot, snapshot
from support.web_server import PATIENCE, Scraper, Served, exchange, get, parsed, serving

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


# --- metrics


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/json", False),
        (PROMETHEUS, True),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", True),
        ("application/openmetrics-text;version=0.0.1", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=0.3,text/plain;q=0.7", False),
        ("text/plain;version=0.0.4;q=0.5,application/openmetrics-text;version=1.0.0", True),
        ("APPLICATION/OPENMETRICS-TEXT;Q=1", True),
        ("application/openmetrics-text;q=plenty", False),
        (";;,,q=;", False),
    ],
)
def test_openmetrics_is_served_to_those_who_like_it_best(accept: str, openmetrics: bool) -> None:
    assert wants_openmetrics(accept) is openmetrics


@pytest.mark.parametrize(
    ("header", "compressed"),
    [("", False), ("gzip", True), ("deflate, gzip;q=0.5", True), ("gzip;q=0", False), ("*", True), ("gzip;q=0, *", False)],
)  # fmt: skip
def test_only_those_who_take_gzip_get_it(header: str, compressed: bool) -> None:
    assert wants_gzip(header) is compressed


async def test_metrics_are_the_bytes_of_the_page_in_the_form_asked_for() -> None:
    async with serving() as served:
        page = served.holder.page
        text = await get(served, "/metrics")
        assert (text.code, text.body) == (200, page.text)
        assert text.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        openmetrics = await get(served, "/metrics", Accept=PROMETHEUS)
        assert openmetrics.body == page.openmetrics
        assert openmetrics.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
        for accept, body in (("text/plain", page.text), (PROMETHEUS, page.openmetrics)):
            compressed = await get(served, "/metrics", Accept=accept, Accept_Encoding="gzip")
            assert compressed.headers["content-encoding"] == "gzip"
            assert gzip.decompress(compressed.body) == body


async def test_head_gives_the_length_of_the_body_and_sends_none() -> None:
    async with serving() as served:
        answer = await get(served, "/metrics", "HEAD")
        assert (answer.code, answer.body) == (200, b"")
        assert answer.headers["content-length"] == str(len(served.holder.page.text))


async def test_numbers_that_nobody_renews_are_not_served() -> None:
    async with serving() as served:
        served.now[0] = at(UPTIME + FRESH_FOR + 1)
        answer = await get(served, "/metrics")
        assert answer.code == 503
        assert "16 s old" in str(answer.document["error"])


async def test_a_scrape_sees_what_is_shown_at_that_moment() -> None:
    async with serving(snapshot(1)) as served:
        served.holder.show(snapshot(3))
        assert b"gpuwarden_gpus_present 3\n" in (await get(served, "/metrics")).body


# --- documents


@pytest.mark.parametrize(("health", "code"), [(Health.HEALTHY, 200), (Health.FAILURE, 503)])
async def test_the_heartbeat_answers_with_the_state_of_the_node(health: Health, code: int) -> None:
    async with serving(snapshot(health=health)) as served:
        answer = await get(served, "/heartbeat")
        assert (answer.code, answer.document["status"]) == (code, health.value)
        assert answer.document["age_seconds"] == 1.0
        assert (await get(served, "/healthz")).code == 200, "a liveness probe restarts no daemon of a failed node"


async def test_a_daemon_is_alive_before_it_is_ready() -> None:
    async with serving(replace(snapshot(), ready=False)) as served:
        assert (await get(served, "/healthz")).code == 200
        assert (await get(served, "/readyz")).code == (await get(served, "/-/ready")).code == 503
        assert (await get(served, "/-/healthy")).code == 200
        served.holder.show(snapshot())
        assert (await get(served, "/readyz")).document["ready"] is True


async def test_status_gpus_and_findings_are_served_as_json() -> None:
    async with serving(snapshot(2, findings=[finding("xid", gpu(slot(1)), detail="79")])) as served:
        status = await get(served, "/v1/status")
        assert status.headers["content-type"] == "application/json"
        assert len((await get(served, "/v1/gpus")).document["gpus"]) == 2  # type: ignore[arg-type]  # a list in JSON
        assert (await get(served, "/v1/findings")).document["findings"] == status.document["findings"]


async def test_the_index_lists_the_paths_and_marks_simulation() -> None:
    async with serving(snapshot(simulated=True)) as served:
        answer = await get(served, "/")
        assert b"simulated" in answer.body
        for row in ENDPOINTS:
            assert row.path.encode() in answer.body
            assert (await get(served, row.path)).code == 200


async def test_the_table_of_pages_has_every_page() -> None:
    async with serving() as served:
        assert {row.path for row in ENDPOINTS} == set(served.web._routes)


# --- events


@pytest.mark.parametrize(
    ("text", "wall"),
    [
        ("0", 0.0),
        ("1767225600.5", 1767225600.5),
        ("2026-01-01T00:00:00Z", 1767225600.0),
        ("2026-01-01T01:00:00+01:00", 1767225600.0),
        ("2026-01-01T00:00:00", 1767225600.0),
    ],
)
def test_since_is_a_unix_time_or_rfc_3339(text: str, wall: float) -> None:
    assert parse_since(text) == wall


@pytest.mark.parametrize(
    "text", ["", "yesterday", "nan", "inf", "2026-13-01T00:00:00Z", "0001-01-01T00:00:00+23:00" * 3]
)
def test_any_other_since_is_an_error_that_names_the_expected_form(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_since(text)


async def test_events_since_a_time_are_asked_of_the_ledger() -> None:
    async with serving() as served:
        served.events = [Event(kind=EventKind.STARTED, at=at(UPTIME), boot_id="a-boot")]
        answer = await get(served, "/v1/events?since=2026-01-01T00:00:00Z")
        assert served.asked == [(1767225600.0, EVENTS_LIMIT + 1)]
        assert answer.document["truncated"] is False
        assert answer.document["events"][0]["kind"] == "started"  # type: ignore[index]  # a list in JSON


async def test_more_events_than_fit_are_cut_and_marked_as_truncated() -> None:
    async with serving() as served:
        served.events = [Event(kind=EventKind.STARTED, at=at(UPTIME), boot_id="a-boot")] * (EVENTS_LIMIT + 5)
        document = (await get(served, "/v1/events")).document
        assert (len(document["events"]), document["truncated"]) == (EVENTS_LIMIT, True)  # type: ignore[arg-type]  # a list in JSON


async def test_a_time_that_cannot_be_read_is_the_clients_fault() -> None:
    async with serving() as served:
        answer = await get(served, "/v1/events?since=yesterday")
        assert answer.code == 400
        assert "RFC 3339" in str(answer.document["error"])


@pytest.mark.slow
async def test_a_ledger_that_does_not_answer_keeps_nobody_else_waiting() -> None:
    async def never(since: float, limit: int) -> Sequence[Event]:
        await asyncio.Event().wait()
        return []

    web = Web(
        Holder(Renderer(), snapshot()),
        never,
        clock=lambda: at(UPTIME),
        limits=Limits(deadline=3.0),
    )
    await web.start("127.0.0.1", 0)
    try:
        waiting = Served(web, web._holder, [], Notices())
        slow, quick = await asyncio.gather(get(waiting, "/v1/events"), get(waiting, "/heartbeat"))
        assert (slow.code, quick.code) == (504, 200)
    finally:
        await web.stop()


async def test_an_error_of_the_ledger_is_logged_and_reported_without_its_details() -> None:
    async def broken(since: float, limit: int) -> Sequence[Event]:
        raise OSError("a detail")

    web = Web(Holder(Renderer(), snapshot()), broken, clock=lambda: at(UPTIME))
    await web.start("127.0.0.1", 0)
    try:
        with capture_logs() as logs:
            answer = await get(Served(web, web._holder, [], Notices()), "/v1/events")
        assert answer.code == 500
        assert b"a detail" not in answer.body
        assert [(entry["event"], entry["error"]) for entry in logs] == [("request failed", "a detail")]
    finally:
        await web.stop()


# --- bad clients


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_nothing_can_be_written(method: str) -> None:
    async with serving() as served:
        answer = await get(served, "/heartbeat", method)
        assert (answer.code, answer.headers["allow"]) == (405, "GET, HEAD")


async def test_a_path_that_is_not_there_is_404() -> None:
    async with serving() as served:
        for path in ("/nothing", "/metrics/", "//metrics", "/v1", "/%00", "/../etc/passwd"):
            assert (await get(served, path)).code == 404, path


async def test_a_request_with_a_body_is_refused_without_reading_it() -> None:
    async with serving() as served:
        assert (await get(served, "/heartbeat", body=b"x" * 100_000)).code == 413
        endless = (
            b"GET /heartbeat HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + b"ffff\r\n" + b"x" * 0xFFFF
        )
        assert parsed(await exchange(served.port, endless)).code == 413


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 50,
        b"GET\r\n\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
    ],
    ids=["TLS", "half a request line", "long path", "long header"],
)
async def test_garbage_is_refused_and_the_next_client_served(request_bytes: bytes) -> None:
    async with serving() as served:
        with capture_logs() as logs:
            assert parsed(await exchange(served.port, request_bytes)).code == 400
        assert logs == []
        assert (await get(served, "/heartbeat")).code == 200


async def connect(served: Served, request: bytes = b"") -> socket.socket:
    """A client that reads nothing by itself, with as little room for what it is sent as possible."""
    client = socket.socket()
    client.setblocking(False)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, ("127.0.0.1", served.port))
    await loop.sock_sendall(client, request)
    return client


async def ended(client: socket.socket) -> bool:
    """The server ends the connection, in whatever way; what it sent before is thrown away."""
    try:
        async with asyncio.timeout(PATIENCE):
            while await asyncio.get_running_loop().sock_recv(client, 65536):
                pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


SCRAPES = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 50  # more than any socket buffer takes


async def test_clients_that_send_half_a_request_or_read_nothing_do_not_delay_a_scrape() -> None:
    async with serving() as served:
        clients = [await connect(served, b"GET /metrics HTTP/1.1\r\nHo") for _ in range(200)]
        clients += [await connect(served, SCRAPES) for _ in range(20)]
        try:
            for _ in range(5):
                assert (await get(served, "/metrics")).body == served.holder.page.text
        finally:
            for client in clients:
                client.close()


async def test_one_connection_too_many_ends_the_oldest_and_is_served() -> None:
    async with serving(connections=8) as served:
        clients = [await connect(served, b"GET /heartbeat HTTP/1.1\r\nHo") for _ in range(8)]
        try:
            assert (await get(served, "/heartbeat")).code == 200
            assert await ended(clients[0])
            clients[-1].setblocking(False)
            with pytest.raises(BlockingIOError):
                clients[-1].recv(1)
        finally:
            for client in clients:
                client.close()


@pytest.mark.parametrize("sent", [b"", b"GET /heartbeat HTTP/1.1\r\nHo"])
async def test_a_connection_without_a_whole_request_ends_after_the_deadline(sent: bytes) -> None:
    async with serving(deadline=0.5) as served:
        client = await connect(served, sent)
        try:
            assert await ended(client)
        finally:
            client.close()


@pytest.mark.slow
async def test_a_connection_is_kept_between_two_scrapes_and_ended_after_the_idle_timeout() -> None:
    async with serving(deadline=1.5, idle=8.0) as served:
        scraper = await Scraper.connect(served)
        for _ in range(2):
            assert (await scraper.get("/healthz")).code == 200
            await asyncio.sleep(1.6)
        async with asyncio.timeout(PATIENCE):
            while served.connected:
                await asyncio.sleep(0.05)
        scraper.close()


def test_the_idle_timeout_is_longer_than_the_usual_scrape_intervals() -> None:
    assert Limits().idle >= 75.0


async def test_a_client_that_leaves_its_answer_unread_is_given_up() -> None:
    async with serving(deadline=1.0) as served:
        client = await connect(served, SCRAPES)
        try:
            async with asyncio.timeout(PATIENCE):
                while not served.connected:
                    await asyncio.sleep(0.01)
                while served.connected:
                    await asyncio.sleep(0.05)
        finally:
            client.close()


# --- addresses


async def test_a_port_in_use_is_named_with_what_to_do() -> None:
    async with serving() as served:
        other = Web(served.holder, served.web._events)
        with pytest.raises(ListenError, match=rf"127\.0\.0\.1:{served.port}.*another process has this port"):
            await other.start("127.0.0.1", served.port)
        assert other.addresses == []


@pytest.mark.parametrize(("host", "port"), [("192.0.2.1", 9839), ("127.0.0.1", 99999)])
async def test_an_address_that_cannot_be_had_is_named(host: str, port: int) -> None:
    async with serving() as served:
        with pytest.raises(ListenError, match=f"cannot listen on {host}:{port}"):
            await Web(served.holder, served.web._events).start(host, port)


async def test_ipv6_is_served_too() -> None:
    async with serving(host="::1") as served:
        raw = await exchange(served.port, b"GET /heartbeat HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "::1")
        assert parsed(raw).code == 200


async def test_after_stop_nobody_listens_and_open_connections_end() -> None:
    async with serving() as served:
        client, port = await connect(served), served.port
        await served.web.stop()
        try:
            assert await ended(client)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
        finally:
            client.close()
