"""Azure to the letter: an event is approved once, of this machine alone, and whatever the service does, a job comes first."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.config.model import ConfigError, load
from gpuwarden.config.sources import Sources
from gpuwarden.features.evacuation.azure_approval import AzureApproval
from gpuwarden.features.evacuation.daemon import settings
from gpuwarden.policy.model import Result
from gpuwarden_collectors.cloud.metadata import Metadata
from support.daemons import FakeHost, RunningDaemon
from support.metadata import PORTAL, AzureCloud, Fault, Response, Simulator, beside, reset, silence, status
from support.ranks import Rank, rank

ID = "events:E1"
GIB = 1 << 30


def event(*resources: str, **more: Any) -> dict[str, Any]:
    fields = {"EventId": "E1", "EventType": "Redeploy", "EventStatus": "Scheduled", "Resources": [*resources]}
    return {**fields, "NotBefore": formatdate(time.time() + 500.0, usegmt=True), **more}


OWN = "GPU-VM-3"


# --- requests


@pytest.fixture
async def service() -> AsyncIterator[Simulator]:
    async with Simulator(AzureCloud(events=[event(OWN)])) as simulator:
        yield simulator


async def approves(service: Simulator, *, wanted: bool = True, within: float = 30.0) -> tuple[Result, str]:
    approval = AzureApproval(Metadata(service.endpoint, within))
    try:
        return await approval.approve(ID, lambda: wanted)
    finally:
        await approval.close()


def approved(service: Simulator) -> list[str]:
    assert isinstance(service.cloud, AzureCloud)
    return service.cloud.approved


async def test_an_event_of_this_machine_alone_is_begun_and_no_second_time(service: Simulator) -> None:
    assert (await approves(service))[0] is Result.DONE
    assert (await approves(service))[0] is Result.ALREADY
    assert approved(service) == ["E1"]


@pytest.mark.parametrize(
    ("events", "result"),
    [
        ([event(OWN, "gpu-vm-4")], Result.REFUSED),
        ([event(OWN), event(OWN, "gpu-vm-4")], Result.REFUSED),
        ([event("gpu-vm-4")], Result.DROPPED),
        ([event(OWN, EventId="E2")], Result.DROPPED),
        ([], Result.DROPPED),
        ([event(OWN, EventType="Freeze")], Result.REFUSED),
        ([event(OWN, EventStatus="Started", NotBefore="")], Result.ALREADY),
        ([event(OWN, EventType="Explode")], Result.RETRY),
    ],
)
async def test_what_is_not_of_this_machine_alone_any_more_is_left_alone(events: list[Any], result: Result) -> None:
    async with Simulator(AzureCloud(events=events)) as service:
        assert (await approves(service))[0] is result
        assert approved(service) == []


async def test_what_is_called_off_while_it_is_asked_is_left_alone(service: Simulator) -> None:
    assert (await approves(service, wanted=False))[0] is Result.DROPPED
    assert approved(service) == []


@pytest.mark.parametrize("code", [400, 404, 429, 500, 503, 302, 204])
async def test_an_approval_that_is_refused_is_reported_with_its_status_and_can_be_repeated(
    service: Simulator, code: int
) -> None:
    assert isinstance(service.cloud, AzureCloud)
    service.cloud.post.append(Response(code, headers={"Location": service.endpoint}))
    result, text = await approves(service)
    assert (result, f"status {code}" in text) == (Result.RETRY, True)
    assert (await approves(service))[0] is Result.DONE


@pytest.mark.parametrize("fault", [silence, reset, PORTAL, status(503), status(400)])
@pytest.mark.parametrize("request_", [0, 1, 2])
async def test_whatever_the_service_does_to_a_request_nothing_is_taken_for_done(
    service: Simulator, fault: Fault, request_: int
) -> None:
    """Its name, its events, the approval: each may go wrong."""
    service.faults += [None] * request_ + [fault]
    result, text = await approves(service, within=1.0 if fault is silence else 30.0)
    if (fault, request_) == (PORTAL, 2):  # the text of a page is ignored: the status is the response
        assert result is Result.DONE
    else:
        assert (result, bool(text)) == (Result.RETRY, True)
    assert approved(service) == []


# --- the daemon


@pytest.fixture
def azure() -> Iterator[Simulator]:
    with beside(AzureCloud()) as simulator:
        yield simulator


def configured(tmp_path: Path, azure: Simulator, *, mode: str = "enforce") -> FakeHost:
    host = FakeHost(tmp_path, gpus=1)
    host.seclude()
    host.configure(
        f'[termination]\nsources = ["azure"]\n[termination.azure]\nendpoint = "{azure.endpoint}"\n'
        f'interval = "200ms"\ntimeout = "5s"\napprove = true\n'
    )
    host.config.write_text(f'mode = "{mode}"\n{host.config.read_text()}')
    return host


def occupies(host: FakeHost, holder: Rank) -> None:
    host.admit(holder.pid)
    host.fake.process(0, holder.pid, GIB)


def approval(daemon: RunningDaemon) -> dict[str, Any]:
    approvals = [departure["approval"] for departure in daemon.status()["jobs"]["departures"] if departure["approval"]]
    return dict(approvals[0]) if approvals else {"result": "", "tries": 0}


def plan(daemon: RunningDaemon) -> str:
    return "\n".join(daemon.status()["jobs"]["plan"])


@pytest.mark.slow
def test_once_the_job_has_ended_its_machine_s_event_is_approved_and_a_killed_daemon_does_not_forget_it(
    tmp_path: Path, azure: Simulator
) -> None:
    host = configured(tmp_path, azure)
    cloud = azure.cloud
    assert isinstance(cloud, AzureCloud)
    with rank() as holder:
        occupies(host, holder)
        with host.daemon() as daemon:
            daemon.wait_status("healthy")
            azure.set_value_from_thread("events", [event(OWN)])
            daemon.wait(lambda: f"nothing is left to wait for: process/{holder.pid}" in plan(daemon), "it to wait")
            assert cloud.approved == []
            cloud.post.append(Response(503))
            assert holder.received() == "TERM"
            holder.received_all()  # it has ended
            daemon.wait(lambda: cloud.approved == ["E1"], "the approval")
            daemon.wait(lambda: b'"approving"' in daemon.get("/v1/events")[1], "it to be on disk")
            daemon.kill()
        with host.daemon() as daemon:
            daemon.wait(lambda: cloud.approved == ["E1", "E1"], "the service to take it at last")
            daemon.wait(lambda: approval(daemon)["result"] == "done", "the status to show it")
            assert approval(daemon)["tries"] == 2
            assert "approval of the end, attempt 2: done" in host.order("status").stdout
            daemon.wait(lambda: b'"approved"' in daemon.get("/v1/events")[1], "it to be on disk, too")
            daemon.kill()
        with host.daemon() as daemon:
            daemon.wait(lambda: approval(daemon)["result"] == "done", "to know it still")
            asked = azure.asked("scheduledevents")
            daemon.wait(lambda: azure.asked("scheduledevents") > asked + 10, "some answers")
        assert cloud.approved == ["E1", "E1"]


@pytest.mark.slow
def test_in_mode_observe_it_is_shown_and_nothing_is_approved(tmp_path: Path, azure: Simulator) -> None:
    host = configured(tmp_path, azure, mode="observe")
    azure.cloud.values["events"] = [event(OWN)]
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        daemon.wait(lambda: "in 0 s at the earliest: nothing is left" in plan(daemon), "nothing to be left")
        asked = azure.asked("scheduledevents")
        daemon.wait(lambda: azure.asked("scheduledevents") > asked + 10, "some answers")
        assert {request.method for request in azure.requests} == {"GET"}


def test_by_default_nothing_is_approved(tmp_path: Path) -> None:
    file = tmp_path / "gpuwarden.toml"
    file.write_text('[termination]\nsources = ["azure"]\n')
    assert not settings(load(Sources(file=file, environment={}))).approve
    file.write_text("[termination.azure]\napprove = true\n")
    assert settings(load(Sources(file=file, environment={}))).approve
    file.write_text("[termination.aws]\napprove = true\n")
    with pytest.raises(ConfigError, match=r"termination\.aws\.approve: unknown key"):
        load(Sources(file=file, environment={}))
