"""One NVLink that has errors again and again, and many that are accused of nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction
from math import comb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.health.model import EventKind, Health
from gpuwarden.health.nvlink.link_counters import CELL, DAY, LinkCount
from gpuwarden.health.nvlink.link_errors import MOST_MARKS, ODDS, by_chance_below
from gpuwarden_collectors.facts import GpuFacts
from support.hosts import Host, slot
from support.whole_node import durable

HOUR = 3600.0
SUSPECT = f"nvlink_link_errors@link/{slot(0)}/14"


class Links(Host):
    """GPUs whose links count recoveries. The counters of a pass are read once a minute, as the reader does."""

    def __init__(self, gpus: int = 4, links: int = 18, *, uptime: float = 10_000.0, field: str = "recoveries") -> None:
        super().__init__(gpus, uptime=uptime)
        self.field = field
        for n in self.gpus:
            facts = self.gpus[n]
            made = tuple(replace(facts.links[k], remote="0000:05:00.0") for k in range(links))
            self.gpus[n] = replace(facts, links=made)
        self.each(lambda _gpu, _link, _value: 0)

    def each(self, change: Callable[[int, int, int], int | None]) -> None:
        for n, facts in self.gpus.items():
            self.gpus[n] = self._changed(n, facts, change)

    def _changed(self, n: int, facts: GpuFacts, change: Callable[[int, int, int], int | None]) -> GpuFacts:
        links = tuple(
            replace(link, **{self.field: change(n, link.link, getattr(link, self.field) or 0)})  # type: ignore[arg-type]
            for link in facts.links
        )
        return facts if links == facts.links else replace(facts, links=links)

    def grow(self, *which: tuple[int, int], by: int = 1) -> None:
        self.each(lambda gpu, link, value: value + by if (gpu, link) in which else value)

    def every(self, seconds: float, times: int, *which: tuple[int, int], by: int = 1) -> None:
        for _ in range(times):
            self.grow(*which, by=by)
            self.run(seconds, every=60)

    @property
    def ids(self) -> list[str]:
        return [str(finding.key) for finding in self.findings]

    def raised(self) -> list[str]:
        return [str(event.key) for event in self.ledger if event.kind == EventKind.RAISED]


def started(gpus: int = 4, links: int = 18, **options: float) -> Links:
    host = Links(gpus, links, **options)  # type: ignore[arg-type]
    host.run(120, every=60)
    return host


def whole(gpus: int, links: int) -> Iterable[tuple[int, int]]:
    return ((gpu, link) for gpu in range(gpus) for link in range(links))


# --- the arithmetic


@settings(deadline=None)
@given(marks=st.integers(0, 40), others=st.integers(0, 60), links=st.integers(2, 150))
def test_the_tail_is_that_of_the_binomial_distribution(marks: int, others: int, links: int) -> None:
    of_all, p = marks + others, Fraction(1, links)
    tail = sum(comb(of_all, k) * p**k * (1 - p) ** (of_all - k) for k in range(marks, of_all + 1))
    assert by_chance_below(marks, of_all, links) is (tail * ODDS < 1)


@pytest.mark.parametrize(
    ("links", "needed"), [(288, 5), (144, 5), (72, 6), (18, 8), (12, 10), (8, 12), (4, 17), (2, 34)]
)
def test_so_many_marks_are_needed_where_no_other_link_has_any(links: int, needed: int) -> None:
    assert by_chance_below(needed, needed, links)
    assert not by_chance_below(needed - 1, needed - 1, links)


def test_neither_a_single_link_nor_a_fabric_full_of_errors_is_judged() -> None:
    assert not by_chance_below(70, 70, 1)
    assert not by_chance_below(70, MOST_MARKS + 1, 288)


def test_fewer_than_one_false_warning_in_four_months_on_8000_nodes() -> None:
    tries_a_day = DAY / 2  # at most every second cell is marked
    assert 8000 * 144 * 120 * tries_a_day / ODDS < 1


# --- the link that dies five days later


def test_a_link_that_recovers_nine_times_an_hour_warns_within_three_hours_with_its_other_end() -> None:
    host = started()
    host.every(7 * 60, 26, (0, 14))
    (finding,) = host.findings
    assert (str(finding.key), finding.severity) == (SUSPECT, "warning")
    assert finding.evidence["other_end"] == "0000:05:00.0"
    assert finding.evidence["of_all_other_links"] == 0


@pytest.mark.parametrize("field", ["replay_errors", "recovery_errors", "recovery_failures"])
def test_whatever_counter_its_generation_has(field: str) -> None:
    host = Links(field=field)
    host.run(60)
    host.every(420, 30, (0, 14))
    assert host.ids == [SUSPECT]


def test_a_link_that_counted_hundreds_before_and_recovers_again_warns_at_once() -> None:
    host = Links()
    host.each(lambda gpu, link, _: 505 if (gpu, link) == (0, 14) else 0)
    host.run(2 * HOUR, every=60)
    assert host.health is Health.HEALTHY
    host.every(21 * 60, 2, (0, 14), by=3)
    assert host.ids == [SUSPECT]


def test_the_warning_ends_a_day_after_the_errors_do() -> None:
    host = started()
    host.every(420, 30, (0, 14))
    assert host.ids == [SUSPECT]
    host.run(20 * HOUR, every=300)
    assert host.ids == [SUSPECT]
    host.run(10 * HOUR, every=300)
    assert host.ids == []


def test_a_clock_that_is_set_back_hides_no_link_and_keeps_no_warning() -> None:
    host = started()
    host.every(420, 3, (0, 14))
    host.booted -= 30 * 24 * HOUR
    host.every(420, 27, (0, 14))
    assert host.ids == [SUSPECT]
    host.booted -= 30 * 24 * HOUR
    host.run(30 * HOUR, every=300)
    assert host.ids == []


def test_a_window_of_hours_survives_restarts_and_a_checkpoint() -> None:
    host = started()
    for n in range(8):
        host.every(1200, 1, (0, 14))
        if n % 2:
            host.restart_daemon()
        else:
            host.checkpointed()
    host.run(60)
    assert host.ids == [SUSPECT]


# --- what is no fault of a link


def quiet(host: Links) -> None:
    host.run(HOUR, every=60)
    assert host.raised() == []


def test_one_incident_however_many_errors_it_counts_is_none() -> None:
    host = started()
    host.every(60, 12, (0, 14), by=1000)
    quiet(host)


@pytest.mark.slow
def test_links_that_all_train_again_at_once_are_none() -> None:
    host = started()
    for _ in range(20):
        host.every(1500, 1, *whole(4, 18), by=3)
    quiet(host)


@pytest.mark.slow
def test_the_links_of_one_gpu_that_grow_together_are_none() -> None:
    host = started()
    host.every(1500, 30, *((0, link) for link in range(18)))
    quiet(host)


@pytest.mark.slow
def test_every_link_now_and_then_is_none() -> None:
    host = started()
    everyone = sorted(whole(4, 18), key=lambda at: (at[0] * 31 + at[1] * 17) % 71)
    for n in range(140):
        host.every(610, 1, everyone[n % len(everyone)])
    quiet(host)


@pytest.mark.slow
def test_two_links_only_need_a_day_of_errors() -> None:
    host = started(1, 2)
    host.every(1200, 20, (0, 1))
    quiet(host)
    host.every(1200, 30, (0, 1))
    assert host.ids == [f"nvlink_link_errors@link/{slot(0)}/1"]


@pytest.mark.slow
def test_a_single_link_is_compared_with_nothing() -> None:
    host = started(1, 1)
    host.every(1200, 72, (0, 0))
    quiet(host)


@pytest.mark.slow
def test_reboots_and_what_links_count_while_they_train_are_none() -> None:
    host = started()
    for n in range(30):
        host.reboot()
        host.uptime = 20.0
        host.each(lambda gpu, link, _, n=n: n + 2 if (gpu, link) == (0, 14) else 0)  # type: ignore[misc]
        host.run(240, every=60)
        host.grow((0, 14), by=5)
        host.run(HOUR, every=60)
    assert host.raised() == []


def test_a_counter_that_went_back_begins_anew() -> None:
    host = started()
    for value in range(60, 0, -2):
        host.each(lambda gpu, link, _, value=value: value if (gpu, link) == (0, 14) else 0)  # type: ignore[misc]
        host.run(1200, every=60)
    count = host.state.links[slot(0)][14]
    assert (count.value, len(count.marks)) == (2, 1)


def test_a_counter_that_the_driver_no_longer_gives_changes_nothing() -> None:
    host = started()
    host.every(1200, 4, (0, 14))
    before = host.state.links
    host.each(lambda *_: None)
    host.run(HOUR, every=60)
    assert host.state.links == before
    assert host.raised() == []


def test_gpus_of_another_name_are_no_siblings() -> None:
    host = started(2, 2)
    host.gpus[1] = replace(host.gpus[1], name="NVIDIA A100-SXM4-80GB")
    host.every(1200, 20, (0, 1))
    quiet(host)


def test_another_board_in_the_slot_begins_anew() -> None:
    host = started()
    host.every(1200, 7, (0, 14))
    host.gpus[0] = replace(host.gpus[0], uuid="GPU-new")
    host.run(10)
    assert host.state.links[slot(0)][14].marks == ()


# --- its cost


def test_nothing_is_written_while_nothing_grows_and_one_event_a_cell_while_all_do() -> None:
    host = started()
    before = len(host.ledger)
    host.run(HOUR, every=60)
    assert len(host.ledger) == before
    host.every(60, 120, *whole(4, 18))
    counted = [event for event in host.ledger[before:] if event.kind == EventKind.COUNTED]
    assert len(counted) <= 4 * (120 * 60 / CELL + 2)


def test_the_memory_of_a_whole_host_in_the_worst_day_is_below_a_megabyte() -> None:
    """16 GPUs with 18 links, each marked as often as can be."""
    marks = tuple(range(3_000_000, 3_000_000 + DAY, 2))
    of_a_link = sys.getsizeof(LinkCount(1, 1, 1, marks)) + sys.getsizeof(marks) + sum(map(sys.getsizeof, marks))
    assert 16 * 18 * of_a_link < 1 << 20


# --- restarts

STEPS = st.lists(st.tuples(st.sampled_from(["grow", "wait", "reset", "reboot"]), st.integers(0, 35)), max_size=14)


def play(host: Links, steps: list[tuple[str, int]]) -> None:
    for action, number in steps:
        match action:
            case "grow":
                host.every(60.0 * (number + 1), 1 + number % 3, (number % 2, number % 18), by=1 + number)
            case "wait":
                host.run(300.0 * number, every=300)
            case "reset":
                host.each(lambda gpu, _link, value, number=number: 0 if gpu == number % 2 else value)  # type: ignore[misc]
                host.step()
            case _:
                host.reboot()
                host.step()


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(before=STEPS, after=STEPS, between=st.integers(0, 3))
def test_a_restart_at_any_point_changes_nothing(
    before: list[tuple[str, int]], after: list[tuple[str, int]], between: int
) -> None:
    through, cut = started(2), started(2)
    for host in (through, cut):
        play(host, before)
    (cut.restart_daemon, cut.checkpointed)[between % 2]()
    assert cut.state.links == through.state.links
    for host in (through, cut):
        host.run(5)
        play(host, after)
    assert durable(cut.state) == durable(through.state)
    assert cut.state.links == through.state.links
