"""A hundred thousand answers that no cloud ever gave: no crash, and no notice where none was."""

from __future__ import annotations

import json
import random

import pytest

from gpuwarden_collectors.cloud import aws, azure, gcp
from gpuwarden_collectors.cloud.facts import REASON_MOST, Answer, AnswerKind
from gpuwarden_collectors.cloud.reply import AHEAD_MOST, Reply
from gpuwarden_collectors.cloud.spot_time import Alibaba, Tencent
from support.cloud_replies import HERE

ROUNDS = 100_000
TIME = "2026-11-21T03:02:00Z"
NEIGHBOUR = {
    "EventId": "602d9444", "EventType": "Preempt", "Resources": ["vm-1"], "EventStatus": "Scheduled",
    "NotBefore": "Sat, 21 Nov 2026 03:00:30 GMT",
}  # fmt: skip
OVER = {"NotBefore": "1 Dec 2026 09:00:43 GMT", "Code": "instance-reboot", "EventId": "a", "State": "completed"}
QUIET: tuple[tuple[str, object], ...] = (
    ("spot", {}), ("spot", "<html>404</html>"), ("rebalance", {}), ("maintenance", []), ("maintenance", [OVER]),
    ("lifecycle", "InService"), ("preempted", "FALSE"), ("maintenance-event", "NONE"), ("upcoming", "NONE"),
    ("azure", {"DocumentIncarnation": 1, "Events": []}), ("azure", {"DocumentIncarnation": 2, "Events": [NEIGHBOUR]}),
    ("alibaba", "<html></html>"), ("tencent", "not yet"),
)  # fmt: skip
LOUD: tuple[tuple[str, object], ...] = (
    ("spot", {"action": "terminate", "time": TIME}), ("rebalance", {"noticeTime": TIME}),
    ("maintenance", [{**OVER, "State": "active", "Description": "reboot"}]), ("lifecycle", "Terminated"),
    ("preempted", "TRUE"), ("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE"),
    ("upcoming", {"window_start_time": TIME, "maintenance_status": "PENDING"}),
    ("azure", {"DocumentIncarnation": 2, "Events": [{**NEIGHBOUR, "Resources": ["vm-7", "gpu-vm-3"]}]}),
    ("alibaba", TIME), ("tencent", "2026-11-21 11:02:00"),
)  # fmt: skip
PARSERS = {
    "spot": aws.spot, "rebalance": aws.rebalance, "maintenance": aws.maintenance, "lifecycle": aws.lifecycle,
    "preempted": gcp.preempted, "maintenance-event": gcp.maintenance_event, "upcoming": gcp.upcoming,
    "azure": lambda reply, at: azure.events(reply, at, "gpu-vm-3"), "alibaba": Alibaba.spot, "tencent": Tencent.spot,
}  # fmt: skip
PIECES = (
    b"", b"\0", b"\xff", b'"', b"{", b"]", b"[[[[", b",", b"null", b"NaN", b"1e999", b"-0", b"Z", b"+08:00", b"9999", b"\n",
    b"\r\n\r\n", b"\xe2\x80\xae", b"<html>", b'"Events":', b"Scheduled", b"\xed\xa0\x80",
)  # fmt: skip
DATES = (
    "Sat, 21 Nov 2026 03:00:00 GMT",
    "",
    "yesterday",
    "Thu, 01 Jan 1970 00:00:00 GMT",
    "\0",
    "2026-11-21T03:00:00Z",
)


def body(seed: object) -> bytes:
    return seed.encode() if isinstance(seed, str) else json.dumps(seed).encode()


def mutated(data: bytes, chance: random.Random) -> bytes:
    for _ in range(chance.randint(1, 3)):
        here = chance.randrange(len(data) + 1)
        there = min(len(data), here + chance.randrange(6))
        match chance.randrange(4):
            case 0:
                data = data[:here] + chance.choice(PIECES) + data[there:]
            case 1:
                data = data[:here] + bytes([chance.randrange(256)]) + data[here + 1 :]
            case 2:
                data = data[:here]
            case _:
                data = data[:here] + data[here:there] * chance.randrange(3) + data[there:]
    return data


@pytest.mark.slow
def test_no_answer_that_nobody_ever_gave_makes_a_crash_or_a_false_notice() -> None:
    chance = random.Random(20261121)
    for number in range(ROUNDS):
        quiet = number % 2 == 0
        name, seed = chance.choice(QUIET if quiet else LOUD)
        headers = {"date": chance.choice(DATES), "metadata-flavor": chance.choice(("Google", "Google", "google", ""))}
        status = chance.choice((200, 200, 200, 200, 404, 500, 302))
        content = mutated(body(seed), chance)
        answer = PARSERS[name](Reply(status, content, headers), HERE)
        case = (name, status, content, answer)
        assert answer.kind in tuple(AnswerKind), case
        if quiet or status != 200:
            assert not answer.notices, case
        for notice in answer.notices:
            sound(answer, case)
            assert notice.id.split(":")[0] in (*PARSERS, "events"), case


def sound(answer: Answer, case: object) -> None:
    """Assert that the answer's notices are bounded, printable, and about a time that can be meant."""
    for notice in answer.notices:
        assert len(notice.id) <= 128, case
        assert len(notice.reason) <= REASON_MOST, case
        assert notice.id.isprintable(), case
        assert notice.reason.isprintable(), case
        if notice.deadline is not None:
            assert 0.0 <= notice.deadline.boottime - HERE.boottime <= AHEAD_MOST, case
