"""The web-config file changes under a running server: a valid one takes effect, a faulty one changes nothing and is reported."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gpuwarden.publish.web.guard import SESSIONS_MOST
from support.waiting import until
from support.web_certificates import Site, hashed, trusting, users
from support.web_server import Scraper, Served, get, serving


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def error_of(served: Served) -> str:
    return served.web.error(served.now[0])


def in_force(served: Served, name: str) -> bool:
    return name in served.web._guard._config.users


ALICE = "Basic YWxpY2U6cmlnaHQ="  # alice:right


async def test_users_come_and_go_without_a_restart(site: Site) -> None:
    async with serving(config=site.write(users(alice="right"))) as served:
        assert (await get(served, "/healthz", Authorization=ALICE)).code == 200
        site.write(users(bob="x"))
        await until(lambda: in_force(served, "bob"))
        assert (await get(served, "/healthz", Authorization=ALICE)).code == 401  # though it was remembered
        site.write(users(alice="right"))
        await until(lambda: in_force(served, "alice"))
        assert (await get(served, "/healthz", Authorization=ALICE)).code == 200


async def test_a_new_password_ends_the_old_one(site: Site) -> None:
    async with serving(config=site.write(users(alice="right"))) as served:
        assert (await get(served, "/healthz", Authorization=ALICE)).code == 200
        site.write(users(alice="new", marker="x"))
        await until(lambda: in_force(served, "marker"))
        assert (await get(served, "/healthz", Authorization=ALICE)).code == 401


async def test_a_faulty_file_changes_nothing_and_is_reported_until_it_is_fixed(site: Site) -> None:
    with capture_logs() as logs:
        async with serving(config=site.write(users(alice="right"))) as served:
            site.write("basic_auth_users: {alice: oops}")
            await until(lambda: error_of(served))
            assert "basic_auth_users.alice: expected a bcrypt hash" in error_of(served)
            assert error_of(served).endswith("the previous configuration stays in force")
            assert (await get(served, "/healthz", Authorization=ALICE)).code == 200
            site.write(users(alice="right", bob="x"))
            await until(lambda: in_force(served, "bob"))
            assert error_of(served) == ""
    errors = [entry for entry in logs if entry["log_level"] == "error"]
    assert len(errors) == 1
    assert "expected a bcrypt hash" in errors[0]["reason"]


async def test_a_file_that_is_gone_or_without_its_key_changes_nothing(site: Site) -> None:
    async with serving(config=site.write(site.serve(), users(alice="right"))) as served:
        (site.folder / "server.key").rename(site.folder / "away")
        await until(lambda: "server.key: No such file" in error_of(served))
        assert (await get(served, "/healthz", tls=trusting(), Authorization=ALICE)).code == 200
        (site.folder / "away").rename(site.folder / "server.key")
        await until(lambda: error_of(served) == "")
        site.path.unlink()
        await until(lambda: "cannot read it" in error_of(served))
        assert (await get(served, "/healthz", tls=trusting(), Authorization=ALICE)).code == 200


@pytest.mark.parametrize("requirement", ["", "TLS", "basic auth", "client certificates", "client_allowed_sans"])
async def test_what_was_closed_is_opened_by_a_restart_alone(site: Site, requirement: str) -> None:
    """A file is empty while it is written."""
    served_section, logins = site.serve(), users(alice="right")
    names = "  client_allowed_sans: [prometheus]\n"
    demand = site.demand()
    left = {
        "": "", "TLS": logins, "basic auth": served_section + demand + names, "client certificates": served_section + logins,
        "client_allowed_sans": served_section + demand + logins,
    }  # fmt: skip
    async with serving(config=site.write(served_section, demand, names, logins)) as served:
        before = served.web._guard._config
        site.write(left[requirement])
        await until(lambda: f"no longer requires {requirement or 'TLS'}: restart gpuwarden" in error_of(served))
        assert served.web._guard._config is before
        site.write(served_section, demand, names, logins)
        await until(lambda: error_of(served) == "")


async def test_tls_and_users_can_be_added_while_it_runs(site: Site) -> None:
    async with serving(config=site.write("")) as served:
        assert (await get(served, "/healthz")).code == 200
        site.write(site.serve(), users(alice="right"))
        await until(lambda: in_force(served, "alice"))
        assert (await get(served, "/healthz")).body == b"This port serves HTTPS, not HTTP.\n"
        assert (await get(served, "/healthz", tls=trusting(), Authorization=ALICE)).code == 200


async def test_headers_and_limits_change_too(site: Site) -> None:
    async with serving(config=site.write("")) as served:
        site.write("http_server_config: {headers: {X-Frame-Options: deny}}\nrate_limit: {interval: 1h, burst: 2}")
        await until(lambda: served.web._guard.headers)
        first = await get(served, "/healthz")
        assert (first.code, first.headers["x-frame-options"]) == (200, "deny")
        assert (await get(served, "/nothing")).headers["x-frame-options"] == "deny"
        limited = await get(served, "/healthz")
        assert (limited.code, limited.headers["x-frame-options"]) == (429, "deny")


async def test_no_scrape_fails_while_certificates_and_users_are_replaced_again_and_again(site: Site) -> None:
    """Every request is answered, by the old state or by the new one."""
    async with serving(config=site.write(site.serve(), users(alice="right")), check_every=0.01) as served:
        tls, done, taken = trusting(), asyncio.Event(), []

        async def scrape() -> int:
            asked = 0
            while not done.is_set():
                answer = await get(served, "/metrics", tls=tls, Authorization=ALICE)
                assert (answer.code, answer.body) == (200, served.holder.page.text)
                asked += 1
            return asked

        scrapers = [asyncio.create_task(scrape()) for _ in range(4)]
        for number in range(10):
            name = f"user{number}"
            site.write(site.serve(), users(alice="right"), f"  {name}: {hashed('x')}")
            await until(lambda name=name: in_force(served, name) or any(task.done() for task in scrapers))  # type: ignore[misc]  # bound at once
            taken.append(served.web._guard.tls)
        done.set()
        assert all(asked > 0 for asked in await asyncio.gather(*scrapers))
        assert len(set(map(id, taken))) == 10
        assert error_of(served) == ""


@pytest.mark.slow
async def test_sessions_that_openssl_keeps_do_not_pile_up(site: Site) -> None:
    """TLS 1.2 without tickets: the library remembers each handshake, until its context is replaced."""
    async with serving(config=site.write(site.serve(), "  max_version: TLS12")) as served:
        first = served.web._guard.tls
        assert first is not None
        asked, tls = 0, trusting()
        while served.web._guard.tls is first and asked < SESSIONS_MOST * 4:
            scraper = await Scraper.connect(served, tls)
            assert (await scraper.get("/healthz")).code == 200
            scraper.close()
            asked += 1
        assert served.web._guard.tls is not first
