"""Who is out is counted by Prometheus where no scheduler counts; and where nobody can count, nobody is taken out."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from gpuwarden.actuators.base import BudgetUnknown
from gpuwarden.actuators.prometheus_count import POOL_ASSUMED, PrometheusCounter, queries
from gpuwarden.actuators.reconciler import Limits, Reconciler
from gpuwarden.base.fisher import MARKED_LEAST
from gpuwarden.config.policy import BreakerOptions
from gpuwarden.config.secrets import SecretFile
from gpuwarden.policy.breaker import refusal
from gpuwarden.policy.model import Act, Budget, FleetCount, Held, Intent, NodeState, Owner, Result, Why
from gpuwarden_collectors.base import host_clock
from gpuwarden_collectors.facts import Stamp
from support.daemons import FakeHost, RunningDaemon
from support.prometheus import Server, prometheus, wait
from support.prometheus_script import Answer, api_server, drip, endless, plain, series, vector
from support.serving import serving

BOOT = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
NOW = 1_800_000_000.0
QUERIES = queries("n1", BOOT, 'cluster="a"')


def named(instance: str) -> dict[str, str]:
    return {"cluster": "a", "job": "gpuwarden", "instance": instance}


def counter(port: int, **more: object) -> PrometheusCounter:
    options = BreakerOptions(prometheus=f"http://127.0.0.1:{port}", prometheus_match='cluster="a"', **more)  # type: ignore[arg-type]
    return PrometheusCounter(options, node="n1", boot_id=BOOT, clock=lambda: Stamp(0.0, NOW))


def site(scraped: float = NOW - 10, at: float = NOW, pool: int = 4, **held: float) -> Callable[..., Answer]:
    """`held`: since when these are out."""
    answers = {
        "own": [series(at, scraped, named("n1"))],
        "pool": [series(at, pool, {})],
        "held": [series(at, 1, named(node)) for node in held],
        "domains": [],
        "since": [series(at, since, named(node)) for node, since in held.items()],
    }

    def respond(_: str, query: str, __: dict[str, str]) -> Answer:
        return vector(next(answers[name] for name, text in QUERIES.items() if text == query))

    return respond


async def fleet_count(respond: Callable[..., Answer], **more: object) -> FleetCount:
    with api_server(respond) as port:
        return await counter(port, **more).fleet_count()


async def test_it_counts_nodes_in_the_order_in_which_they_went_out() -> None:
    count = await fleet_count(site(n2=NOW - 100, n3=NOW - 50, pool=8))
    assert (count.pool, count.node, count.now) == (8, "a/gpuwarden/n1", NOW)
    assert sorted(held.node for held in count.held) == ["a/gpuwarden/n2", "a/gpuwarden/n3"]
    assert "2 of 8 nodes are excluded" in refusal(Budget(percent=25), count)
    assert refusal(Budget(percent=50), count) == ""
    assert count.visible_after >= 60.0  # what is written now may be scraped as late as that
    own = await fleet_count(site(n1=NOW - 200, n2=NOW - 100, n3=NOW - 50, pool=8))
    assert refusal(Budget(percent=25), own) == ""


async def test_it_knows_the_nvlink_domain_of_each_excluded_node() -> None:
    uuid = "8f3c6a1e-5b1d-4d6e-9c55-0d2f7a0be111"
    cliques = {"n2": (uuid, "0"), "n3": (uuid, "1"), "n4": ("8f3c6a1e-x+9", "0+1")}

    def respond(path: str, query: str, headers: dict[str, str]) -> Answer:
        if query == QUERIES["domains"]:
            of = {node: {"cluster_uuid": uuid, "clique": clique} for node, (uuid, clique) in cliques.items()}
            return vector([series(NOW, 1, named(node) | labels) for node, labels in of.items()])
        return site(n2=NOW - 9, n3=NOW - 8, n4=NOW - 7, n5=NOW - 6, pool=100)(path, query, headers)

    count = await fleet_count(respond)
    assert [held.domain for held in sorted(count.held)] == ["8f3c6a1e.0", "8f3c6a1e.1", "8f3c6a1e.0", ""]


async def test_what_the_excluded_nodes_share_with_this_node_is_in_the_reason() -> None:
    """E04: each node with the new driver fails. Counted in the background: the first refusal does not wait for it."""
    out = {f"n{number}": NOW - 100 - number for number in range(2, 12)}
    counts = {"driver": (12, 10), "rack": (40, 2), "model": (200, 10), "cluster": (200, 10)}
    of = {"cluster": "a", "driver": "535.54.03", "rack": "r7", "model": "NVIDIA A10G", "vbios": ""}

    def respond(path: str, query: str, headers: dict[str, str]) -> Answer:
        if query.startswith("gpuwarden_machine_info{"):
            return vector([series(NOW, 1, named("n1") | of)])
        for name, (having, held) in counts.items():
            if f'gpuwarden_machine_info{{{name}="{of[name]}",cluster="a"}}[20m]' in query:
                return vector([series(NOW, held if "gpuwarden_excluded" in query else having, {})])
        return site(pool=200, **out)(path, query, headers)

    with api_server(respond) as port:
        counting = counter(port, percent=5)
        first = await counting.fleet_count()
        assert (first.shared, len(first.held)) == ("", 10)
        running = counting._shared._running
        assert running is not None
        await running
        second = await counting.fleet_count()
    assert refusal(Budget(percent=5), second) == (
        "10 of 200 nodes are excluded for failures (limit 10); 10 of the 10 excluded have driver=535.54.03, as this node has, "
        "and 2 of 190 others"
    )


async def test_limits_that_were_lowered_after_the_start_are_explained_too() -> None:
    out = {f"n{number}": NOW - 100 - number for number in range(2, 2 + MARKED_LEAST)}
    with api_server(site(pool=200, **out)) as port:
        counting = counter(port, percent=50, count=100)
        count = await counting.fleet_count()
        assert not refusal(counting._options, count)
        assert refusal(Budget(count=MARKED_LEAST), count)
        assert counting._shared._running is not None


async def test_few_excluded_nodes_ask_for_no_labels() -> None:
    out = {f"n{number}": NOW - 100 - number for number in range(2, 1 + MARKED_LEAST)}
    with api_server(site(pool=8, **out)) as port:
        counting = counter(port)
        assert (await counting.fleet_count()).shared == ""
        assert counting._shared._running is None


async def test_a_node_that_two_jobs_scrape_is_not_counted_as_excluded_before_itself() -> None:
    once = site(pool=2, n1=NOW - 50)
    twice = {**named("n1"), "job": "again"}

    def respond(path: str, query: str, headers: dict[str, str]) -> Answer:
        if query == QUERIES["own"]:
            return vector([series(NOW, NOW - 10, named("n1")), series(NOW, NOW - 12, twice)])
        if query == QUERIES["held"]:
            return vector([series(NOW, 1, twice), series(NOW, 1, named("n1"))])
        return once(path, query, headers)

    assert refusal(Budget(percent=50, count=1), await fleet_count(respond)) == ""


HANG = drip(b"")
NO_COUNT: dict[str, tuple[Callable[..., Answer], str]] = {
    "it has not scraped us for long": (site(scraped=NOW - 61), "has not scraped this node for 61 s"),
    "a cache answers": (site(at=NOW - 61, scraped=NOW - 62), "the result is 61 s old: a cache answers"),
    "its clock is ahead": (site(at=NOW + 61, scraped=NOW + 60), "a clock is wrong"),
    "it does not know us": (lambda *_: vector([]), "has no sample of this node in this boot"),
    "it knows of a part only": (lambda *_: vector([series(NOW, NOW, named("n1"))], ["store away"]), "store away"),
    "it refuses": (lambda *_: plain(401, b"no"), "give breaker.prometheus_token"),
    "it is busy": (lambda *_: plain(503, b"no"), "answers 503"),
    "it sends us on": (lambda *_: plain(302, b"", Location="http://elsewhere/"), "which is not followed"),
    "it is no Prometheus": (lambda *_: plain(200, b"<html>"), "is not Prometheus"),
    "its answer has no end": (lambda *_: Answer(200, endless(), {}), "more than 8 MiB"),
    "it never answers": (lambda *_: HANG, "has not answered within"),
}


@pytest.mark.parametrize(("respond", "message"), NO_COUNT.values(), ids=NO_COUNT)
async def test_what_cannot_be_counted_by_is_no_count(
    respond: Callable[..., Answer], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "within" in message:
        monkeypatch.setattr("gpuwarden.actuators.prometheus_count.RESPONSE_WITHIN", 0.2)
    with pytest.raises(BudgetUnknown, match="budget_unknown") as raised:
        await fleet_count(respond)
    assert message in str(raised.value)


async def test_the_pool_size_is_queried_in_the_background_and_long_after_the_start() -> None:
    now = [1_000.0]
    with api_server(site(pool=8)) as port:
        options = BreakerOptions(prometheus=f"http://127.0.0.1:{port}", prometheus_match='cluster="a"')
        counting = PrometheusCounter(options, node="n1", boot_id=BOOT, clock=lambda: Stamp(now[0], NOW))
        assert (counting.pool, counting._sizing) == (POOL_ASSUMED, None)
        now[0] += 1_200.0
        assert counting.pool == POOL_ASSUMED  # it waits for nobody
        assert counting._sizing is not None
        await counting._sizing
        assert (await counting.fleet_count()).pool == counting.pool == 8


async def test_credentials_come_from_a_file_that_is_read_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    seen: list[str] = []

    def respond(path: str, query: str, headers: dict[str, str]) -> Answer:
        seen.append(headers.get("authorization", ""))
        return site()(path, query, headers)

    with api_server(respond) as port:
        with_token = counter(port, prometheus_token=SecretFile(str(token)))
        for text in ("first", "second"):
            token.write_text(text)
            await with_token.fleet_count()
        token.unlink()
        with pytest.raises(BudgetUnknown, match=f"cannot read {token}"):
            await with_token.fleet_count()
        monkeypatch.setattr("gpuwarden.actuators.prometheus_count.RESPONSE_WITHIN", 0.0)
        monkeypatch.setattr("gpuwarden.actuators.prometheus_count.READ_WITHIN", 0.1)
        os.mkfifo(token)
        with pytest.raises(BudgetUnknown, match="does their file system hang"):
            await with_token.fleet_count()
        with token.open("w"):  # a process that waits for it ends
            pass
    assert list(dict.fromkeys(seen)) == ["Bearer first", "Bearer second"]


class Scraped:
    """Nodes that mark themselves, and a count that is as old as the last scrape, each `EVERY` seconds of the loop."""

    EVERY = 0.05
    sheds_load = False
    pool: int | None = 1

    def __init__(self, node: str, marked: dict[str, tuple[str, float]]) -> None:
        self.name, self.node, self.marked = "file", node, marked

    async def read(self) -> NodeState:
        reason, since = self.marked.get(self.node, ("", 0.0))
        owner, why = (Owner.OURS, Why.FAILURE) if reason else (Owner.NONE, None)
        return NodeState(at=Stamp(0.0, 0.0), owner=owner, why=why, reason=reason, since=since, pool=1)

    async def fleet_count(self) -> FleetCount:
        now = asyncio.get_running_loop().time()
        seen = tuple(Held(at, node) for node, (_, at) in self.marked.items() if at < now - now % self.EVERY)
        return FleetCount(node=self.node, pool=100, held=seen, now=now, visible_after=4 * self.EVERY)

    async def apply(self, intent: Intent, state: NodeState) -> None:
        assert state.reachable
        if intent.act is Act.EXCLUDE:
            self.marked[self.node] = (intent.reason, asyncio.get_running_loop().time())
        else:
            self.marked.pop(self.node)

    async def close(self) -> None:
        pass


async def test_of_all_that_fail_between_two_scrapes_as_many_stay_out_as_may_and_the_first() -> None:
    marked: dict[str, tuple[str, float]] = {}
    limits = Limits(budget=Budget(percent=100, count=3), recount_after=0.0)

    async def committed() -> bool:
        return True

    async def fails(node: str) -> Result:
        box = Reconciler(
            Scraped(node, marked), committed=committed, wanted=lambda _: True, on_read=lambda: None, limits=limits,
            clock=host_clock,
        )  # fmt: skip
        intent = Intent(
            act=Act.EXCLUDE, actuator="file", why=Why.FAILURE, reason="gpuwarden: failure gpu_missing", key=node,
            at=Stamp(0.0, 0.0),
        )  # fmt: skip
        await box.read()
        return (await box.attempt(intent))[0].result

    results = await asyncio.gather(*(fails(f"n{number:02}") for number in range(40)))
    assert results.count(Result.DONE) == 3
    assert sorted(marked) == ["n00", "n01", "n02"]


# --- a real Prometheus


@contextmanager
def page(text: Callable[[], str]) -> Iterator[int]:
    """Serve a node's metrics, and yield the port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(text().encode())

        def log_message(self, *_: object) -> None:
            pass

    with serving(Handler) as port:
        yield port


def configure(host: FakeHost, server: Server) -> None:
    host.configure(
        f'[file]\npath = "{host.folder}/out"\n[breaker]\nprometheus = "http://127.0.0.1:{server.port}"\n'
        "prometheus_match = 'cluster=\"a\"'\npercent = 100\ncount = 1\n"
    )
    host.config.write_text(f'mode = "enforce"\n{host.config.read_text()}')


OUT = (
    'gpuwarden_node_info{node="n2",boot_id="b"} 1\ngpuwarden_excluded{actuator="file",owner="gpuwarden",cause="failure"} 1\n'
    'gpuwarden_excluded_since_timestamp_seconds{actuator="file",owner="gpuwarden",cause="failure"} '
)


@pytest.mark.slow
@pytest.mark.xdist_group("prometheus")
def test_by_a_real_prometheus_a_node_is_kept_in_and_taken_out(tmp_path: Path) -> None:
    """First it does not know the node; then it does, and of another one that it was taken out two hours ago."""
    host = FakeHost(tmp_path, gpus=2)
    host.seclude()
    marker, config = tmp_path / "out", tmp_path / "prometheus.yml"
    since = int(time.time() - 7200)
    scraped: list[RunningDaemon] = []  # one, behind an address that is known before its own

    def own() -> str:
        return scraped[0].get("/metrics")[1].decode() if scraped else ""

    with page(own) as us, page(lambda: f"{OUT}{since}\n") as other:
        config.write_text(
            "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
            "scrape_configs: [{job_name: gpuwarden, static_configs: [{labels: {cluster: a}, "
            f'targets: ["127.0.0.1:{us}", "127.0.0.1:{other}"]}}]}}]\n'
        )
        with prometheus(config, tmp_path) as server:
            configure(host, server)
            with host.daemon() as daemon:
                daemon.wait_status("healthy")
                host.xid(1, 95)
                daemon.wait(partial(held_back, daemon, "budget_unknown"), "nobody to count")
                assert "gpuwarden_breaker_open 1" in daemon.get("/metrics")[1].decode()
                assert not marker.exists()
                daemon.kill()
            shutil.rmtree(host.state_dir)
            host.kmsg.write_text("")
            with host.daemon() as daemon:
                scraped.append(daemon)
                server.wait_query(f'gpuwarden_node_info{{instance="127.0.0.1:{us}"}}')
                server.wait_query(f"gpuwarden_excluded_since_timestamp_seconds == {since}")
                daemon.wait_status("healthy")
                host.xid(1, 95)
                daemon.wait(marker.exists, "the node to be taken out")
                written = datetime.fromisoformat(json.loads(marker.read_text())["since"]).timestamp()
                node, them = f"a/gpuwarden/127.0.0.1:{us}", f"a/gpuwarden/127.0.0.1:{other}"
                out = {(them, since), (node, round(written))}
                boot_id = daemon.heartbeat()["boot_id"]
                wait(lambda: asyncio.run(counted(server, boot_id)) == (node, 2, out), "both to be counted", server.log)
                scraped.clear()
                daemon.kill()


async def counted(server: Server, boot_id: str) -> tuple[str, int, set[tuple[str, int]]]:
    """Return the own node, how many there are, and who is out since when. A scrape that a busy host makes late leaves a node out."""
    options = BreakerOptions(prometheus=f"http://127.0.0.1:{server.port}", prometheus_match='cluster="a"')
    try:
        count = await PrometheusCounter(options, node="node7", boot_id=boot_id, clock=host_clock).fleet_count()
    except BudgetUnknown:
        return "", 0, set()
    return count.node, count.pool, {(exclusion.node, round(exclusion.since)) for exclusion in count.held}


def held_back(daemon: RunningDaemon, why: str) -> bool:
    return why in daemon.status()["actions"]["breaker"]
