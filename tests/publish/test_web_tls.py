"""HTTPS over real sockets: who gets in, what is spoken, and that a new certificate needs no restart."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gpuwarden.publish.web.listener import ListenError
from gpuwarden_collectors.facts import Stamp
from support.snapshots import UPTIME
from support.web_certificates import Site, authority, pem, trusting, users, with_uri
from support.web_server import PATIENCE, Scraper, Served, get, serving


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await condition():
            await asyncio.sleep(0.02)


async def refused(served: Served, tls: ssl.SSLContext) -> bool:
    """The client is not answered: it finds that out in the handshake, or (in TLS 1.3) when it wants to read."""
    try:
        await get(served, "/healthz", tls=tls)
    except (ssl.SSLError, ConnectionError, IndexError):  # IndexError: nothing came
        return True
    return False


async def certificate_of(served: Served, tls: ssl.SSLContext) -> bytes:
    async with asyncio.timeout(PATIENCE):
        _, writer = await asyncio.open_connection("127.0.0.1", served.port, ssl=tls, server_hostname="localhost")
        certificate: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return certificate


async def test_with_a_certificate_everything_is_served_over_tls(site: Site) -> None:
    async with serving(config=site.write(site.serve())) as served:
        tls = trusting()
        for path in ("/metrics", "/heartbeat", "/healthz", "/readyz", "/v1/status", "/v1/notice", "/"):
            assert (await get(served, path, tls=tls)).code == 200
        assert (await get(served, "/metrics", tls=tls)).body == served.holder.page.text
        assert (await get(served, "/metrics", "HEAD", tls=tls)).body == b""


async def test_a_client_that_speaks_http_to_it_is_answered_that_it_is_https(site: Site) -> None:
    async with serving(config=site.write(site.serve())) as served:
        answer = await get(served, "/metrics")
        assert (answer.code, answer.body) == (400, b"This port serves HTTPS, not HTTP.\n")


async def test_without_a_certificate_http_is_spoken_and_users_are_asked_all_the_same(site: Site) -> None:
    async with serving(config=site.write(users(alice="right"))) as served:
        assert (await get(served, "/healthz")).code == 401


async def test_a_client_that_offers_http2_is_answered_in_http1(site: Site) -> None:
    async with serving(config=site.write(site.serve())) as served:
        tls = trusting()
        tls.set_alpn_protocols(["h2", "http/1.1"])
        scraper = await Scraper.connect(served, tls)
        assert scraper.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        assert (await scraper.get("/healthz")).code == 200
        scraper.close()


async def test_a_scraper_that_keeps_its_connection_shakes_hands_once(site: Site) -> None:
    async with serving(config=site.write(site.serve())) as served:
        tls = trusting()
        scraper = await Scraper.connect(served, tls)
        session = scraper.writer.get_extra_info("ssl_object")
        for _ in range(2):
            assert (await scraper.get("/metrics")).code == 200
        assert scraper.writer.get_extra_info("ssl_object") is session
        assert tls.session_stats()["connect_good"] == 1
        scraper.close()
        assert (await get(served, "/metrics", tls=tls)).code == 200
        assert tls.session_stats()["connect_good"] == 2


async def test_an_older_tls_than_allowed_is_refused(site: Site) -> None:
    async with serving(config=site.write(site.serve(), "  min_version: TLS13")) as served:
        old = trusting()
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with capture_logs() as logs:
            assert await refused(served, old)
            assert not await refused(served, trusting())
        assert served.web.refusals.counts == {"handshake": 1}
        assert [entry["why"] for entry in logs] == ["UNSUPPORTED_PROTOCOL"]


async def test_only_the_ciphers_that_are_named_are_spoken(site: Site) -> None:
    section = "  cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384]\n  max_version: TLS12"
    async with serving(config=site.write(site.serve(), section)) as served:
        for name, taken in (("ECDHE-ECDSA-AES128-GCM-SHA256", False), ("ECDHE-ECDSA-AES256-GCM-SHA384", True)):
            tls = trusting()
            tls.set_ciphers(name)
            assert await refused(served, tls) is not taken, name


# --- client certificates


async def test_only_a_certificate_of_the_authority_gets_in(site: Site) -> None:
    async with serving(config=site.write(site.serve(), site.demand())) as served:
        own = pem(authority().issue_cert("prometheus"))
        theirs = pem(authority("somebody else").issue_cert("prometheus"))
        late = pem(authority().issue_cert("prometheus", not_after=datetime.now(UTC) - timedelta(hours=1)))
        assert not await refused(served, trusting(own, site.folder))
        assert await refused(served, trusting(theirs, site.folder))
        assert await refused(served, trusting(late, site.folder))
        assert await refused(served, trusting())


async def test_an_intermediate_authority_alone_may_be_the_one_that_is_trusted(site: Site) -> None:
    """Go's verification, by which node_exporter reads the same file, needs no root above it."""
    intermediate = authority().create_child_ca()
    config = site.write(site.serve(), site.demand())
    (site.folder / "ca.crt").write_bytes(intermediate.cert_pem.bytes())
    async with serving(config=config) as served:
        assert not await refused(served, trusting(pem(intermediate.issue_cert("prometheus")), site.folder))
        assert await refused(served, trusting(pem(authority().issue_cert("prometheus")), site.folder))


async def test_a_certificate_that_need_not_be_given_must_be_right_if_it_is(site: Site) -> None:
    async with serving(config=site.write(site.serve(), site.demand("VerifyClientCertIfGiven"))) as served:
        theirs = pem(authority("somebody else").issue_cert("prometheus"))
        assert not await refused(served, trusting())
        assert await refused(served, trusting(theirs, site.folder))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_name_of_the_list_must_be_in_the_certificate(site: Site, version: ssl.TLSVersion) -> None:
    allowed = ["prometheus", "10.0.0.1", "2001:db8::1", "ops@example.org", "spiffe://site/prometheus"]
    config = site.write(site.serve(), site.demand(sans=allowed), f"  max_version: TLS1{version - 769}")
    async with serving(config=config) as served:
        for name in ("prometheus", "10.0.0.1", "2001:db8::1", "ops@example.org"):
            assert not await refused(served, trusting(pem(authority().issue_cert(name)), site.folder)), name
        assert not await refused(served, trusting(pem(authority().issue_cert("x", "prometheus")), site.folder))
        assert not await refused(served, trusting(with_uri("spiffe://site/prometheus"), site.folder))
        with capture_logs() as logs:
            for name in ("grafana", "10.0.0.2", "prometheus.example.org", "*.prometheus"):
                assert await refused(served, trusting(pem(authority().issue_cert(name)), site.folder)), name
            assert await refused(served, trusting(with_uri("spiffe://site/other"), site.folder))
            assert await refused(served, trusting(pem(authority().issue_cert(common_name="prometheus")), site.folder))
        assert served.web.refusals.counts["name"] == 6
        assert [entry["why"] for entry in logs] == [  # one line a minute
            "its certificate has no name of client_allowed_sans (it has: grafana)"
        ]


async def test_where_a_name_is_wanted_no_certificate_is_a_wrong_one(site: Site) -> None:
    config = site.write(site.serve(), site.demand("VerifyClientCertIfGiven", sans=["prometheus"]))
    async with serving(config=config) as served:
        assert await refused(served, trusting())


# --- certificates come and go


async def test_an_expired_certificate_is_replaced_without_a_restart(site: Site) -> None:
    async with serving(config=site.write(site.serve(old=True))) as served:
        served.now[0] = Stamp(UPTIME, time.time())
        assert "has expired" in served.web.error(served.now[0])
        assert await refused(served, trusting())
        site.serve()
        await until(lambda: accepted(served, trusting()))
        assert served.web.error(served.now[0]) == ""


async def accepted(served: Served, tls: ssl.SSLContext) -> bool:
    return not await refused(served, tls)


async def test_a_certificate_about_to_expire_is_an_error_before_it_does(site: Site) -> None:
    async with serving(config=site.write(site.serve(life=timedelta(days=3)))) as served:
        now = time.time()
        assert served.web.error(Stamp(UPTIME, now)) == ""
        assert "expires in 6 h" in served.web.error(Stamp(UPTIME, now + 1.75 * 86400))


async def test_certificates_behind_a_link_that_is_turned_are_noticed(site: Site) -> None:
    """Kubernetes replaces a secret so: the names stay, and a link to their folder moves."""
    section = site.serve()
    for name in ("one", "two"):
        site.serve()
        (site.folder / name).mkdir()
        for file in ("server.crt", "server.key"):
            (site.folder / file).rename(site.folder / name / file)
    (site.folder / "now").symlink_to("one")
    async with serving(config=site.write(section.replace("server.", "now/server."))) as served:
        first = await certificate_of(served, trusting())
        (site.folder / "new").symlink_to("two")
        (site.folder / "new").rename(site.folder / "now")

        async def turned() -> bool:
            return await certificate_of(served, trusting()) != first

        await until(turned)


async def test_a_client_admitted_before_must_connect_again_after_a_change(site: Site) -> None:
    """A kept connection does not outlive the authority that let it in."""
    certificate = trusting(pem(authority().issue_cert("prometheus")), site.folder)
    served_section = site.serve()
    async with serving(config=site.write(served_section, site.demand())) as served:
        scraper = await Scraper.connect(served, certificate)
        assert (await scraper.get("/healthz")).headers.get("connection") != "close"
        (site.folder / "ca.crt").write_bytes(authority("somebody else").cert_pem.bytes())

        async def closing() -> bool:
            return (await scraper.get("/healthz")).headers.get("connection") == "close"

        await until(closing)
        assert await refused(served, certificate)
        scraper.close()


# --- garbage


async def test_a_handshake_that_is_not_finished_ends_by_its_deadline(site: Site) -> None:
    async with serving(config=site.write(site.serve()), handshake=0.5) as served:
        clients = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(3)]
        clients[1].sendall(b"\x16\x03\x01\x02\x00\x01\x00")
        clients[2].sendall(b"\x16")
        try:
            for client in clients:
                client.setblocking(False)
                async with asyncio.timeout(PATIENCE):
                    with contextlib.suppress(ConnectionError):
                        assert await asyncio.get_running_loop().sock_recv(client, 100) == b""
            assert served.web.refusals.counts == {"handshake": 3}
        finally:
            for client in clients:
                client.close()


@pytest.mark.parametrize("sent", [b"\x16\x03\x01\xff\xff" + b"\xff" * 70000, b"\x00" * 100, b"\x80\x02\x01\x00\x02"])
async def test_garbage_ends_its_connection_and_nothing_else(site: Site, sent: bytes) -> None:
    async with serving(config=site.write(site.serve())) as served:
        with capture_logs() as logs:
            async with asyncio.timeout(PATIENCE):
                reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
                with contextlib.suppress(ConnectionError):
                    writer.write(sent)
                    await reader.read()
                writer.close()
            assert (await get(served, "/healthz", tls=trusting())).code == 200
        assert [entry["kind"] for entry in logs] == ["handshake"]


async def test_a_file_that_turned_bad_since_it_was_checked_keeps_it_from_listening(site: Site) -> None:
    with pytest.raises(ListenError, match=r"web configuration has a fault: .*web\.yml: cannot read it"):
        async with serving(config=site.path):
            raise AssertionError("it listens")
