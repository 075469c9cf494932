"""A daemon that is killed at any moment of a drain: the next one finishes it, and the controller sees one drain."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from support.daemons import RunningDaemon
from support.slurm import SLURM_BESIDE, Slurm
from support.slurm_hosts import REASON, SlurmHost, excluded_by
from support.slurm_reconciler import reasons_written

pytestmark = SLURM_BESIDE

STORIES, KILLS = 1, 3  # `benchmarks/kill_drains.py` makes hundreds, on three nodes


def settled(daemon: RunningDaemon) -> bool:
    """Return True if the drain is done, and on disk."""
    done = excluded_by(daemon) == ["slurm:failure"] and not daemon.status()["actions"]["wanted"]
    return done and count_of(daemon, "excluded") > 0


def count_of(daemon: RunningDaemon, kind: str) -> int:
    """Return how often the ledger has an event of this kind."""
    events = json.loads(daemon.get("/v1/events?since=0")[1])["events"]
    return sum(event["kind"] == kind for event in events)


@contextmanager
def stuck(host: SlurmHost, script: str) -> Iterator[Path]:
    """A scontrol whose updates do this, note so and hang until the test is over."""
    folder, mark = host.folder / "commands", host.folder / "mark"
    folder.mkdir()
    update = f'[ "$1" = update ] || exec /usr/bin/scontrol "$@"\n{script}\necho $$ > {mark}.pids\ntouch {mark}\nexec sleep 600'
    for name, text in {"sinfo": 'exec /usr/bin/sinfo "$@"', "scontrol": update}.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    host.configure_slurm(more=f'folder = "{folder}"')
    try:
        yield mark
    finally:
        pids = mark.with_suffix(".pids")
        for pid in pids.read_text().split() if pids.exists() else ():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        host.configure_slurm()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "script"),
    [("between intent and write", "true"), ("between write and read-back", '/usr/bin/scontrol "$@"')],
)
def test_a_daemon_killed_in_mid_drain_is_finished_by_the_next(
    tmp_path: Path, slurm: Slurm, where: str, script: str
) -> None:
    host, before = SlurmHost(tmp_path, slurm), len(slurm.log())
    with stuck(host, script) as mark, host.acting() as daemon:
        daemon.wait_status("healthy")
        host.breaks()
        daemon.wait(mark.exists, where)
        daemon.process.kill()
        daemon.process.wait()
    with host.acting() as daemon:
        daemon.wait(lambda: settled(daemon), "the drain to be known")
        assert count_of(daemon, "excluded") == 1
        assert count_of(daemon, "intended") == 1
    assert reasons_written(slurm, since=before) == [REASON]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_daemon_killed_at_any_moment_of_a_drain_drains_once_and_loses_nothing(tmp_path: Path, slurm: Slurm) -> None:
    hosts = [SlurmHost(tmp_path, slurm)]
    hosts[0].breaks()
    chance = random.Random(4711)
    whole = undisturbed(slurm, hosts)
    for story in range(STORIES):
        before = begin(slurm, hosts, story)
        for _ in range(KILLS):
            moments = sorted((chance.uniform(0.4, 1.2) * whole, host) for host in hosts)
            started = time.monotonic()
            daemons = {host.node: host.starts() for host in hosts}
            for moment, host in moments:
                time.sleep(max(0.0, started + moment - time.monotonic()))
                daemons[host.node].kill()
        finish(hosts)
        for host in hosts:
            written = reasons_written(slurm, host.node, since=before)
            assert len(written) == 1, f"{host.node}, story {story}: {written}"


def undisturbed(slurm: Slurm, hosts: list[SlurmHost]) -> float:
    """Seconds in which daemons that start together have drained their nodes."""
    begin(slurm, hosts, -1)
    started = time.monotonic()
    daemons = [host.starts() for host in hosts]
    try:
        slurm.wait(lambda: all(host.is_drained() for host in hosts), "all to drain")
        return time.monotonic() - started
    finally:
        for daemon in daemons:
            daemon.kill()


def begin(slurm: Slurm, hosts: list[SlurmHost], story: int) -> int:
    """Begin without ledgers and drains, and return the length of the controller's log."""
    slurm.clear()
    for host in hosts:
        host.state_dir = host.folder / f"state{story}"
        host.configure_slurm()
    return len(slurm.log())


def finish(hosts: list[SlurmHost]) -> None:
    """Start each daemon once more and let it end what it began: it is killed no more."""
    daemons = [host.starts() for host in hosts]
    try:
        for daemon in daemons:
            daemon.find_port()
            daemon.wait(partial(settled, daemon), "the drain to be known")
            assert count_of(daemon, "excluded") == 1
    finally:
        for daemon in daemons:
            daemon.kill()
