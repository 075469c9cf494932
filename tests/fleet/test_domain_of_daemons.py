"""A rack of 18 daemons, one NVLink domain, in which every node fails at once: the breaker leaves most of it in service."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.commands import gpuwarden
from support.daemons import FakeHost, RunningDaemon
from support.prometheus import Server, prometheus, wait

TRAYS, LIMIT = 18, 4
DOMAIN = "00000000.0"
"""The fake library fills only the last byte of the cluster's UUID. The clique is 0."""
SECOND_COUNTS_WITHIN = 360.0
"""Seconds: Prometheus shows a write a minute later at most, and this machine may be busy."""


class Tray(FakeHost):
    """A node of the rack, with one GPU."""

    series = "default"

    def __init__(self, folder: Path, name: str, server: Server) -> None:
        folder.mkdir()
        super().__init__(folder, gpus=1)
        self.name = name
        self.seclude()
        self.fake.reading("*", "fabric_in_cluster", 1).reading("*", "fabric_clique", 0)
        breaker = f'prometheus = "http://127.0.0.1:{server.port}"\npercent = 100\ncount = 100\n'
        self.configure(f'[file]\npath = "{folder}/out"\n[breaker]\n{breaker}', interval="2s")
        self.config.write_text(f'mode = "enforce"\n{self.config.read_text()}')

    @property
    def environment(self) -> Mapping[str, str]:
        return {**super().environment, "GPUWARDEN_NODE": self.name}

    @property
    def out(self) -> bool:
        return (self.folder / "out").exists()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "prometheus.yml").write_text(
        "global: {scrape_interval: 2s, scrape_timeout: 2s}\n"
        "scrape_configs: [{job_name: gpuwarden, file_sd_configs: [{files: [targets.yml]}]}]\n"
    )
    (tmp_path / "targets.yml").write_text("[]")
    with prometheus(tmp_path / "prometheus.yml", tmp_path) as server:
        yield server


@pytest.mark.slow
@pytest.mark.xdist_group("prometheus")
def test_of_a_rack_that_fails_as_a_whole_as_many_nodes_are_excluded_as_the_domain_may_lose(
    tmp_path: Path, server: Server
) -> None:
    rack = [Tray(tmp_path / f"tray{number}", f"tray{number}", server) for number in range(TRAYS)]
    with ExitStack() as stack:
        daemons = [stack.enter_context(tray.daemon()) for tray in rack]
        for daemon in daemons:
            daemon.wait_status("healthy")
        targets = [{"targets": [f"127.0.0.1:{daemon.port}" for daemon in daemons]}]
        (tmp_path / "targets.new").write_text(json.dumps(targets))
        (tmp_path / "targets.new").replace(tmp_path / "targets.yml")
        server.wait_query(f'count(gpuwarden_machine_info{{cluster_uuid!="",clique="0"}}) == {TRAYS}')

        for tray in rack:
            tray.xid(0, 95)
        until = time.monotonic() + SECOND_COUNTS_WITHIN
        while (settled := state(rack, daemons)) != (LIMIT, [True] * (TRAYS - LIMIT)) and time.monotonic() < until:
            time.sleep(2)
        assert settled == (LIMIT, [True] * (TRAYS - LIMIT))

        server.wait_query(f'sum(gpuwarden_excluded{{cause="failure"}}) == {LIMIT}')
        line = f"NVLink domain {DOMAIN}: {TRAYS} nodes: {TRAYS} failure; {LIMIT} kept out of scheduling"

        def fleet() -> str:
            words = ("fleet", "--prometheus", f"http://127.0.0.1:{server.port}")
            return gpuwarden(*words, temporary=tmp_path).stdout

        wait(lambda: fleet().splitlines()[1:2] == [line], line, server.log)  # once no scrape of a busy host is late
        assert "DOMAIN" in fleet()
        assert state(rack, daemons) == (LIMIT, [True] * (TRAYS - LIMIT)), "it stays so"


def state(rack: list[Tray], daemons: list[RunningDaemon]) -> tuple[int, list[bool]]:
    """Return how many nodes are out, and of those that the breaker keeps in whether it is for the domain. A node that has counted
    once more is kept in before its file is gone.
    """
    whys = [why for daemon in daemons if (why := daemon.status()["actions"]["breaker"])]
    named = f"nodes of NVLink domain {DOMAIN} are excluded for failures (limit {LIMIT})"
    return sum(tray.out for tray in rack), [named in why for why in whys]
