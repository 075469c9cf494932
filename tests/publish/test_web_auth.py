"""Basic auth: everything is behind it, a wrong password costs the daemon little and reveals nothing, a right one is checked once."""

from __future__ import annotations

import asyncio
import base64
import ssl
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gpuwarden.base.background import BackgroundWriter
from gpuwarden.publish.web.auth import KNOWN_MOST, Login, Passwords
from gpuwarden.publish.web.lanes import WAITING_MOST
from support.web_certificates import Site, hashed, trusting, users
from support.web_server import PATIENCE, Scraper, Served, get, serving


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def basic(name: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"


def checks(served: Served) -> int:
    """Return how many passwords were to be hashed so far."""
    checker = served.web._guard._checker
    assert checker is not None
    return checker._submitted


async def login(
    served: Served, name: str, password: str, path: str = "/healthz", tls: ssl.SSLContext | None = None
) -> int:
    return (await get(served, path, tls=tls, Authorization=basic(name, password))).code


async def test_everything_is_behind_the_password(site: Site) -> None:
    """The exporter-toolkit does the same, for /healthz and missing pages, too."""
    async with serving(config=site.write(users(alice="right"))) as served:
        for path in ("/metrics", "/healthz", "/readyz", "/heartbeat", "/v1/notice", "/", "/nothing"):
            answer = await get(served, path)
            assert (answer.code, answer.headers["www-authenticate"]) == (401, 'Basic realm="gpuwarden"')
            assert (await get(served, path, "POST")).code == 401
        assert await login(served, "alice", "right", "/metrics") == 200
        assert await login(served, "alice", "right", "/nothing") == 404


@pytest.mark.parametrize(
    "authorization",
    [
        "", "Basic", "Basic ", "Basic !!!!", "Basic YWxpY2U=", "Bearer right", basic("alice", "wrong"), basic("alice", ""),
        basic("alice", "right "), basic("bob", "right"), basic("", "right"), basic("ALICE", "right"), basic("alice", "r" * 2000),
        basic("alice", "right\0"), basic("ålice", "right"), "Basic " + "=" * 100,
    ],
)  # fmt: skip
async def test_every_failed_login_gets_one_and_the_same_response(site: Site, authorization: str) -> None:
    async with serving(config=site.write(users(alice="right"))) as served:
        answer = await get(served, "/metrics", Authorization=authorization)
        assert (answer.code, answer.document) == (401, {"error": "name and password are needed"})


async def test_names_and_passwords_may_hold_what_utf8_can(site: Site) -> None:
    async with serving(config=site.write(users(zoë="pa:ss wörd", long="x" * 72))) as served:
        assert await login(served, "zoë", "pa:ss wörd") == 200
        assert await login(served, "long", "x" * 72) == 200
        assert await login(served, "long", "x" * 71) == 401


async def test_hashes_as_htpasswd_and_others_write_them_are_taken(site: Site) -> None:
    plain = hashed("right")
    spelled = [plain.replace("$2y$", prefix) for prefix in ("$2a$", "$2b$", "$2y$")]
    section = "".join(f"  user{number}: {hash_}\n" for number, hash_ in enumerate(spelled))
    async with serving(config=site.write(f"basic_auth_users:\n{section}")) as served:
        assert [await login(served, f"user{number}", "right") for number in range(3)] == [200, 200, 200]


async def test_a_right_password_is_hashed_once_and_a_wrong_one_each_time(site: Site) -> None:
    async with serving(config=site.write(users(alice="right"))) as served:
        for _ in range(5):
            assert await login(served, "alice", "right") == 200
        assert checks(served) == 1
        for _ in range(3):
            assert await login(served, "alice", "wrong") == 401
        assert checks(served) == 4


async def test_a_name_that_nobody_has_is_hashed_like_any_other(site: Site) -> None:
    async with serving(config=site.write(users(alice="right", bob="other"))) as served:
        for name in ("alice", "bob", "nobody", "", "root"):
            before = checks(served)
            assert await login(served, name, "wrong") == 401
            assert checks(served) == before + 1


async def test_the_password_of_somebody_is_nothing_to_a_name_that_nobody_has(site: Site) -> None:
    async with serving(config=site.write(users(alice="right"))) as served:
        assert await login(served, "nobody", "right") == 401
        assert await login(served, "alice", "right") == 200
        assert await login(served, "nobody", "right") == 401


async def test_the_same_login_at_the_same_time_is_hashed_once(site: Site) -> None:
    async with serving(config=site.write(users(alice="right", cost=8))) as served:
        codes = await asyncio.gather(*(login(served, "alice", "right") for _ in range(20)))
        assert (set(codes), checks(served)) == ({200}, 1)


@pytest.mark.slow
async def test_many_wrong_logins_delay_no_known_client(site: Site) -> None:
    async with serving(config=site.write(site.serve(), users(alice="right", cost=12))) as served:
        tls = trusting()
        scraper = await Scraper.connect(served, tls)
        assert (await scraper.get("/metrics", Authorization=basic("alice", "right"))).code == 200
        wrong_logins = [asyncio.create_task(login(served, "alice", f"no{number}", tls=tls)) for number in range(8)]
        async with asyncio.timeout(PATIENCE):
            while len(served.web._guard._passwords._lanes) < 7:  # type: ignore[union-attr]
                await asyncio.sleep(0.01)
        answer = await scraper.get("/metrics", Authorization=basic("alice", "right"))
        assert (answer.code, answer.body) == (200, served.holder.page.text)
        assert any(not task.done() for task in wrong_logins), "it waited until all of them were checked"
        scraper.close()
        assert set(await asyncio.gather(*wrong_logins)) <= {401, 503}


async def test_more_logins_than_may_wait_are_refused_as_busy() -> None:
    checker = BackgroundWriter("passwords", 2, on_error=lambda _: None)
    passwords = Passwords({"alice": hashed("right", cost=10)}, checker)
    logins = await asyncio.gather(*(passwords.login(basic("alice", f"no{number}"), PATIENCE) for number in range(20)))
    assert set(logins) == {Login.WRONG, Login.BUSY}
    assert await passwords.login(basic("alice", "right"), PATIENCE) is Login.RIGHT
    checker.close(PATIENCE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("address", "name"), [("10.0.0.7", "alice"), ("10.0.0.8", "nobody")], ids=["another address", "another name"]
)
async def test_a_flood_of_wrong_logins_keeps_out_no_right_one_that_is_new(address: str, name: str) -> None:
    """Prometheus is new after a restart of the daemon: it waits for one check of each lane, and not for 64 of them."""
    checker = BackgroundWriter("passwords", 64, on_error=lambda _: None)
    passwords = Passwords({"alice": hashed("right", cost=10)}, checker)
    flood = [asyncio.create_task(passwords.login(basic(name, f"no{n}"), PATIENCE, address)) for n in range(300)]
    await asyncio.sleep(0)
    before = checker._submitted
    assert await passwords.login(basic("alice", "right"), PATIENCE, "10.0.0.8") is Login.RIGHT
    assert checker._submitted - before <= 3  # one of the flood, its own, and the next
    assert set(await asyncio.gather(*flood)) == {Login.WRONG, Login.BUSY}
    checker.close(PATIENCE)


async def test_crowds_at_many_addresses_leave_a_place_for_another() -> None:
    checker = BackgroundWriter("passwords", 64, on_error=lambda _: None)
    passwords = Passwords({"alice": hashed("right", cost=6)}, checker)
    flood = [
        asyncio.create_task(passwords.login(basic("alice", f"no{n}"), PATIENCE, f"10.0.0.{n % 20}")) for n in range(400)
    ]
    await asyncio.sleep(0)
    assert len(passwords._lanes) == WAITING_MOST
    assert await passwords.login(basic("alice", "right"), PATIENCE, "10.0.1.1") is Login.RIGHT
    assert set(await asyncio.gather(*flood)) == {Login.WRONG, Login.BUSY}
    checker.close(PATIENCE)


async def test_a_login_that_is_not_checked_in_time_is_right_when_it_comes_again() -> None:
    checker = BackgroundWriter("passwords", 2, on_error=lambda _: None)
    passwords = Passwords({"alice": hashed("right", cost=12)}, checker)
    assert await passwords.login(basic("alice", "right"), 0.001) is Login.BUSY
    async with asyncio.timeout(PATIENCE):
        while (outcome := await passwords.login(basic("alice", "right"), 0.001)) is Login.BUSY:
            await asyncio.sleep(0.01)
    assert (outcome, checker._submitted) == (Login.RIGHT, 1)
    checker.close(PATIENCE)


async def test_what_is_remembered_is_bounded_and_is_no_password() -> None:
    checker = BackgroundWriter("passwords", 2, on_error=lambda _: None)
    passwords = Passwords({"alice": hashed("right")}, checker)
    header = basic("alice", "right")
    for number in range(KNOWN_MOST + 10):
        assert await passwords.login(f"Basic{' ' * (number + 1)}{header[6:]}", 60.0) is Login.RIGHT
    assert len(passwords._known) == KNOWN_MOST
    assert not any(b"right" in digest or header[6:].encode() in digest for digest in passwords._known)
    checker.close(60.0)


async def test_neither_passwords_nor_names_reach_the_log_or_a_page(site: Site) -> None:
    with capture_logs() as logs:
        async with serving(config=site.write(site.serve(), users(alice="hunter2"))) as served:
            tls = trusting()
            for name, password in (("alice", "hunter2"), ("alice", "hunter3"), ("hunter4", "x")):
                await get(served, "/metrics", tls=tls, Authorization=basic(name, password))
            shown = (await get(served, "/v1/status", tls=tls, Authorization=basic("alice", "hunter2"))).body
    assert served.web.refusals.counts == {"login": 2}
    assert all("hunter" not in str(entry) and "alice" not in str(entry) for entry in logs)
    assert b"hunter" not in shown + served.holder.page.text
