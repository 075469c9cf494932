"""A time is read as its cloud means it, and remaining time needs no clock of this host."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from gpuwarden_collectors.cloud.reply import ReplyError
from gpuwarden_collectors.cloud.times import TimeError, parse_time
from gpuwarden_collectors.facts import Stamp
from support.cloud_replies import HERE, NOW, reply

SAME = (
    "2026-11-21T03:00:00Z", "2026-11-21t03:00:00z", "2026-11-21T03:00:00.246Z", "2026-11-21T03:00:00+0000",
    "2026-11-21T11:00:00+08:00", "2026-11-20T22:00:00-05:00", "2026-11-21 03:00:00Z", "2026-11-21T02:59:60Z",
    "2026-11-21T03:00:00-0000", "Sat, 21 Nov 2026 03:00:00 GMT", "Wed, 21 Nov 2026 03:00:00 GMT",
    "21 Nov 2026 03:00:00 GMT", " 21 nov 2026 03:00:00 +0000 ", "2026-11-21T03:00:00.123456789Z",
)  # fmt: skip


@pytest.mark.parametrize("text", SAME)
def test_one_instant_in_every_spelling_of_the_clouds(text: str) -> None:
    assert parse_time(text) == NOW


NO_TIMES = (
    "", "soon", "5", "2026-11-21", "2026-11-21T03:00:00", "2018-08-18 12:05:33", "2026-02-29T00:00:00Z",
    "2026-13-01T00:00:00Z", "2026-11-21T24:00:00Z", "2026-11-21T03:60:00Z", "2026-11-21T03:00:61Z",
    "0000-01-01T00:00:00Z", "21 Foo 2026 03:00:00 GMT", "32 Jan 2026 03:00:00 GMT", "2026-11-21T03:00:00+24:00",
    "٢٠٢٦-11-21T03:00:00Z", "1" * 100_000, "Sat, 21 Nov 2026 03:00:00",
)  # fmt: skip


@pytest.mark.parametrize("text", NO_TIMES, ids=lambda text: text[:20])
def test_what_is_no_time_or_names_no_zone_is_refused(text: str) -> None:
    with pytest.raises(TimeError):
        parse_time(text)


def test_a_day_of_one_digit_and_a_zone_that_the_caller_knows() -> None:
    assert parse_time("1 Nov 2026 03:00:00 GMT") == NOW - 20 * 86_400
    assert parse_time("2026-11-21 11:00:00", 8 * 3600.0) == NOW


@pytest.mark.parametrize("skew", [-600.0, 0.0, 600.0, 86_400.0 * 365])
def test_the_time_left_is_counted_from_the_date_of_the_response_whatever_the_local_clock(skew: float) -> None:
    at = Stamp(100.0, NOW + skew)
    assert reply().deadline(NOW + 120.0, at) == Stamp(220.0, NOW + 120.0)


@pytest.mark.parametrize("step", [-600.0, 600.0])
def test_a_step_of_this_clock_during_the_countdown_moves_no_end(step: float) -> None:
    before = reply().deadline(NOW + 120.0, HERE)
    stepped = Stamp(HERE.boottime + 10.0, NOW + 10.0 + step)
    assert reply(date=NOW + 10.0).deadline(NOW + 120.0, stepped) == before


@pytest.fixture(params=["America/New_York", "Australia/Lord_Howe", "UTC"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the time zone of this host."""
    with monkeypatch.context() as changed:
        changed.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("zone")
def test_neither_this_host_s_zone_nor_its_summer_time_changes_what_a_time_means() -> None:
    assert parse_time("2026-11-01T05:30:00Z") == 1_793_511_000.0  # 1:30 in New York, which has it twice that night
    assert parse_time("2026-11-01T01:30:00-05:00") - parse_time("2026-11-01T01:30:00-04:00") == 3_600.0
    assert parse_time("Sun, 08 Mar 2026 02:30:00 GMT") == 1_772_937_000.0  # an hour that New York does not have
    assert parse_time("2026-11-01 13:30:00", 8 * 3600.0) == 1_793_511_000.0


def test_without_a_date_this_clock_must_do() -> None:
    for date in (reply(date=None), reply(date=None, date_="yesterday")):
        assert date.deadline(NOW + 120.0, HERE).boottime == HERE.boottime + 120.0


def test_a_time_just_past_is_now_and_one_that_cannot_be_meant_is_refused() -> None:
    assert reply().deadline(NOW - 10.0, HERE).boottime == HERE.boottime
    for far in ("1970-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2026-11-21T01:00:00Z"):
        with pytest.raises(ReplyError):
            reply().deadline(parse_time(far), HERE)
