"""A real daemon beside a cloud's metadata service: what is announced there is known here within seconds, and its end too."""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from support.daemons import FakeHost, RunningDaemon
from support.metadata import AwsCloud, AzureCloud, GcpCloud, Simulator, beside, status
from support.ranks import rank

MAINTENANCE = {"Code": "system-reboot", "EventId": "instance-event-1", "State": "active", "Description": "reboot"}


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    host = FakeHost(tmp_path, gpus=2)
    host.seclude()  # or else processes of other tests would be signalled
    return host


@pytest.fixture
def aws() -> Iterator[Simulator]:
    with beside(AwsCloud()) as service:
        yield service


def configure(host: FakeHost, service: Simulator, *, cloud: str = "aws", mode: str = "observe") -> None:
    host.configure(
        f'[termination]\nsources = ["{cloud}"]\n[termination.{cloud}]\n'
        f'endpoint = "{service.endpoint}"\ninterval = "200ms"\n'
    )
    host.config.write_text(f'mode = "{mode}"\n{host.config.read_text()}')


def spot(seconds: float = 500.0) -> dict[str, str]:
    end = datetime.fromtimestamp(time.time() + seconds, UTC)
    return {"action": "terminate", "time": end.strftime("%Y-%m-%dT%H:%M:%SZ")}


def notice_file(host: FakeHost) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((host.run_dir / "notice.json").read_text())
    return document


def wait_notice(daemon: RunningDaemon, *, there: bool) -> None:
    daemon.wait(lambda: bool(daemon.heartbeat()["notice"]) == there, f"notice {there}; {daemon.heartbeat()}")
    wait_file(daemon)
    daemon.wait(lambda: notice_file(daemon.host)["imminent"] == there, "the file to show it too")


def wait_file(daemon: RunningDaemon) -> None:
    """Wait for the first file, which a thread writes."""
    daemon.wait((daemon.host.run_dir / "notice.json").exists, "the file")


def metrics(daemon: RunningDaemon) -> str:
    return daemon.get("/metrics")[1].decode()


@pytest.mark.slow
def test_a_spot_interruption_takes_the_node_s_heartbeat_down_and_its_withdrawal_brings_it_back(
    host: FakeHost, aws: Simulator
) -> None:
    configure(host, aws)
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        daemon.wait(lambda: 'gpuwarden_termination_source_up{source="aws"} 1' in metrics(daemon), "the source")
        assert 'gpuwarden_termination_notice{source="aws",kind="interruption"} 0' in metrics(daemon)
        aws.set_value_from_thread("spot", spot())
        wait_notice(daemon, there=True)
        code, body = daemon.get("/heartbeat")
        beat = json.loads(body)
        assert (code, beat["schedulable"], beat["status"]) == (503, False, "healthy")
        assert (beat["notice"]["source"], beat["notice"]["kind"], beat["notice"]["hard"]) == (
            "aws",
            "interruption",
            True,
        )
        notice = notice_file(host)
        assert (notice["act"], notice["imminent"], notice["boot_id"]) == (False, True, beat["boot_id"])  # mode observe
        assert 0.0 < notice["deadline_boottime"] - time.clock_gettime(time.CLOCK_BOOTTIME) <= 501.0
        assert stat.S_IMODE((host.run_dir / "notice.json").stat().st_mode) == 0o644
        assert json.loads(daemon.get("/v1/notice?wait=60")[1])["id"] == notice["id"]
        assert 'gpuwarden_termination_notice{source="aws",kind="interruption"} 1' in metrics(daemon)
        assert "gpuwarden_termination_deadline_timestamp_seconds " in metrics(daemon)
        aws.set_value_from_thread("spot", None)
        wait_notice(daemon, there=False)
        daemon.wait(lambda: daemon.get("/heartbeat")[0] == 200, "the node to be back")


@pytest.mark.slow
def test_jobs_are_notified_in_mode_enforce_and_a_killed_daemon_knows_a_notice_that_its_source_does_not_deny(
    host: FakeHost, aws: Simulator
) -> None:
    configure(host, aws, mode="enforce")
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        aws.set_value_from_thread("spot", spot(500.0))
        wait_notice(daemon, there=True)
        notice = notice_file(host)
        assert notice["act"] is True
        daemon.wait(lambda: b"noticed" in daemon.get("/v1/events")[1], "the notice to be on disk")
        daemon.kill()
    aws.always = status(503)
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        wait_notice(daemon, there=True)
        assert notice_file(host)["id"] == notice["id"]
        aws.set_value_from_thread("spot", None)
        aws.always = None
        wait_notice(daemon, there=False)
        assert notice_file(host)["act"] is False


@pytest.mark.slow
def test_after_a_kexec_what_the_cloud_still_announces_is_notified_again_and_the_rest_is_forgotten(
    host: FakeHost, aws: Simulator
) -> None:
    """Another boot id on the same machine: nothing that ran before is there any more."""
    boot = host.boots("aaaaaaaa-0000-4000-8000-000000000001")
    configure(host, aws, mode="enforce")
    aws.cloud.values["spot"] = spot(500.0)
    with rank() as before, rank() as after:
        with host.daemon() as daemon:
            occupy(host, before.pid)
            wait_notice(daemon, there=True)
            first = notice_file(host)
            assert before.received() == "TERM"
            daemon.wait(lambda: b'"signalled"' in daemon.get("/v1/events")[1], "it to be on disk")
            daemon.kill()
        boot.write_text("aaaaaaaa-0000-4000-8000-000000000002\n")
        occupy(host, after.pid)
        with host.daemon() as daemon:
            wait_notice(daemon, there=True)
            daemon.wait(
                lambda: (file := notice_file(host))["boot_id"] != first["boot_id"] and file["act"],
                "the file of this boot",
            )
            assert after.received() == "TERM"
            daemon.wait(lambda: b'"signalled"' in daemon.get("/v1/events")[1], "it to be on disk")
            daemon.kill()
    boot.write_text("aaaaaaaa-0000-4000-8000-000000000003\n")
    aws.always = status(503)
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        wait_notice(daemon, there=False)
        assert daemon.status()["jobs"]["departures"] == []


@pytest.mark.slow
def test_the_end_that_the_configuration_gave_is_over_once_it_gives_none(host: FakeHost) -> None:
    end = datetime.fromtimestamp(time.time() + 500.0, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    host.configure(f'[termination]\nsources = []\nplanned_end = "{end}"\n')
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        wait_notice(daemon, there=True)
        host.order("notify-termination", "--in", "400")
        daemon.wait(lambda: daemon.get("/v1/events")[1].count(b"noticed") == 2, "both notices to be on disk")
    host.configure("[termination]\nsources = []\n")
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        wait_notice(daemon, there=True)
        assert daemon.heartbeat()["notice"]["source"] == "operator"  # which no configuration names
        host.order("notify-termination", "--cancel")
        wait_notice(daemon, there=False)
        assert daemon.get("/heartbeat")[0] == 200


def occupy(host: FakeHost, pid: int) -> None:
    host.admit(pid)
    host.fake.process(0, pid, 1 << 30)


def test_hints_and_what_is_weeks_away_are_shown_and_change_nothing(host: FakeHost, aws: Simulator) -> None:
    configure(host, aws, mode="enforce")
    later = datetime.fromtimestamp(time.time() + 21 * 86_400, UTC).strftime("%d %b %Y %H:%M:%S GMT")
    aws.cloud.values["maintenance"] = [{**MAINTENANCE, "NotBefore": later}]
    aws.cloud.values["rebalance"] = {"noticeTime": spot(0.0)["time"]}
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        daemon.wait(lambda: len(daemon.status()["notices"]) == 2, "both notices")
        assert daemon.get("/heartbeat")[0] == 200
        wait_file(daemon)
        daemon.wait(lambda: len(notice_file(host)["notices"]) == 2, "both in the file")
        assert notice_file(host)["act"] is False
        assert {(n["kind"], n["hard"]) for n in daemon.status()["notices"]} == {
            ("maintenance", True), ("rebalance", False),
        }  # fmt: skip


@pytest.mark.slow
def test_the_response_to_a_hanging_get_is_notified_at_once(host: FakeHost) -> None:
    with beside(GcpCloud()) as gcp:
        configure(host, gcp, cloud="gcp")
        with host.daemon() as daemon:
            daemon.wait_status("healthy")
            daemon.wait(lambda: any("last_etag" in r.query for r in gcp.requests), "the wait")
            gcp.set_value_from_thread("preempted", "TRUE")
            wait_notice(daemon, there=True)
            gcp.set_value_from_thread("preempted", "FALSE")
            wait_notice(daemon, there=False)


@pytest.mark.slow
def test_a_machine_of_no_cloud_asks_nobody(host: FakeHost) -> None:
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        assert daemon.status()["notice_sources"] == []
        assert "gpuwarden_termination_source_up{" not in metrics(daemon)
        wait_file(daemon)
        assert notice_file(host)["act"] is False


def test_a_node_of_azure_with_fewer_gpus_than_its_size_warns_from_the_first_sight_on(host: FakeHost) -> None:
    with beside(AzureCloud(size="Standard_ND128isr_GB300_v6")) as service:
        configure(host, service, cloud="azure")
        host.config.write_text(f'{host.config.read_text()}[checks.inventory_incomplete]\nrise = "0s"\n')
        with host.daemon() as daemon:
            daemon.wait_status("warning", "inventory_incomplete")
            shown = daemon.status()
            page = metrics(daemon)
            daemon.kill()
    assert shown["expected"] == {"count": 4, "from": "machine_type"}
    (finding,) = shown["findings"]
    assert (
        finding["evidence"]["why"]
        == "2 of the 4 GPUs of the machine type Standard_ND128isr_GB300_v6 were ever seen here"
    )
    assert (
        'gpuwarden_machine_info{machine_type="Azure/Standard_ND128isr_GB300_v6",model="NVIDIA H100 80GB HBM3"' in page
    )
