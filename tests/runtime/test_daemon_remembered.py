"""A node that was repaired while no daemon ran is not taken out for what it had; one that was not repaired is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support.daemons import FakeHost, RunningDaemon, slots
from support.quick import first_quick

EXCLUDES = '[breaker]\nuncounted = "allow"\nrecount_after = "1s"\n[file]\npath = "{}"\n'
POLICY = '[policy]\nlifted_for = "0s"\nlook_often = "5s"\n'
BOOTS = [f"{n}{n}{n}{n}{n}{n}{n}{n}-0000-4000-8000-000000000001" for n in "ab"]


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    host = FakeHost(tmp_path, gpus=2)
    host.seclude()
    host.boots(BOOTS[0])
    return host


def configure(host: FakeHost, mode: str) -> Path:
    marker = host.folder / "out"
    host.configure(EXCLUDES.format(marker) + POLICY)
    host.config.write_text(f'mode = "{mode}"\n{host.config.read_text()}')
    return marker


def passes(daemon: RunningDaemon, count: int) -> None:
    until = daemon.heartbeat()["sequence"] + count
    daemon.wait(lambda: daemon.heartbeat()["sequence"] >= until, f"{count} passes")


def fails(host: FakeHost, reason: str) -> None:
    """Seen by a daemon that acts on nothing, and is killed then."""
    configure(host, "observe")
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        if reason == "xid.95":
            host.xid(1, 95)
        else:
            pulled(host)
        daemon.wait_status("failure", reason)
        daemon.wait(lambda: b'"raised"' in daemon.get("/v1/events")[1], "it to be on disk")


def pulled(host: FakeHost) -> None:
    host.plug(2, missing=frozenset({1}))
    host.fake.vanish(1)


def reset(host: FakeHost) -> None:
    host.kernel_line(f"nvidia {slots(2)[1]}: reset done")


def rebooted(host: FakeHost) -> None:
    (host.proc / "sys/kernel/random/boot_id").write_text(f"{BOOTS[1]}\n")
    host.kmsg.write_text("")


def plugged_in_and_rebooted(host: FakeHost) -> None:
    host.plug(2)
    rebooted(host)


REPAIRS: list[tuple[str, Callable[[FakeHost], None]]] = [("xid.95", reset), ("gpu_missing", plugged_in_and_rebooted)]


@pytest.mark.slow
@pytest.mark.parametrize(("reason", "repair"), first_quick(1, REPAIRS))
def test_a_node_that_was_repaired_while_the_daemon_was_off_stays_in(
    host: FakeHost, reason: str, repair: Callable[[FakeHost], None]
) -> None:
    fails(host, reason)
    repair(host)
    marker = configure(host, "enforce")
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        passes(daemon, 5)
        kinds = {event["kind"] for event in json.loads(daemon.get("/v1/events")[1])["events"]}
    assert not marker.exists()
    assert "excluded" not in kinds


@pytest.mark.slow
def test_a_node_that_was_not_repaired_goes_out_after_the_first_pass(host: FakeHost) -> None:
    fails(host, "xid.95")
    marker = configure(host, "enforce")
    with host.daemon() as daemon:
        daemon.wait(marker.exists, "the exclusion")
        assert daemon.is_now("failure", "xid.95")


@pytest.mark.slow
def test_a_node_that_nobody_can_read_yet_keeps_its_failure_and_is_not_excluded_for_it(host: FakeHost) -> None:
    fails(host, "xid.95")
    marker = configure(host, "enforce")
    host.fake.hang("*", "nvmlInitWithFlags")
    with host.daemon() as daemon:
        beat = daemon.wait_status("failure", "xid.95")
        assert not beat["schedulable"]
        daemon.wait(
            lambda: "not confirmed yet" in daemon.status()["actions"]["blocked"].get("file", ""), "the status line"
        )
        assert not marker.exists()


def test_an_exclusion_that_a_lost_ledger_held_is_a_finding_that_says_who_lifts_it(host: FakeHost) -> None:
    marker = configure(host, "enforce")
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        host.xid(1, 95)
        daemon.wait(marker.exists, "the exclusion")
    shutil.rmtree(host.state_dir)
    host.kmsg.write_text("")
    host.config.write_text(f'{host.config.read_text()}[checks.exclusion_stuck]\nrise = "2s"\n')
    with host.daemon() as daemon:
        daemon.wait_status("warning", "exclusion_stuck")
        (finding,) = daemon.status()["findings"]
        assert "file: the ledger has no record of this exclusion" in finding["evidence"]["why"]
        assert "gpuwarden restore" in finding["evidence"]["why"]
        assert marker.exists()
