"""Many and odd clients: nobody takes the connection or the time of a scraper, with TLS or without."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
import statistics
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest

from gpuwarden.publish.notices import WAITERS_MOST, Notices
from gpuwarden.publish.web import http as web
from gpuwarden.publish.web.connections import Connection, Connections, source_of
from gpuwarden.publish.web.listener import Limits
from gpuwarden.publish.web.response import PIECE
from gpuwarden.publish.web.trimming import Trimming
from gpuwarden.publish.web.unsent import RESPONSES_LEAST, UNSENT_MOST
from support import flood, half_open
from support.quick import first_quick
from support.waiting import until
from support.web_certificates import Site, trusting, users
from support.web_server import PATIENCE, Scraper, Served, exchange, get, parsed, serving

ALICE = "Basic YWxpY2U6cmlnaHQ="  # alice:right
HELLO = bytes.fromhex("16030100c8010000c40303")  # the first bytes of a ClientHello of 200
CLIENTS = 300
CONNECTIONS = Limits().connections


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@asynccontextmanager
async def many_clients(served: Served, sent: list[bytes], drip: bytes = b"") -> AsyncIterator[None]:
    """`CLIENTS` clients that begin to send something, each its turn of `sent`, and go on by a `drip` at a time."""
    async with beside(half_open, str(served.port), str(CLIENTS), drip.hex(), *(part.hex() for part in sent)):
        yield


@asynccontextmanager
async def beside(program: ModuleType, *words: str) -> AsyncIterator[None]:
    """A process, from its first line until the end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(program.__file__), *words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            assert await process.stdout.readline() == b"here\n"
        yield
    finally:
        process.stdin.close()
        await process.wait()


async def usual(scrape: Callable[[], Awaitable[None]]) -> float:
    """Seconds of this process that it takes, client and server: of thirty windows the one with the least median.

    The many clients are another process, so that what other processes do on this machine is in none of them.
    """
    return min([await _median(scrape) for _ in range(30)])


async def _median(scrape: Callable[[], Awaitable[None]]) -> float:
    await asyncio.sleep(0.01)
    took = []
    for _ in range(3):
        begun = time.process_time()
        await scrape()
        took.append(time.process_time() - begun)
    return statistics.median(took)


SILENT = [b""]
HALF_A_REQUEST = [b"GET /metrics HTTP/1.1\r\nHost: a\r\nX-", b"", b"GET /metrics HTTP/1.1\r\n"]
HALF_A_HANDSHAKE = [b"", HELLO, HELLO[:3]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("secured", "sent", "drip"),
    first_quick(1, [(False, SILENT, b""), (False, HALF_A_REQUEST, b"a"), (True, [HELLO], b"\x00")]),
    ids=["silent", "dripping requests", "dripping handshakes"],
)
async def test_half_open_clients_do_not_change_what_a_scrape_takes(
    site: Site, secured: bool, sent: list[bytes], drip: bytes
) -> None:
    """300 of them, more than there may be connections; the scraper asks on a connection that it keeps, and on new ones.

    While they arrive the kept one may be ended, since it is quiet: its client opens another, as it does after any idle timeout.
    """
    sections = (site.serve(), users(alice="right")) if secured else ("",)
    tls = trusting() if secured else None
    async with serving(config=site.write(*sections), deadline=PATIENCE, handshake=PATIENCE) as served:
        scraper = await Scraper.connect(served, tls)

        async def kept() -> None:
            assert (await scraper.get("/metrics", Authorization=ALICE)).body == served.holder.page.text

        async def new() -> None:
            answer = await get(served, "/metrics", tls=tls, Authorization=ALICE)
            assert (answer.code, answer.body) == (200, served.holder.page.text)

        await new()
        calm = await usual(kept), await usual(new)
        async with many_clients(served, sent, drip):
            await until(lambda: served.web.turned_away > 0 and served.connected == CONNECTIONS)
            scraper.close()
            scraper = await Scraper.connect(served, tls)
            crowded = await usual(kept), await usual(new)
            assert served.connected <= CONNECTIONS
        calm_again = await usual(kept), await usual(new)
        scraper.close()
    for name, with_many, *without in zip(("kept", "new"), crowded, calm, calm_again, strict=True):
        assert with_many < 5 * max(without), f"{name}: {with_many * 1000:.2f} ms, else {max(without) * 1000:.2f} ms"


async def test_half_open_clients_are_gone_after_the_deadlines(site: Site) -> None:
    async with serving(config=site.write(site.serve()), deadline=2.0, handshake=1.5) as served:
        async with many_clients(served, HALF_A_HANDSHAKE, b"\x00"):
            await until(lambda: served.connected == 0)
        assert (await get(served, "/healthz", tls=trusting())).code == 200


async def requesting(served: Served, clients: int) -> list[Scraper]:
    """Return that many clients that asked once, and keep their connection."""
    here = []
    for _ in range(clients):
        here.append(await Scraper.connect(served))
        assert (await here[-1].get("/healthz")).code == 200
    return here


async def is_open(client: Scraper) -> bool:
    try:
        return (await client.get("/healthz")).code in (200, 401)
    except (asyncio.IncompleteReadError, ConnectionError):
        return False


@pytest.mark.parametrize("secured", [False, True])
async def test_the_connection_that_is_quiet_for_longest_makes_room_and_one_that_waits_for_its_answer_does_not(
    site: Site, secured: bool
) -> None:
    sections, tls = ((site.serve(),), trusting()) if secured else (("",), None)
    async with serving(config=site.write(*sections), connections=8) as served:
        waiting = await Scraper.connect(served, tls)
        hanging = asyncio.create_task(waiting.get("/v1/notice?wait=60"))
        await until(lambda: served.notices.waiting["web"] == 1)
        first = await Scraper.connect(served, tls)
        kept = await Scraper.connect(served, tls)
        quiet = [await Scraper.connect(served, tls) for _ in range(5)]
        assert await is_open(kept)
        more = [await Scraper.connect(served, tls) for _ in range(6)]
        assert [await is_open(client) for client in (first, *quiet, kept, *more)] == [False] * 6 + [True] * 7
        assert (served.connected, served.web.turned_away) == (8, 6)
        served.notices.show(b'{"act":false}', imminent=True)
        assert (await hanging).body == b'{"act":false}'
        for client in (waiting, first, kept, *quiet, *more):
            client.close()


async def test_handshakes_that_are_never_finished_count_as_connections_and_make_room(site: Site) -> None:
    async with serving(config=site.write(site.serve()), connections=8, handshake=PATIENCE) as served:
        silent = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(20)]
        for _, writer in silent[::2]:
            writer.write(HELLO)
        await until(lambda: (served.connected, served.web.turned_away) == (8, 12))
        assert (await get(served, "/healthz", tls=trusting())).code == 200
        assert [await reader.read() for reader, _ in silent[:12]] == [b""] * 12
        for _, writer in silent:
            writer.close()


async def test_active_clients_make_room_for_new_ones(site: Site) -> None:
    """Otherwise the next of them would end a scraper that has connected and not yet asked."""
    async with serving(connections=8) as served:
        crowded = await requesting(served, 8)
        new = await Scraper.connect(served)
        crowded += await requesting(served, 3)
        assert await is_open(new)
        assert not await is_open(crowded[0])
        for client in (new, *crowded):
            client.close()


@pytest.mark.parametrize("secured", first_quick(1, [False, True]))
async def test_a_scrape_gets_through_beside_clients_that_connect_again_and_again(site: Site, secured: bool) -> None:
    """Every client begins a handshake, or a request, and makes room for itself: with TLS the scraper needs some turns for its own."""
    tls = trusting() if secured else None
    sections = (site.serve(),) if secured else ("",)
    sent = HELLO if secured else b"GET"
    async with (
        serving(config=site.write(*sections), deadline=PATIENCE, handshake=PATIENCE) as served,
        beside(flood, str(served.port), str(CLIENTS), sent.hex()),
    ):
        assert [await answered(served, tls) for _ in range(5)] == [True] * 5


async def answered(served: Served, tls: ssl.SSLContext | None) -> bool:
    """A client that had to make room connects again, as Prometheus does at its next scrape."""
    for _ in range(4):
        with contextlib.suppress(OSError, IndexError):  # ended before its answer
            return (await get(served, "/metrics", tls=tls)).code == 200
    return False


@pytest.mark.parametrize(
    ("crowd", "other"),
    [
        (("10.0.0.7",), "10.0.0.8"), (("127.0.0.1", "127.9.9.9", "::1"), "10.0.0.8"), (("10.0.0.7",), "127.0.0.1"),
        (("2001:db8::1", "2001:db8::2:1"), "2001:db8:0:1::1"), (("fe80::1%eth0", "fe80::2%eth0"), "10.0.0.8"),
        (("::ffff:10.0.0.7",), "::ffff:10.0.0.8"), (("::ffff:127.0.0.1", "127.0.0.1"), "::ffff:10.0.0.8"),
    ],
)  # fmt: skip
async def test_room_is_made_by_the_address_that_has_most(crowd: tuple[str, ...], other: str) -> None:
    """Otherwise one address that connects again and again would end each scraper before it is answered."""
    connections, ended = Connections(8, Trimming()), []

    class Noted(Connection):
        def end(self) -> None:
            ended.append(self.source)

    def connect(address: str) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            connections.opened(cast("web.RequestHandler", object()), Noted(ours, None, source_of((address, 9999))))

    connect(other)
    for number in range(40):
        connect(crowd[number % len(crowd)])
    connect(other)
    assert len(connections) == 8
    assert source_of((other, 1)) not in ended


async def test_who_is_being_answered_makes_room_if_nobody_else_can(site: Site) -> None:
    async with serving(connections=3) as served:
        waiting = [await Scraper.connect(served) for _ in range(3)]
        hanging = [asyncio.create_task(client.get("/v1/notice?wait=60")) for client in waiting]
        await until(lambda: served.notices.waiting["web"] == 3)
        assert (await get(served, "/healthz")).code == 200
        served.notices.show(b'{"act":false}', imminent=True)
        ended = await asyncio.gather(*hanging, return_exceptions=True)
        assert sum(isinstance(end, Exception) for end in ended) == 1
        for client in waiting:
            client.close()


async def test_who_does_not_know_the_password_keeps_nobody_out_who_does(site: Site) -> None:
    async with serving(config=site.write(users(alice="right")), connections=6) as served:
        strangers = []
        for _ in range(10):
            strangers.append(await Scraper.connect(served))
            assert (await strangers[-1].get("/healthz")).code == 401
            assert (await get(served, "/healthz", Authorization=ALICE)).code == 200
        for client in strangers:
            client.close()


@pytest.mark.slow
async def test_notices_are_waited_for_over_tls_and_with_a_password(site: Site) -> None:
    async with serving(config=site.write(site.serve(), users(alice="right")), deadline=4.0) as served:
        waiting = await Scraper.connect(served, trusting())
        asked = asyncio.create_task(waiting.get("/v1/notice?wait=60", Authorization=ALICE))
        await until(lambda: served.notices.waiting["web"] == 1)
        await asyncio.sleep(4.5)  # longer than any deadline of the connection
        served.notices.show(b'{"act":true}', imminent=True)
        assert (await asked).body == b'{"act":true}'
        waiting.close()


async def test_requests_that_are_sent_ahead_are_answered_in_order(site: Site) -> None:
    async with serving(config=site.write(site.serve())) as served:
        paths = [b"/healthz", b"/nothing", b"/readyz"] * 40
        asked = b"".join(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % path for path in paths)
        raw = await exchange(
            served.port, asked + b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", tls=trusting()
        )
        codes = [int(part[:3]) for part in raw.split(b"HTTP/1.1 ")[1:]]
        assert codes == [200, 404, 200] * 40 + [200]


DATA_SEGMENTS_IN = 152
"""Offset of `tcpi_data_segs_in` in Linux's struct tcp_info."""


async def test_a_response_of_one_piece_comes_with_its_headers_in_one_packet() -> None:
    """Prometheus' gzip page has a few kB: a second packet would wake the client twice."""
    async with serving(deadline=PATIENCE) as served:
        object.__setattr__(served.holder.page, "text_gzip", b"x" * 7000)
        scraper = await Scraper.connect(served)
        for _ in range(3):
            assert len((await scraper.get("/metrics", **{"Accept-Encoding": "gzip"})).body) == 7000
        about = scraper.writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        assert int.from_bytes(about[DATA_SEGMENTS_IN : DATA_SEGMENTS_IN + 4], sys.byteorder) == 3
        scraper.close()


async def test_http_1_0_is_answered_and_closed(site: Site) -> None:
    async with serving(config=site.write(site.serve())) as served:
        for request in (b"GET /healthz HTTP/1.0\r\n\r\n", b"GET /healthz HTTP/1.0\r\nHost: a\r\n\r\n"):
            assert parsed(await exchange(served.port, request, tls=trusting())).code == 200


@pytest.mark.parametrize(
    "headers",
    [
        b"X: " + b"a" * 5000, b"".join(b"X-%d: a\r\n" % n for n in range(2000)), b"\x00: a", b"X : a", b": a", b" folded: a",
        b"Content-Length: -1", b"Content-Length: 1\r\nContent-Length: 2", b"Transfer-Encoding: chunked\r\nContent-Length: 3",
        b"Authorization: Basic " + b"a" * 5000, b"Host: a\r\nHost: b\xff\xfe", b"Expect: 100-continue\r\nContent-Length: 9",
        b"Upgrade: h2c\r\nConnection: Upgrade", b"Connection: upgrade\r\nUpgrade: websocket",
    ],
)  # fmt: skip
async def test_absurd_headers_get_no_page_and_no_crash(site: Site, headers: bytes) -> None:
    async with serving(config=site.write(site.serve(), users(alice="right"))) as served:
        tls = trusting()
        raw = await exchange(
            served.port, b"GET /metrics HTTP/1.1\r\n" + headers + b"\r\nConnection: close\r\n\r\n", tls=tls
        )
        assert not raw or parsed(raw).code in (400, 401, 413)
        assert (await get(served, "/healthz", tls=tls, Authorization=ALICE)).code == 200


async def test_a_body_is_refused_behind_the_password_and_before_it(site: Site) -> None:
    async with serving(config=site.write(site.serve(), users(alice="right"))) as served:
        tls = trusting()
        assert (await get(served, "/healthz", body=b"x" * 100_000, tls=tls)).code == 401
        assert (await get(served, "/healthz", body=b"x" * 100_000, tls=tls, Authorization=ALICE)).code == 413


async def test_more_requests_than_the_limit_allows_are_refused_with_retry_after(site: Site) -> None:
    async with serving(config=site.write("rate_limit: {interval: 1h, burst: 5}")) as served:
        answers = [await get(served, path) for path in ("/metrics", "/healthz", "/nothing") * 3]
        assert [answer.code for answer in answers] == [200, 200, 404, 200, 200, 429, 429, 429, 429]
        assert answers[-1].headers["retry-after"] == "1"


AHEAD = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 50


@pytest.mark.slow
@pytest.mark.parametrize("secured", first_quick(1, [False, True]))
async def test_pages_that_nobody_takes_are_bounded_over_all_connections_and_hold_up_no_scrape(
    site: Site, secured: bool
) -> None:
    """250 clients that each ask for fifty pages and read none of them."""
    sections = (site.serve(),) if secured else ("",)
    tls = trusting() if secured else None
    async with serving(config=site.write(*sections), deadline=PATIENCE) as served:
        page = served.holder.page.text * 4  # as of a node with many GPUs
        object.__setattr__(served.holder.page, "text", page)
        clients = []
        for _ in range(250):
            clients.append(await Scraper.connect(served, tls))
            clients[-1].writer.write(AHEAD)
        await until(lambda: served.web.turned_away > 100)
        for _ in range(20):
            assert served.web.unsent.bytes <= max(UNSENT_MOST, RESPONSES_LEAST * len(page))
            assert (await get(served, "/metrics", tls=tls)).body == page
        for client in clients:
            client.writer.transport.abort()
        await until(lambda: served.web.unsent.bytes == 0)


@pytest.mark.parametrize(("form", "accepted"), [("text", b""), ("text_gzip", b"Accept-Encoding: gzip\r\n")])
async def test_clients_that_read_nothing_of_one_page_share_it(form: str, accepted: bytes) -> None:
    """100 of them, each with fifty requests ahead, hold a piece of a page of 4 MiB and one parsed request each, and no copy of the page."""
    async with serving(deadline=PATIENCE) as served:
        page = b"x" * (4 << 20)
        object.__setattr__(served.holder.page, form, page)
        ahead = b"GET /metrics HTTP/1.1\r\nHost: a\r\n" + accepted + b"\r\n"
        clients = []
        tracemalloc.start()
        try:
            for _ in range(100):
                clients.append(socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE))
                clients[-1].sendall(ahead * 50)
            await until(lambda: len(served.web.unsent) == 100)
            asked = get(served, "/metrics", Accept_Encoding="gzip") if accepted else get(served, "/metrics")
            assert (await asked).body == page
            gc.collect()
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert served.web.unsent.bytes == len(page) + 100 * PIECE
        assert served.web.turned_away == 0
        assert taken < 16 << 20
        for client in clients:
            client.close()


async def test_a_client_that_takes_its_answers_slowly_is_answered_one_at_a_time(site: Site) -> None:
    async with serving(deadline=PATIENCE) as served:
        object.__setattr__(served.holder.page, "text", b"x" * (4 << 20))
        slow = await Scraper.connect(served)
        slow.writer.write(AHEAD)
        await until(lambda: served.web.unsent.bytes == (4 << 20) + PIECE)
        for _ in range(50):
            assert served.web.unsent.bytes == (4 << 20) + PIECE
            assert (await get(served, "/healthz")).code == 200
        slow.close()


@pytest.mark.parametrize("secured", [False, True])
async def test_clients_that_read_a_large_page_at_the_same_time_all_get_it(site: Site, secured: bool) -> None:
    """The page is that of a node with 112 MIG instances, uncompressed: the clients together take more than UNSENT_MOST."""
    sections = (site.serve(),) if secured else ("",)
    tls = trusting() if secured else None
    async with serving(config=site.write(*sections), deadline=PATIENCE) as served:
        page = b"x" * (UNSENT_MOST // 6)
        object.__setattr__(served.holder.page, "text", page)
        for _ in range(5):
            answers = await asyncio.gather(*(get(served, "/metrics", tls=tls) for _ in range(8)))
            assert [answer.body == page for answer in answers] == [True] * 8
        assert served.web.turned_away == 0


async def test_the_place_of_a_client_that_leaves_is_free_at_once(site: Site) -> None:
    async with serving(deadline=PATIENCE) as served:
        waiting = [await Scraper.connect(served) for _ in range(WAITERS_MOST)]
        for client in waiting:
            client.writer.write(b"GET /v1/notice?wait=60 HTTP/1.1\r\nHost: a\r\n\r\n")
        await until(lambda: served.notices.waiting["web"] == WAITERS_MOST)
        assert (await get(served, "/v1/notice?wait=60")).code == 503
        for client in waiting:
            client.writer.transport.abort()
        await until(lambda: served.notices.waiting["web"] == 0)


async def test_waiting_at_one_door_takes_no_place_at_another() -> None:
    notices = Notices(waiters=1)
    first = asyncio.create_task(notices.wait(PATIENCE))
    await until(lambda: notices.waiting["web"] == 1)
    assert not await notices.wait(0.01)
    assert await notices.wait(0.01, server="jobs")
    notices.close()
    assert await first
