"""Each source against a service that behaves as its cloud's does, and against those that only resemble it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Any

import pytest

from gpuwarden_collectors.base import Clock, host_clock
from gpuwarden_collectors.cloud import registry
from gpuwarden_collectors.cloud.azure import Azure
from gpuwarden_collectors.cloud.facts import Answer, AnswerKind
from gpuwarden_collectors.cloud.gcp import Gcp
from gpuwarden_collectors.cloud.metadata import Metadata
from gpuwarden_collectors.cloud.source import CloudSource, Question, follow
from gpuwarden_collectors.facts import Stamp
from support.cloud_replies import only
from support.metadata import (
    PORTAL,
    AlibabaCloud,
    AwsCloud,
    AzureCloud,
    Cloud,
    GcpCloud,
    Response,
    Simulator,
    TencentCloud,
    reset,
    send,
    silence,
    status,
)  # fmt: skip
from support.quick import first_quick

PATIENCE = 60.0
CLOUDS: dict[str, Callable[..., Cloud]] = {
    "aws": AwsCloud, "gcp": GcpCloud, "azure": AzureCloud, "alibaba": AlibabaCloud, "tencent": TencentCloud,
}  # fmt: skip
NAMES = sorted(CLOUDS)
MAIN = {"aws": "spot", "gcp": "preempted", "azure": "events", "alibaba": "spot", "tencent": "spot"}


def rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(time.time() + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def announced(name: str, seconds: float = 120.0) -> tuple[str, Any]:
    """Return the announcement of an end in that many seconds by this cloud, with the name under which its simulator keeps it."""
    wall = time.time() + seconds
    match name:
        case "aws":
            return "spot", {"action": "terminate", "time": rfc3339(seconds)}
        case "gcp":
            return "preempted", "TRUE"
        case "alibaba":
            return "spot", rfc3339(seconds)
        case "tencent":
            return "spot", datetime.fromtimestamp(wall + 8 * 3600, UTC).strftime("%Y-%m-%d %H:%M:%S")
    event = {"EventId": "E1", "EventType": "Preempt", "Resources": ["GPU-VM-3"], "EventStatus": "Scheduled"}
    return "events", [{**event, "NotBefore": formatdate(wall, usegmt=True)}]


QUIET = {"gcp": "FALSE", "azure": []}


def opened(name: str, clock: Clock, **options: Any) -> CloudSource:
    cloud = registry.CLOUDS[name]
    return cloud.open(clock, cloud.options(**options))


@asynccontextmanager
async def source_of(name: str, service: Simulator, **more: Any) -> AsyncIterator[CloudSource]:
    source = opened(name, host_clock, endpoint=service.endpoint, **{"timeout": 5.0, "interval": 0.02, **more})
    try:
        yield source
    finally:
        await source.close()


def question(source: CloudSource, name: str) -> Callable[[], Coroutine[Any, Any, Answer]]:
    return next(q.ask for q in source.questions if q.name == name)


class Listener:
    """Follows a source in the background and keeps every answer."""

    def __init__(self, source: CloudSource) -> None:
        self.answers: list[tuple[str, Answer]] = []
        self._news = asyncio.Event()
        self._task = asyncio.create_task(follow(source, self._keep, random.Random(1)))

    def _keep(self, question: Question, answer: Answer) -> None:
        self.answers.append((question.name, answer))
        self._news.set()

    def last(self, name: str) -> AnswerKind | None:
        return next((answer.kind for asked, answer in reversed(self.answers) if asked == name), None)

    def count(self, name: str, kind: AnswerKind, begun: int) -> int:
        return sum(asked == name and answer.kind is kind for asked, answer in self.answers[begun:])

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


# --- all of them


@pytest.mark.parametrize("name", NAMES)
async def test_a_notice_appears_is_in_each_response_and_goes(name: str) -> None:
    main = MAIN[name]
    async with Simulator(CLOUDS[name]()) as service, source_of(name, service) as source:
        listener = Listener(source)
        await listener.until(lambda: listener.last(main) is AnswerKind.NONE)
        service.set_value(*announced(name))
        await listener.until(lambda: listener.last(main) is AnswerKind.NOTICE)
        seen = {only(a).id for asked, a in listener.answers if asked == main and a.kind is AnswerKind.NOTICE}
        service.set_value(announced(name)[0], QUIET.get(name))
        begun = len(listener.answers)
        await listener.until(lambda: listener.count(main, AnswerKind.NONE, begun) >= 3)
        assert len(seen) == 1
        await listener.stop()


@pytest.mark.parametrize("name", NAMES)
async def test_one_that_is_there_before_us_is_seen_at_once(name: str) -> None:
    """A service that delays its answers must be read before it is waited for."""
    key, value = announced(name)
    async with Simulator(CLOUDS[name](**{key: value})) as service, source_of(name, service) as source:
        assert await source.confirm() == ""
        assert (await question(source, MAIN[name])()).kind is AnswerKind.NOTICE


@pytest.mark.parametrize("name", first_quick(5, NAMES))
@pytest.mark.parametrize("code", [429, 500, 503])
async def test_a_storm_of_errors_hides_no_notice_once_it_is_over(name: str, code: int) -> None:
    main, cloud = MAIN[name], CLOUDS[name]()
    if isinstance(cloud, GcpCloud):
        cloud.longest = 0.05  # else nothing is asked while the storm lasts
    async with Simulator(cloud) as service, source_of(name, service) as source:
        listener = Listener(source)
        await listener.until(lambda: listener.last(main) is AnswerKind.NONE)
        service.always = status(code)
        await listener.until(lambda: listener.last(main) is AnswerKind.UNKNOWN)
        service.set_value(*announced(name))
        service.always = None
        await listener.until(lambda: listener.last(main) is AnswerKind.NOTICE)
        await listener.stop()


def wrong_clock(skew: float) -> Clock:
    return lambda: Stamp(host_clock().boottime, host_clock().wall + skew)


@pytest.mark.parametrize("name", NAMES)
async def test_remaining_time_is_right_with_either_clock_ten_minutes_off(name: str) -> None:
    for skew in (-600.0, 600.0):
        key, value = announced(name, 120.0)
        async with Simulator(CLOUDS[name](**{key: value})) as service:
            source = opened(name, wrong_clock(skew), endpoint=service.endpoint)
            await source.confirm()
            deadline = only(await question(source, MAIN[name])()).deadline
            await source.close()
            assert deadline is not None
            expected = 30.0 if name == "gcp" else 120.0
            assert deadline.boottime - host_clock().boottime == pytest.approx(expected, abs=20.0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stranger", NAMES)
async def test_another_cloud_s_service_is_not_confirmed(name: str, stranger: str) -> None:
    """Nebius answers where Azure does, Yandex and IBM with a header like Google's, OpenStack on the paths of EC2."""
    async with Simulator(CLOUDS[stranger]()) as service, source_of(name, service) as source:
        assert bool(await source.confirm()) == (name != stranger)


@pytest.mark.parametrize("name", NAMES)
async def test_a_service_that_is_there_over_ipv6_alone_is_asked_over_it(name: str) -> None:
    key, value = announced(name)
    cloud = CLOUDS[name](**{key: value})
    async with Simulator(cloud, address="::1") as service, source_of(name, service) as source:
        assert service.endpoint.startswith("http://[::1]:")
        assert await source.confirm() == ""
        assert (await question(source, MAIN[name])()).kind is AnswerKind.NOTICE


@pytest.mark.parametrize("name", first_quick(2, NAMES))
async def test_where_the_firmware_is_a_cloud_s_and_its_service_is_not_nothing_is_announced(name: str) -> None:
    """Packets to the service are refused or go nowhere in a container rented on that cloud's machines."""
    async with Simulator(CLOUDS[name](**dict([announced(name)]))) as service:
        for nobody in ("http://127.0.0.1:1", service.endpoint):
            service.always = silence
            source = opened(name, host_clock, endpoint=nobody, timeout=0.2)
            listener = Listener(source)
            await listener.until(lambda: len(listener.answers) >= 2)  # noqa: B023 - waited for here
            assert {answer.kind for _, answer in listener.answers} == {AnswerKind.UNKNOWN}
            await listener.stop()
            await source.close()


async def test_aws_an_interruption_beside_its_recommendation_is_announced_and_ends_alone() -> None:
    values = {"rebalance": {"noticeTime": rfc3339(-900.0)}, "spot": announced("aws")[1]}
    async with Simulator(AwsCloud(**values)) as service, source_of("aws", service) as source:
        soft, hard = question(source, "rebalance"), question(source, "spot")
        assert [only(await soft()).hard, only(await hard()).hard] == [False, True]
        service.set_value("spot", None)
        assert [(await soft()).kind, (await hard()).kind] == [AnswerKind.NOTICE, AnswerKind.NONE]


@pytest.mark.parametrize("name", NAMES)
async def test_neither_a_portal_nor_a_proxy_for_pods_is_a_cloud(name: str) -> None:
    async with Simulator(CLOUDS[name]()) as service, source_of(name, service) as source:
        for nobody in (PORTAL, status(404, b"not found"), status(403), reset, status(200), status(302, Location="/")):
            service.always = nobody
            assert await source.confirm()


async def test_a_service_that_comes_up_after_us_is_found() -> None:
    async with Simulator(AwsCloud()) as service, source_of("aws", service) as source:
        service.always = status(404)
        listener = Listener(source)
        await listener.until(lambda: listener.last("spot") is AnswerKind.UNKNOWN)
        service.always = None
        await listener.until(lambda: listener.last("spot") is AnswerKind.NONE)
        assert {asked for asked, _ in listener.answers} >= {"spot"}
        await listener.stop()


# --- tokens


@pytest.mark.parametrize("name", ["aws", "alibaba"])
async def test_one_token_serves_all_questions_and_a_lost_one_is_replaced_once(name: str) -> None:
    cloud = CLOUDS[name]()
    async with Simulator(cloud) as service, source_of(name, service) as source:
        for _ in range(10):
            assert (await question(source, "spot")()).kind is AnswerKind.NONE
        assert service.asked("token") == 1
        cloud.token = "another"  # type: ignore[attr-defined]
        assert (await question(source, "spot")()).kind is AnswerKind.NONE
        assert service.asked("token") == 2
        service.faults += [status(401), None, status(401)]
        assert (await question(source, "spot")()).kind is AnswerKind.UNKNOWN
        assert service.asked("token") == 3
        assert all("x-forwarded-for" not in r.headers for r in service.requests)


@pytest.mark.parametrize("token", ["a\r\nX-Evil: 1", "a\nb", "", "é", "x" * 1_025, "a b"])
async def test_a_token_that_could_not_go_into_a_header_is_none(token: str) -> None:
    cloud = AwsCloud(need=False)
    cloud.token = token
    async with Simulator(cloud) as service, source_of("aws", service) as source:
        assert (await question(source, "spot")()).kind is AnswerKind.NONE
        assert all("x-aws-ec2-metadata-token" not in r.headers and "x-evil" not in r.headers for r in service.requests)


@pytest.mark.parametrize("ttl", [None, "", "soon", "-1", "9" * 30, "0"])
async def test_a_lifetime_that_makes_no_sense_costs_no_answer(ttl: str | None) -> None:
    cloud = AwsCloud()
    cloud.ttl = ttl
    async with Simulator(cloud) as service, source_of("aws", service) as source:
        for _ in range(5):
            assert (await question(source, "spot")()).kind is AnswerKind.NONE
        assert service.asked("token") <= 5


async def test_where_a_token_cannot_reach_us_questions_go_without_and_are_not_held_up_by_it() -> None:
    """The reply to the PUT may travel one hop only, which does not reach a container on a bridge."""
    async with Simulator(AwsCloud(need=False)) as service, source_of("aws", service, timeout=3.0) as source:
        service.faults.append(silence)
        for _ in range(10):
            assert (await question(source, "spot")()).kind is AnswerKind.NONE
        assert service.asked("token") == 1


async def test_a_source_that_gets_no_token_where_one_is_needed_reports_it() -> None:
    async with Simulator(AwsCloud(tokens=False)) as service, source_of("aws", service) as source:
        answer = await question(source, "spot")()
        assert (answer.kind, "token" in answer.error) == (AnswerKind.UNKNOWN, True)


# --- a hanging GET


async def test_gcp_waits_for_a_change_on_one_connection_and_asks_no_more_than_it_must() -> None:
    async with Simulator(GcpCloud()) as service, source_of("gcp", service, interval=0.01) as source:
        ask = question(source, "preempted")
        assert (await ask()).kind is AnswerKind.NONE
        waiting = asyncio.create_task(ask())
        while service.asked("preempted") < 2:
            await asyncio.sleep(0.01)
        service.set_value("preempted", "TRUE")
        assert (await waiting).kind is AnswerKind.NOTICE
        assert service.requests[-1].query["last_etag"]
        assert service.requests[-1].query["timeout_sec"] == "60"


async def test_gcp_a_wait_that_times_out_is_a_response_and_one_key_is_independent_of_another() -> None:
    cloud = GcpCloud(preempted="TRUE")
    cloud.longest = 0.05
    async with Simulator(cloud) as service, source_of("gcp", service) as source:
        for _ in range(3):
            assert (await question(source, "preempted")()).kind is AnswerKind.NOTICE
            assert (await question(source, "maintenance-event")()).kind is AnswerKind.NONE


@pytest.mark.parametrize("etags", [False, True])
async def test_gcp_a_service_that_never_waits_is_asked_at_our_pace_and_not_in_a_spin(etags: bool) -> None:
    """The service has nothing to wait for, or does not wait as long as it was asked to."""
    cloud = GcpCloud()
    cloud.etags, cloud.longest = etags, 0.0
    async with Simulator(cloud) as service, source_of("gcp", service, interval=0.2) as source:
        listener = Listener(source)
        begun = asyncio.get_running_loop().time()
        await listener.until(lambda: service.asked("preempted") >= 5)
        assert asyncio.get_running_loop().time() - begun >= 4 * 0.2 * 0.9
        await listener.stop()


@pytest.mark.parametrize("etag", ["", "a&timeout_sec=9999", "a b", '"quoted"', "é", "x" * 200])
async def test_gcp_a_mark_of_a_change_that_cannot_go_into_a_question_is_not_waited_on(etag: str) -> None:
    cloud = GcpCloud(preempted=Response(200, b"FALSE", {"ETag": etag}))
    cloud.etags = False
    async with Simulator(cloud) as service, source_of("gcp", service) as source:
        for _ in range(2):
            assert (await question(source, "preempted")()).kind is AnswerKind.NONE
        assert all(request.query == {} for request in service.requests)


async def test_gcp_a_connection_lost_in_a_wait_is_read_again_before_the_next_one() -> None:
    async with Simulator(GcpCloud()) as service, source_of("gcp", service) as source:
        ask = question(source, "preempted")
        await ask()
        service.always = reset
        assert (await ask()).kind is AnswerKind.UNKNOWN
        service.always = None
        service.set_value("preempted", "TRUE")
        assert (await ask()).kind is AnswerKind.NOTICE
        assert "wait_for_change" not in service.requests[-1].query


async def test_gcp_without_the_header_in_the_reply_nothing_is_believed() -> None:
    odd = Response(200, b"TRUE", {"Metadata-Flavor": "ibm"})
    async with Simulator(GcpCloud(preempted=odd)) as service, source_of("gcp", service) as source:
        assert (await question(source, "preempted")()).kind is AnswerKind.UNKNOWN


# --- Azure


async def test_azure_the_first_question_may_take_its_time_and_no_later_one() -> None:
    async def slow(_: object, writer: Any) -> None:
        await asyncio.sleep(1.3)
        await send(writer, Response(200, b'{"DocumentIncarnation":1,"Events":[]}'))

    async with Simulator(AzureCloud()) as service:
        metadata = Metadata(service.endpoint, PATIENCE)
        source = Azure(metadata, host_clock, first=PATIENCE)
        await source.confirm()
        metadata.timeout = 1.0
        service.faults.append(slow)
        first = (await question(source, "events")()).kind
        service.faults.append(silence)
        later = (await question(source, "events")()).kind
        await source.close()
    assert (first, later) == (AnswerKind.NONE, AnswerKind.UNKNOWN)


async def test_azure_goes_by_the_name_that_the_cloud_gave_and_whatever_number_the_document_has() -> None:
    _, events = announced("azure")
    async with Simulator(AzureCloud(name="vmss_12")) as service, source_of("azure", service) as source:
        assert await source.confirm() == ""
        for number in (9, 3, 9):
            service.set_value("document", {"DocumentIncarnation": number, "Events": events})
            assert (await question(source, "events")()).kind is AnswerKind.NONE
            named = [{**events[0], "Resources": ["VMSS_12"]}]
            service.set_value("document", {"DocumentIncarnation": number, "Events": named})
            assert (await question(source, "events")()).kind is AnswerKind.NOTICE


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ("Standard_ND96isr_H100_v5", "Azure/Standard_ND96isr_H100_v5"),
        ("", ""),
        ("<html>log in</html>", ""),
        (Response(404), ""),
        (Response(200, b"x" * 600), ""),
    ],
)
async def test_azure_names_the_size_of_the_machine_and_is_confirmed_without_it(size: object, expected: str) -> None:
    async with Simulator(AzureCloud(size=size)) as service, source_of("azure", service) as source:
        assert await source.confirm() == ""
        assert isinstance(source, Azure)
        assert source.machine_type == expected


@pytest.mark.parametrize(
    ("machine_type", "expected"),
    [
        ("projects/123456789/machineTypes/a3-highgpu-8g", "Google/a3-highgpu-8g"),
        ("a3-highgpu-8g", ""),
        ("projects/1/machineTypes/../x", ""),
        (Response(404), ""),
        (Response(200, b"projects/1/machineTypes/a3-highgpu-8g", {"Metadata-Flavor": "other"}), ""),
    ],
)
async def test_google_names_the_type_of_the_machine_and_is_confirmed_without_it(
    machine_type: object, expected: str
) -> None:
    async with Simulator(GcpCloud(**{"machine-type": machine_type})) as service, source_of("gcp", service) as source:
        assert await source.confirm() == ""
        assert isinstance(source, Gcp)
        assert source.machine_type == expected


async def test_azure_no_event_is_ever_approved() -> None:
    cloud = AzureCloud(events=announced("azure")[1])
    async with Simulator(cloud) as service, source_of("azure", service) as source:
        listener = Listener(source)
        await listener.until(lambda: len(listener.answers) > 5)
        await listener.stop()
        assert (cloud.approved, {r.method for r in service.requests}) == ([], {"GET"})
