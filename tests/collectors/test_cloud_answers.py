"""Each cloud's answers, as their vendors document them: nothing, a notice, or nothing that can be used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpuwarden_collectors.cloud import aws, azure, gcp
from gpuwarden_collectors.cloud.facts import Answer, AnswerKind, Approval, Kind
from gpuwarden_collectors.cloud.reply import Reply
from gpuwarden_collectors.cloud.sightings import Held, follow
from gpuwarden_collectors.cloud.spot_time import Alibaba, Tencent
from gpuwarden_collectors.facts import Stamp
from support.cloud_replies import HERE, google, left, only, reply

IN_120 = "2026-11-21T03:02:00Z"
OWN = "gpu-vm-3"


def own_events(answer: Reply, at: Stamp) -> Answer:
    return azure.events(answer, at, OWN)


PARSERS: dict[str, Callable[[Reply, Stamp], Answer]] = {
    "aws spot": aws.spot, "aws rebalance": aws.rebalance, "aws maintenance": aws.maintenance,
    "aws lifecycle": aws.lifecycle, "gcp preempted": gcp.preempted, "gcp maintenance-event": gcp.maintenance_event,
    "gcp upcoming": gcp.upcoming, "azure": own_events, "alibaba": Alibaba.spot, "tencent": Tencent.spot,
}  # fmt: skip
HTML = b"<!doctype html><html><head><title>Log in</title></head><body>TRUE</body></html>"
BODIES = {
    "a portal": HTML, "null": b"null", "a text": b'"x"', "NaN": b"NaN", "an object": b"{}", "a number": b"5",
    "twice": b'{"action":"stop","action":"terminate","time":"2026-11-21T03:02:00Z","Events":[],"Events":[]}',
    "wrong types": b'{"action":5,"time":5,"Events":{},"noticeTime":[],"window_start_time":7}',
    "unknown text": b'{"action":"explode","time":"2026-11-21T03:02:00Z"}', "deep": b"[" * 100_000,
    "deep objects": b'{"Events":' * 50_000, "binary": bytes(range(256)), "UTF-16": '{"action"'.encode("utf-16"),
    "a huge number": b'{"time":' + b"9" * 60_000 + b"}", "1970": b'{"action":"stop","time":"1970-01-01T00:00:00Z"}',
    "9999": b'{"action":"stop","time":"9999-12-31T23:59:59Z"}', "no zone": b'{"action":"stop","time":"2026-11-21T03:02:00"}',
    "text": b"TRUE LOVE", "lower case": b"true",
}  # fmt: skip


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize("body", BODIES)
def test_an_answer_of_the_wrong_shape_is_unknown(parser: str, body: str) -> None:
    """The result is the same with the header that Google's answers have, and without."""
    for answer in (google(BODIES[body]), reply(BODIES[body])):
        parsed = PARSERS[parser](answer, HERE)
        assert (parsed.kind, parsed.notices) == (AnswerKind.UNKNOWN, ())
        assert parsed.error.isprintable()


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize(("body", "means_none"), [(b"", ("alibaba", "tencent")), (b"[]", ("aws maintenance",))])
def test_an_empty_response_means_nothing_announced_only_where_the_vendor_documents_it(
    parser: str, body: bytes, means_none: tuple[str, ...]
) -> None:
    expected = AnswerKind.NONE if parser in means_none else AnswerKind.UNKNOWN
    assert PARSERS[parser](google(body), HERE).kind is expected


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize("code", [100, 204, 206, 301, 302, 307, 400, 401, 403, 429, 500, 503])
def test_nothing_but_a_200_is_acted_on(parser: str, code: int) -> None:
    bodies: tuple[Any, ...] = (
        b"",
        b"TRUE",
        HTML,
        f'{{"action":"terminate","time":"{IN_120}"}}',
        "2026-11-21T03:02:00Z",
        [],
    )
    for body in bodies:
        assert PARSERS[parser](google(body, code), HERE).kind is AnswerKind.UNKNOWN


@pytest.mark.parametrize("parser", PARSERS)
def test_no_such_key_means_nothing_announced_where_the_vendor_documents_it(parser: str) -> None:
    expected = AnswerKind.UNKNOWN if parser.startswith(("gcp", "azure")) else AnswerKind.NONE
    assert PARSERS[parser](google(HTML, 404), HERE).kind is expected


# --- AWS


@pytest.mark.parametrize("action", ["terminate", "stop", "hibernate"])
def test_aws_spot_interruption(action: str) -> None:
    notice = only(aws.spot(reply({"action": action, "time": IN_120, "new-key": 1}), HERE))
    assert (notice.kind, notice.hard, left(notice), notice.id) == (Kind.INTERRUPTION, True, 120.0, f"spot:{action}")


def test_aws_rebalance_is_a_hint_without_an_end() -> None:
    notice = only(aws.rebalance(reply({"noticeTime": "2026-11-21T02:00:00Z"}), HERE))
    assert (notice.hard, notice.deadline, notice.kind) == (False, None, Kind.REBALANCE)


def event(**more: Any) -> dict[str, Any]:
    return {
        "NotBefore": "1 Dec 2026 09:00:43 GMT", "NotAfter": "1 Dec 2026 10:00:43 GMT", "Code": "instance-reboot",
        "Description": "scheduled reboot", "EventId": "instance-event-0d59937288b749b32", "State": "active", **more,
    }  # fmt: skip


def test_aws_maintenance_each_event_for_itself() -> None:
    items = [
        event(), event(EventId="b", NotBefore="soon"), event(EventId="c", State="completed"),
        event(EventId="d", Description="[Canceled] reboot"), event(EventId="e", Code="system-maintenance"),
        event(EventId="f", Code="instance-ascension"), "nonsense", event(EventId="g", State="perhaps"),
        event(NotBefore="30 Nov 2026 09:00:43 GMT"),
    ]  # fmt: skip
    parsed = aws.maintenance(reply(items), HERE)
    assert {(n.id, n.hard) for n in parsed.notices} == {
        ("maintenance:instance-event-0d59937288b749b32", True), ("maintenance:e", False),
    }  # fmt: skip
    assert parsed.partial
    assert left(parsed.notices[0]) == pytest.approx(9.25 * 86_400, abs=43.5)  # the earlier of the two with the same id
    assert aws.maintenance(reply([]), HERE).kind is AnswerKind.NONE
    assert aws.maintenance(reply([event(State="canceled")]), HERE).kind is AnswerKind.NONE


def test_aws_lifecycle_of_a_group() -> None:
    for state in ("InService", "Standby", "Detached", "Warmed:Running", "InService\n"):
        assert aws.lifecycle(reply(state), HERE).kind is AnswerKind.NONE
    notice = only(aws.lifecycle(reply("Terminated"), HERE))
    assert (notice.hard, notice.deadline, notice.kind) == (True, None, Kind.SCALE_IN)


@pytest.mark.parametrize("state", ["Warmed:Stopped", "Warmed:Hibernated"])
def test_aws_puts_an_instance_back_into_its_warm_pool_and_ends_what_runs_there(state: str) -> None:
    notice = only(aws.lifecycle(reply(state), HERE))
    assert (notice.hard, notice.deadline, notice.kind) == (True, None, Kind.SCALE_IN)
    assert "into its warm pool" in notice.reason


# --- GCP


def test_gcp_preempted() -> None:
    assert gcp.preempted(google("FALSE\n"), HERE).kind is AnswerKind.NONE
    notice = only(gcp.preempted(google("TRUE\n"), HERE))
    assert (notice.hard, left(notice), notice.estimated) == (True, 30.0, True)
    for nobody in (reply("TRUE"), reply("TRUE", metadata_flavor="ibm"), google("PREEMPT")):
        assert gcp.preempted(nobody, HERE).kind is AnswerKind.UNKNOWN


def test_gcp_maintenance_event() -> None:
    assert gcp.maintenance_event(google("NONE"), HERE).kind is AnswerKind.NONE
    moves = only(gcp.maintenance_event(google("MIGRATE_ON_HOST_MAINTENANCE"), HERE))
    ends = only(gcp.maintenance_event(google("TERMINATE_ON_HOST_MAINTENANCE"), HERE))
    assert (moves.hard, left(moves), ends.hard, left(ends)) == (False, 60.0, True, 3_600.0)


@pytest.mark.parametrize("key", ["window_start_time", "windowStartTime", "startTime"])
def test_gcp_upcoming_maintenance_in_both_spellings(key: str) -> None:
    body = {
        "can_reschedule": "false",
        "maintenance_status": "PENDING",
        "type": "SCHEDULED",
        key: "2026-11-21T08:00:00+0000",
    }
    notice = only(gcp.upcoming(google(body), HERE))
    assert (notice.hard, left(notice)) == (True, 5 * 3600.0)
    ongoing = {**body, "maintenance_status": "ONGOING", key: "2026-11-20T03:00:00+00:00"}
    assert left(only(gcp.upcoming(google(ongoing), HERE))) == 0.0


def test_gcp_upcoming_maintenance_none_or_not_known() -> None:
    for nothing in (b"NONE", b"NONE\n", b'"NONE"'):
        assert gcp.upcoming(google(nothing), HERE).kind is AnswerKind.NONE
    for odd in ({"error": "no notifications have been received yet, try again later"}, {"maintenance_status": "DONE"}):
        assert gcp.upcoming(google(odd), HERE).kind is AnswerKind.UNKNOWN


# --- Azure


def scheduled(**more: Any) -> dict[str, Any]:
    return {
        "EventId": "602d9444-d2cd-49c7-8624-8643e7171297", "EventType": "Preempt", "ResourceType": "VirtualMachine",
        "Resources": [OWN], "EventStatus": "Scheduled", "NotBefore": "Sat, 21 Nov 2026 03:00:30 GMT",
        "Description": "", "EventSource": "Platform", "DurationInSeconds": -1, **more,
    }  # fmt: skip


def document(*items: Any) -> Reply:
    return reply({"DocumentIncarnation": 7, "Events": list(items)})


def test_azure_reports_events_of_the_whole_set_and_only_this_machine_counts() -> None:
    for name in (OWN, OWN.upper(), f"_{OWN}"):
        assert left(only(own_events(document(scheduled(Resources=["vm-1", name])), HERE))) == 30.0
    for others in (["gpu-vm-4"], [], ["vm-1", "vm-2"], ["gpu-vm-33"], [5, None]):
        assert own_events(document(scheduled(Resources=others)), HERE).kind is AnswerKind.NONE
    assert azure.events(document(scheduled()), HERE, "the-hostname").kind is AnswerKind.NONE


def test_azure_started_has_no_time_and_is_now() -> None:
    notice = only(own_events(document(scheduled(EventType="Reboot", EventStatus="Started", NotBefore="")), HERE))
    assert (notice.hard, left(notice)) == (True, 0.0)
    assert own_events(document(scheduled(NotBefore="")), HERE).kind is AnswerKind.UNKNOWN


@pytest.mark.parametrize(
    ("more", "approval"),
    [
        ({}, Approval.ALONE),
        ({"Resources": [OWN.upper(), f"_{OWN}"]}, Approval.ALONE),
        ({"Resources": [OWN, "vm-1"]}, Approval.SHARED),
        ({"Resources": [OWN, 5]}, Approval.SHARED),
        ({"EventStatus": "Started"}, Approval.BEGUN),
        ({"EventStatus": "Started", "NotBefore": "", "Resources": [OWN, "vm-1"]}, Approval.BEGUN),
        ({"EventType": "Freeze"}, Approval.NONE),
    ],
)
def test_azure_events_are_approvable_only_if_hard_not_begun_and_of_this_machine_alone(
    more: dict[str, Any], approval: Approval
) -> None:
    assert only(own_events(document(scheduled(**more)), HERE)).approval is approval
    (event,) = azure.own_events(document(scheduled(Resources=["vm-1"]), scheduled(**more)), OWN)
    assert (event.approval, event.event_id) == (approval, scheduled()["EventId"])


def test_azure_a_freeze_is_a_hint_and_one_odd_event_hides_no_other() -> None:
    for seconds in (-1, 0, 9):
        assert not only(own_events(document(scheduled(EventType="Freeze", DurationInSeconds=seconds)), HERE)).hard
    assert own_events(document(scheduled(EventStatus="Completed")), HERE).kind is AnswerKind.UNKNOWN
    parsed = own_events(document(scheduled(EventType="Vanish", EventId="x"), scheduled()), HERE)
    assert (len(parsed.notices), parsed.partial) == (1, True)
    assert own_events(document(), HERE).kind is AnswerKind.NONE
    assert len(own_events(document(scheduled(), scheduled()), HERE).notices) == 1


# --- Alibaba, Tencent


def test_alibaba_and_tencent_report_a_bare_time() -> None:
    assert left(only(Alibaba.spot(reply(IN_120), HERE))) == 120.0
    assert left(only(Tencent.spot(reply("2026-11-21 11:02:00"), HERE))) == 120.0  # in China's time
    assert left(only(Tencent.spot(reply(IN_120), HERE))) == 120.0
    assert Alibaba.spot(reply("2026-11-21 11:02:00"), HERE).kind is AnswerKind.UNKNOWN
    for empty in (Alibaba.spot(reply(""), HERE), Tencent.spot(reply("\n"), HERE)):
        assert empty.kind is AnswerKind.NONE


# --- clocks


@pytest.mark.parametrize(
    ("step", "left_then"),
    [
        (0.0, 110.0),  # ten seconds later
        (30.0, 80.0),  # closer: at once
        (-30.0, 110.0),  # away by less than a minute: a clock that is steered
        (-600.0, 710.0),  # away in one step: the clock was wrong before
        (600.0, 0.0),  # by this clock it is over
        (7_200.0, 110.0),  # by hours: no time of an end that is still in force, and a known notice goes on
    ],
)
def test_where_a_reply_has_no_date_a_step_of_this_host_s_clock_moves_an_end_and_never_loses_it(
    step: float, left_then: float
) -> None:
    held: Held = {}
    for seconds, wall in ((0.0, 0.0), (10.0, 10.0 + step), (11.0, 11.0 + step), (12.0, 12.0 + step)):
        at = Stamp(HERE.boottime + seconds, HERE.wall + wall)
        held = follow(held, aws.spot(reply({"action": "terminate", "time": IN_120}, date=None), at), at)
        if seconds == 10.0:
            (announcement,) = held.values()
            assert left(announcement.notice) == 10.0 + left_then
    assert len(held) == 1


OVER: dict[str, tuple[str, Reply]] = {
    "aws maintenance": ("aws maintenance", reply([event(NotBefore="20 Nov 2026 09:00:43 GMT")])),
    "gcp upcoming": ("gcp upcoming", google({"window_start_time": "2026-11-20T08:00:00Z"})),
    "azure": ("azure", document(scheduled(EventStatus="Started", NotBefore=""))),
}


@pytest.mark.parametrize("case", OVER)
def test_an_end_that_is_over_and_still_announced_stays_where_it_was_first_seen(case: str) -> None:
    """Answers come a minute apart, and a little more."""
    parser, answer = OVER[case]
    held: Held = {}
    for number in range(5):
        at = Stamp(HERE.boottime + number * 60.01, HERE.wall + number * 60.01)
        held = follow(held, PARSERS[parser](answer, at), at)
        (announcement,) = held.values()
        assert left(announcement.notice) == 0.0, number


# --- how each of them is withdrawn

AHEAD = "2026-11-21T08:00:00Z"
WINDOW = {"window_start_time": AHEAD, "maintenance_status": "PENDING"}
IN_FORCE_THEN_ENDED: dict[str, tuple[str, Reply, Reply]] = {
    "aws spot": ("aws spot", reply({"action": "stop", "time": IN_120}), reply(HTML, 404)),
    "aws rebalance": ("aws rebalance", reply({"noticeTime": IN_120}), reply(HTML, 404)),
    "aws maintenance, canceled": ("aws maintenance", reply([event()]), reply([event(State="canceled")])),
    "aws maintenance, off the list": ("aws maintenance", reply([event()]), reply([])),
    "aws lifecycle": ("aws lifecycle", reply("Terminated"), reply("InService")),
    "gcp preempted": ("gcp preempted", google("TRUE"), google("FALSE")),
    "gcp maintenance-event": ("gcp maintenance-event", google("TERMINATE_ON_HOST_MAINTENANCE"), google("NONE")),
    "gcp upcoming": ("gcp upcoming", google(WINDOW), google("NONE")),
    "azure": ("azure", document(scheduled()), document()),
    "azure, now only a neighbour's": ("azure", document(scheduled()), document(scheduled(Resources=["vm-1"]))),
    "alibaba": ("alibaba", reply(IN_120), reply(HTML, 404)),
    "tencent": ("tencent", reply("2026-11-21 11:02:00"), reply(b"")),
}  # fmt: skip


@pytest.mark.parametrize("case", IN_FORCE_THEN_ENDED)
def test_one_that_its_cloud_takes_back_is_over_after_three_such_answers_and_comes_again(case: str) -> None:
    """An answer that cannot be read neither ends the notice nor counts."""
    parser, in_force, ended = IN_FORCE_THEN_ENDED[case]
    held: Held = {}
    for number, (answer, node_state) in enumerate(
        [
            (ended, 0),
            (in_force, 1),
            (ended, 1),
            (google(HTML), 1),
            (google(b"", 503), 1),
            (ended, 1),
            (ended, 0),
            (in_force, 1),
        ]
    ):
        at = Stamp(HERE.boottime + number, HERE.wall + number)
        held = follow(held, PARSERS[parser](answer, at), at)
        assert len(held) == node_state, number
