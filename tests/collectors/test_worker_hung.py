"""Which parts are read last after a worker hung there, and which are left out: bookkeeping on a made-up clock."""

from __future__ import annotations

import math

import pytest

from gpuwarden_collectors.worker.hung import HungParts
from gpuwarden_collectors.worker.in_flight import InFlight, Page, call_label
from gpuwarden_collectors.worker.life import WorkerLimits

LIMITS = WorkerLimits()
SLOT = "0000:42:00.0"


def at(since: float, part: str = SLOT) -> InFlight:
    return InFlight(part, 3, 8, since, "nvmlDeviceGetFieldValues")


def last(parts: HungParts, now: float, *present: int) -> dict[str, bool]:
    return {hung.part: hung.last for hung in parts.question(now, present)}


def test_after_the_first_hang_the_part_is_read_last_and_after_the_second_it_waits_longer_and_longer() -> None:
    parts = HungParts(LIMITS)
    parts.missed(at(0.0), 1, 10.0)
    assert last(parts, 10.0) == {SLOT: True}
    parts.missed(at(12.0), 2, 22.0)
    assert (last(parts, 51.0), last(parts, 52.0)) == ({SLOT: False}, {SLOT: True})
    parts.missed(at(52.0), 3, 62.0)
    assert (last(parts, 121.0), last(parts, 122.0)) == ({SLOT: False}, {SLOT: True})
    assert [(hung.number, hung.total, hung.seconds) for hung in parts.question(122.0, ())] == [(3, 8, 122)]


def test_it_is_left_out_as_long_as_a_process_that_hung_there_is_still_there() -> None:
    parts = HungParts(LIMITS)
    parts.missed(at(0.0), 1, 10.0)
    assert (last(parts, 5000.0, 1), last(parts, 5000.0, 7)) == ({SLOT: False}, {SLOT: True})


def test_parts_that_need_a_kill_never_use_up_the_budget_of_kills() -> None:
    parts, now, kills = HungParts(LIMITS), 0.0, list[float]()
    for pid in range(20):
        parts.missed(at(now - LIMITS.deadline), pid, now)
        parts.killed(pid, now)
        kills.append(now)
        while not last(parts, now)[SLOT]:
            now += 1.0
    assert all(
        sum(begin - LIMITS.kill_window < kill <= begin for kill in kills) <= LIMITS.kills for begin in kills
    )  # fmt: skip


def test_what_answered_when_it_was_read_last_is_read_in_its_turn_again() -> None:
    parts = HungParts(LIMITS)
    parts.missed(at(0.0), 1, 10.0)
    parts.missed(at(0.0, "0000:5d:00.0"), 2, 10.0)
    asked = parts.question(10.0, (2,))
    parts.answered(asked)
    assert last(parts, 10.0, 2) == {"0000:5d:00.0": False}


@pytest.mark.parametrize("since", [math.nan, math.inf, -math.inf])
def test_a_page_that_the_library_wrote_over_accuses_nothing(since: float) -> None:
    parts = HungParts(LIMITS)
    parts.missed(at(since), 1, 10.0)
    assert parts.question(10.0, ()) == ()


def test_a_part_that_was_just_begun_when_the_deadline_passed_is_not_accused() -> None:
    parts = HungParts(LIMITS)
    parts.missed(at(6.0), 1, 10.0)
    parts.missed(at(0.0, ""), 1, 10.0)
    assert last(parts, 10.0) == {}


def test_a_question_about_many_parts_still_fits_into_one_write() -> None:
    parts = HungParts(LIMITS)
    for number in range(64):
        parts.missed(at(0.0, f"{number:04x}:ff:00.0"), number, 10.0)
    assert len(parts.question(1e6, ())) == 16


def test_whatever_a_library_writes_into_the_page_can_be_read() -> None:
    page = Page()
    page.part(SLOT, 3, 8)
    page.call(call_label("nvmlDeviceGetFieldValues" * 9))
    assert page.read().call == ("nvmlDeviceGetFieldValues" * 9)[:63]
    page._page[:] = bytes(range(256)) * (len(page._page) // 256)  # as a library would
    assert page.read().part.isascii()
    page.close()
