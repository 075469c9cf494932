"""A notice is in force from its first sight until valid responses lack it; the unknown changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden_collectors.cloud.facts import NONE, Answer, AnswerKind, Kind, TerminationNotice, answer, unknown
from gpuwarden_collectors.cloud.sightings import HELD_MOST, Held, follow, held_before
from gpuwarden_collectors.facts import Stamp


def notice(end: float | None = 120.0, name: str = "spot:terminate", **more: object) -> TerminationNotice:
    deadline = None if end is None else Stamp(end, end)
    made = TerminationNotice(source="aws", kind=Kind.INTERRUPTION, id=name, hard=True, deadline=deadline)
    return replace(made, **more)  # type: ignore[arg-type]


def after(answers: Iterable[Answer], held: Held | None = None) -> dict[str, float | None]:
    held = held or {}
    for response in answers:
        held = follow(held, response, NOW)
    return {name: None if s.notice.deadline is None else s.notice.deadline.boottime for name, s in held.items()}


NOW = Stamp(0.0, 0.0)
UNKNOWN = unknown("no answer")
SEEN = answer((notice(),))


def test_it_ends_after_three_good_answers_without_it_and_never_by_what_is_unknown() -> None:
    assert after([SEEN, NONE, NONE])
    assert after([SEEN, NONE, NONE, SEEN, NONE, NONE])
    assert after([SEEN, NONE, *[UNKNOWN] * 100, NONE])
    assert after([SEEN, NONE, *[UNKNOWN] * 100, NONE, NONE]) == {}
    assert after([UNKNOWN] * 100) == {}


def test_a_notice_from_before_the_start_of_the_daemon_ends_in_the_same_way() -> None:
    held = held_before({"spot:terminate": notice()})
    assert after([UNKNOWN] * 9 + [NONE, NONE], held)
    assert after([NONE] * 3, held) == {}
    assert after([SEEN], held) == {"spot:terminate": 120.0}


def test_an_end_that_was_put_off_while_the_daemon_was_away_is_the_later_one() -> None:
    held = held_before({"spot:terminate": notice()})
    assert after([answer((notice(7 * 86_400.0),))], held) == {"spot:terminate": 7 * 86_400.0}


def test_a_partial_response_does_not_end_the_notices_that_it_lacks() -> None:
    partial = Answer(AnswerKind.NOTICE, (notice(name="b"),), "one event is odd", partial=True)
    assert set(after([SEEN, *[partial] * 10])) == {"spot:terminate", "b"}


def test_an_end_that_drifts_with_every_answer_stays_where_it_was_first_seen() -> None:
    drift = [answer((notice(120.0 + n),)) for n in range(300)]
    assert after(drift) == {"spot:terminate": 120.0}


def test_an_end_moves_closer_at_once_and_away_only_in_one_step() -> None:
    assert after([SEEN, answer((notice(60.0),))]) == {"spot:terminate": 60.0}
    assert after([SEEN, answer((notice(7_200.0),))]) == {"spot:terminate": 7_200.0}
    assert after([SEEN, answer((notice(119.0),))]) == {"spot:terminate": 120.0}  # a Date header has whole seconds
    late = [answer((notice(30.0 + n * 100.0, estimated=True),)) for n in range(9)]
    assert after(late) == {"spot:terminate": 30.0}


def test_an_id_that_comes_back_after_its_end_is_a_notice_again() -> None:
    assert after([SEEN, NONE, NONE, NONE, answer((notice(500.0),))]) == {"spot:terminate": 500.0}


def test_no_source_can_make_more_than_can_be_held() -> None:
    many = answer(tuple(notice(name=f"maintenance:{n}") for n in range(1_000)))
    assert len(after([many, many])) == HELD_MOST


answers = st.sampled_from([NONE, UNKNOWN, SEEN, answer((notice(name="b"),)), answer((notice(), notice(name="b")))])


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.lists(answers, max_size=40))
def test_without_a_sight_there_is_no_notice_and_without_three_misses_no_end(script: list[Answer]) -> None:
    held: Held = {}
    for response in script:
        before, held = held, follow(held, response, NOW)
        ids = {n.id for n in response.notices}
        assert set(held) - set(before) <= ids
        for gone in set(before) - set(held):
            assert response.kind is not AnswerKind.UNKNOWN
            assert before[gone].missing == 2
