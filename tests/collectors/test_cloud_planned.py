"""An end that the contract names is announced from the start, and one that is over is no notice."""

from __future__ import annotations

import asyncio

from gpuwarden_collectors.cloud.facts import AnswerKind, Kind
from gpuwarden_collectors.cloud.planned import Planned, planned
from support.cloud_replies import HERE, NOW, left, only


def test_a_planned_end_is_a_notice_however_far_away_and_keeps_its_id() -> None:
    source = Planned(NOW + 86_400.0, lambda: HERE)
    assert asyncio.run(source.confirm()) == ""
    notice = only(asyncio.run(source.questions[0].ask()))
    assert (notice.kind, notice.hard, left(notice)) == (Kind.PLANNED_END, True, 86_400.0)
    assert only(planned(NOW + 86_400.0, HERE)).id == notice.id != only(planned(NOW + 60.0, HERE)).id
    asyncio.run(source.close())


def test_a_machine_that_outlived_its_end_has_another_one() -> None:
    assert left(only(planned(NOW - 60.0, HERE))) == 0.0
    answer = planned(NOW - 86_400.0, HERE)
    assert (answer.kind, "out of date" in answer.error) == (AnswerKind.UNKNOWN, True)
