"""The delay from a notice of a cloud's metadata service to the signal handler of a job's rank.

A real daemon queries the simulator, as it does in production: EC2 each second, Compute Engine by a hanging GET. The rank is a
process in a container's control group, a new one in each round, since no process is signalled twice; 2,000 other processes run.
In the same rounds a loop that only queries as often and kills shows the cost of querying alone. Then 64 containers are signalled
at once.
"""

from __future__ import annotations

import contextlib
import http.client
import mmap
import os
import random
import secrets
import signal
import statistics
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1] / "tests"))

from apart import apart
from bench_signals import running
from common import fake_host, percentile, spread, table
from gpuwarden.features.evacuation.pidfd import Order
from support.daemons import FakeHost, RunningDaemon
from support.job_trees import Forest, forest
from support.metadata import AwsCloud, Cloud, GcpCloud, Request, Response, Simulator, beside

ROUNDS = 40
JOBS, TURNS = 64, 7
OTHERS = 2000
PATIENCE = 60.0
INTERVAL = 1.0  # seconds, as configured by default
SIGNAL = "USR2"
"""Not the usual one: a daemon outside sees these ranks too, and would tell them if it acts."""


@dataclass(frozen=True)
class Source:
    """`key`: the simulator's key; `path`: the path that the bare loop queries; `wanted`: p99 in milliseconds."""

    name: str
    how: str
    cloud: Callable[[], Cloud]
    key: str
    ends: Callable[[], Any]
    goes_on: str | None
    path: str
    wanted: int


def _spot() -> dict[str, str]:
    end = datetime.fromtimestamp(time.time() + 500.0, UTC)
    return {"action": "terminate", "time": end.strftime("%Y-%m-%dT%H:%M:%SZ")}


SOURCES = (
    Source(
        "aws", f"asked each {INTERVAL:g} s", lambda: AwsCloud(need=False), "spot", _spot, None,
        "/latest/meta-data/spot/instance-action", 1300,
    ),
    Source(
        "gcp", "hanging GET", GcpCloud, "preempted", lambda: "TRUE", "FALSE",
        "/computeMetadata/v1/instance/preempted", 200,
    ),
)  # fmt: skip


@dataclass
class Taken:
    """Milliseconds of each round."""

    whole: list[float] = field(default_factory=list)  # from the announcement to the handler
    asked: list[float] = field(default_factory=list)  # from the announcement to the answer that has it
    ours: list[float] = field(default_factory=list)  # from that to the handler
    bare: list[float] = field(default_factory=list)  # from the announcement to the handler, by the loop beside


# --- ranks


class Ranks:
    """Processes that catch SIGNAL and note when; `join` makes one the rank of a container."""

    def __init__(self, orders: list[Order], times: mmap.mmap, trees: Forest) -> None:
        self.pids = [order.pid for order in orders]
        self._times = times
        self._trees = trees

    def join(self, number: int) -> None:
        group = Path(self._trees.cgroup(f"docker/{secrets.token_hex(32)}"))
        (group / "cgroup.procs").write_text(str(self.pids[number]))

    def heard(self, number: int) -> int:
        """Return when it was signalled, in nanoseconds of CLOCK_MONOTONIC. Waits for it."""
        end = time.monotonic() + PATIENCE
        while (at := int(struct.unpack_from("=Q", self._times, 8 * number)[0])) <= 1:
            if time.monotonic() > end:
                raise TimeoutError(f"rank {number} was not signalled within {PATIENCE:g} s")
            time.sleep(0.002)
        return at

    def end(self, number: int) -> None:
        os.kill(self.pids[number], signal.SIGKILL)


@contextlib.contextmanager
def ranks(count: int) -> Iterator[Ranks]:
    with forest() as trees, running(count, SIGNAL) as (orders, times):
        yield Ranks(orders, times, trees)


# --- the daemon and the service


@contextlib.contextmanager
def daemon_beside(service: Simulator, source: Source) -> Iterator[RunningDaemon]:
    with fake_host() as host:
        configure(host, service, source)
        with host.daemon() as daemon:
            up = f'gpuwarden_termination_source_up{{source="{source.name}"}} 1'.encode()
            daemon.wait(lambda: daemon.heartbeat()["sequence"] > 0, "the first pass")
            daemon.wait(lambda: up in daemon.get("/metrics")[1], "the service to be found")
            yield daemon


def configure(host: FakeHost, service: Simulator, source: Source) -> None:
    host.config.write_text(
        f'mode = "enforce"\n{host.config.read_text()}[termination]\nsources = ["{source.name}"]\n'
        f'[termination.{source.name}]\nendpoint = "{service.endpoint}"\ninterval = "{INTERVAL * 1000:.0f}ms"\n'
        f'[jobs]\nsignal = "{SIGNAL}"\n'
    )


class Asked:
    """Records the daemon's requests: whether one is pending, and when the first response with the notice was sent."""

    def __init__(self, cloud: Cloud, source: Source) -> None:
        self.waits = False
        self._given = 0
        respond = cloud.respond

        async def noting(request: Request) -> Response:
            ours = request.path == source.path and "gpuwarden" in request.headers.get("user-agent", "")
            self.waits |= ours and "last_etag" in request.query
            response = await respond(request)
            if ours:
                self.waits = False
                if not self._given and cloud.values[source.key] != source.goes_on:
                    self._given = time.monotonic_ns()
            return response

        cloud.values.setdefault(source.key, source.goes_on)
        cloud.respond = noting  # type: ignore[method-assign]

    def take(self) -> int:
        answer_time, self._given = self._given, 0
        return answer_time


def announce(service: Simulator, source: Source) -> int:
    """Announce the end of the machine at the source, and return when, in nanoseconds."""
    began = time.monotonic_ns()
    service.set_value_from_thread(source.key, source.ends())
    return began


def withdraw(service: Simulator, source: Source, daemon: RunningDaemon, asked: Asked) -> None:
    """Withdraw the notice, and wait until the daemon shows none and its request is as before."""
    service.set_value_from_thread(source.key, source.goes_on)
    hangs = source.goes_on is not None
    until(lambda: not daemon.heartbeat()["notice"] and asked.waits is hangs, "the notice to be gone")
    asked.take()


def until(condition: Callable[[], bool], awaited: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {PATIENCE:g} s in vain for {awaited}")
        time.sleep(0.1)


def ask_and_kill(service: Simulator, source: Source, pid: int) -> None:
    """Query the source in its own way until it announces an end, then kill the process at once."""
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=PATIENCE)
    headers, tag = {"Metadata-Flavor": "Google"}, ""
    while True:
        began = time.monotonic()
        connection.request(
            "GET", source.path + (f"?wait_for_change=true&last_etag={tag}" if tag else ""), headers=headers
        )
        answer = connection.getresponse()
        tag = answer.headers.get("ETag", "")
        body = answer.read()
        if answer.status == 200 and body != (source.goes_on or "").encode():
            break
        if not tag:
            time.sleep(max(0.0, began + INTERVAL - time.monotonic()))
    os.kill(pid, signal.Signals[f"SIG{SIGNAL}"])
    connection.close()


# --- what is measured


def one_by_one(source: Source) -> Taken:
    taken, chance = Taken(), random.Random(1)
    cloud = source.cloud()
    asked = Asked(cloud, source)
    with beside(cloud) as service, ranks(2 * ROUNDS) as here, daemon_beside(service, source) as daemon:
        until(lambda: asked.waits or source.goes_on is None, "the daemon to wait for an answer")
        for ours in range(ROUNDS):
            bare = ROUNDS + ours
            here.join(ours)
            beside_it = threading.Thread(target=ask_and_kill, args=(service, source, here.pids[bare]))
            beside_it.start()
            time.sleep(chance.uniform(0.5, 0.5 + INTERVAL))
            began = announce(service, source)
            heard, answer_time = here.heard(ours), asked.take()
            taken.whole.append((heard - began) / 1e6)
            taken.asked.append((answer_time - began) / 1e6)
            taken.ours.append((heard - answer_time) / 1e6)
            taken.bare.append((here.heard(bare) - began) / 1e6)
            beside_it.join()
            withdraw(service, source, daemon, asked)
            here.end(ours)
    return taken


def all_at_once(source: Source) -> Taken:
    """`JOBS` containers of one rank; until the last of them."""
    taken = Taken()
    cloud = source.cloud()
    asked = Asked(cloud, source)
    with beside(cloud) as service, daemon_beside(service, source) as daemon:
        until(lambda: asked.waits, "the daemon to wait for an answer")
        for _ in range(TURNS):
            with ranks(2 * JOBS) as here:
                for number in range(JOBS):
                    here.join(number)
                began = announce(service, source)
                heard = max(here.heard(number) for number in range(JOBS))
                taken.whole.append((heard - began) / 1e6)
                taken.ours.append((heard - asked.take()) / 1e6)
                killed = time.monotonic_ns()
                for pid in here.pids[JOBS:]:
                    os.kill(pid, signal.Signals[f"SIG{SIGNAL}"])
                taken.bare.append((max(here.heard(number) for number in range(JOBS, 2 * JOBS)) - killed) / 1e6)
                withdraw(service, source, daemon, asked)
    return taken


def p99(values: list[float]) -> str:
    return f"{percentile(values, 0.99):.0f}"


def row(source: Source, taken: Taken) -> list[str]:
    times = percentile(taken.whole, 0.99) / percentile(taken.bare, 0.99)
    return [
        source.name, source.how, spread(taken.whole, 0), p99(taken.whole), f"<= {source.wanted}", spread(taken.asked, 0),
        spread(taken.ours, 1), p99(taken.ours), spread(taken.bare, 0), p99(taken.bare), f"{times:.2f}x",
    ]  # fmt: skip


def main() -> None:
    if not apart():
        return
    os.environ["RANK"] = "0"  # as a launcher says to each of them
    with running(OTHERS, SIGNAL):
        measure()


def measure() -> None:
    head: tuple[str, ...] = (
        "source", "how", "notice to handler, ms", "p99", "wanted", "until it was asked", "from the answer to the handler",
        "p99", "a loop that asks and kills", "p99", "p99 against that",
    )  # fmt: skip
    rows = [row(source, one_by_one(source)) for source in SOURCES]
    table(f"A notice becomes a signal, {OTHERS} other processes: median (least-most) of {ROUNDS} rounds", head, rows)
    hanging = SOURCES[-1]
    taken = all_at_once(hanging)
    against = statistics.median(a / b for a, b in zip(taken.ours, taken.bare, strict=True))
    at_once = [JOBS, spread(taken.whole, 0), "<= 1000", spread(taken.ours, 0), spread(taken.bare, 2), f"{against:.0f}x"]
    head = (
        "containers",
        "notice to the last handler, ms",
        "wanted",
        "from the answer",
        "plain kill(2) of as many",
        "ratio",
    )
    table(f"All jobs of a node are signalled ({hanging.how}), {TURNS} turns: median (least-most)", head, [at_once])


if __name__ == "__main__":
    main()
