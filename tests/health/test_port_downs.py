"""How often ports went down lately: found however short, over restarts and checkpoints, without an event for what is steady."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.health.host.port_downs import EACH, MARKS_KEPT, WINDOW, Counters, PortDowns
from gpuwarden.health.model import EventKind
from support.whole_hosts import WholeHost, port
from support.whole_node import durable

HOUR = 3600.0
FLAPPING = "infiniband_flapping@port/mlx5_0/1"


def started(**first: int) -> WholeHost:
    host = WholeHost(1)
    host.ports(port("mlx5_0", **first), port("mlx5_1"))
    host.run(10)
    return host


def reads(host: WholeHost, **counters: int | None) -> None:
    host.ports(port("mlx5_0", **counters), port("mlx5_1"))
    host.step()


def downs(host: WholeHost) -> list[object]:
    return [finding.evidence["downs"] for finding in host.found("infiniband_flapping")]


@pytest.mark.parametrize("counter", ["link_downed", "carrier_down"])
@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ({10: 7, HOUR: 7}, []),
        ({HOUR: 8, 2 * HOUR: 9}, []),
        ({HOUR: 8, 2 * HOUR: 10}, [3]),
        ({30: 10}, [3]),  # all within one pass: no state was ever seen to change
        ({30: 10, 120: 2}, [5]),  # the driver was loaded again, and it goes on
        ({60: 9, 3.1 * HOUR: 10}, []),  # long ago
    ],
)
def test_a_port_that_went_down_three_times_within_three_hours_is_flapping(
    counter: str, samples: Mapping[float, int], expected: list[int]
) -> None:
    host = started(**{counter: 7})
    began = host.uptime
    for at, value in samples.items():
        host.uptime = began + at
        reads(host, **{counter: value})
    assert downs(host) == expected


def test_where_the_counter_is_at_its_maximum_what_passes_see_counts() -> None:
    host = started(link_downed=255, seen_down=0)
    for times in (1, 3):
        host.uptime += 600
        reads(host, link_downed=255, seen_down=times)
    (finding,) = host.found("infiniband_flapping")
    assert finding.evidence["downs"] == 3
    assert "maximum" in str(finding.evidence["counted_by"])


@pytest.mark.parametrize("beside", [{"link_downed": 7}, {"link_downed": 255, "carrier_down": 4}])
def test_what_passes_see_is_not_counted_beside_a_counter_that_works(beside: dict[str, int]) -> None:
    host = started(**beside, seen_down=0)
    reads(host, **beside, seen_down=9)
    assert downs(host) == []


def test_a_counter_that_is_not_read_for_a_while_has_lost_nothing() -> None:
    host = started(link_downed=0)
    reads(host, link_downed=2)
    reads(host, link_downed=None)
    reads(host, link_downed=3)
    assert downs(host) == [3]


# --- restarts


@pytest.mark.parametrize("restart", [WholeHost.restart_daemon, WholeHost.checkpointed])
def test_what_was_counted_before_a_restart_counts_after_it(restart: Callable[[WholeHost], object]) -> None:
    host = started()
    for value in (1, 2):
        reads(host, link_downed=value)
        host.run(0.9 * HOUR, every=60)
    restart(host)
    host.run(60)
    assert downs(host) == []
    reads(host, link_downed=3)
    assert host.ids == {FLAPPING}


@pytest.mark.parametrize("restart", [WholeHost.restart_daemon, WholeHost.checkpointed])
def test_a_restart_ends_a_finding_no_later_than_it_would_have_ended(restart: Callable[[WholeHost], object]) -> None:
    host = started()
    reads(host, link_downed=3)
    host.run(1.5 * HOUR, every=60)
    restart(host)
    host.run(1.4 * HOUR, every=60)
    assert host.ids == {FLAPPING}
    host.run(0.4 * HOUR, every=60)
    assert host.ids == set()


def test_what_was_counted_while_no_daemon_ran_is_once_whenever_it_was() -> None:
    """A daemon that was off for a month may find a few outages, each of another week."""
    host = started()
    host.days(30)
    host.restart_daemon()
    reads(host, link_downed=5)
    host.run(HOUR, every=60)
    assert host.ids == set()
    reads(host, link_downed=6)
    assert host.ids == set()
    reads(host, link_downed=7)
    assert downs(host) == [3]


def test_a_boot_begins_anew() -> None:
    """Ports train in it, and some counters outlive it."""
    host = started()
    reads(host, link_downed=2)
    host.reboot()
    reads(host, link_downed=4)
    assert host.state.port_downs["mlx5_0/1"].marks == ()
    reads(host, link_downed=6)
    assert host.ids == set()


def test_a_finding_of_before_is_kept_until_its_port_was_followed_for_as_long() -> None:
    """The ledger knows nothing of the port's counters yet."""
    host = started()
    reads(host, link_downed=3)
    host.ledger = [event for event in host.ledger if event.kind != EventKind.COUNTED]
    host.restart_daemon()
    host.run(2.9 * HOUR, every=60)
    assert host.ids == {FLAPPING}
    host.run(0.5 * HOUR, every=60)
    assert host.ids == set()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["down", "passes", "wait", "unread", "reload", "blind", "reboot", "accept", "gone"]),
        st.integers(0, 12),
    ),
    max_size=14,
)


class Port(WholeHost):
    """`counters` are those of its first port."""

    def __init__(self) -> None:
        super().__init__(1)
        self.counters: dict[str, int | None] = {"link_downed": 0, "seen_down": 0}
        self.show()

    def show(self, seconds: float = 5.0) -> None:
        self.ports(port("mlx5_0", **self.counters), port("mlx5_1"))
        self.run(seconds, every=max(5.0, seconds / 4))

    def more(self, name: str, by: int) -> None:
        self.counters[name] = (self.counters[name] or 0) + by

    def play(self, steps: list[tuple[str, int]]) -> None:
        for action, number in steps:
            match action:
                case "down":
                    self.more("link_downed", 1 + number // 6)
                case "passes":
                    self.more("seen_down", 1)
                case "wait":
                    self.show(400.0 * number)
                case "unread":
                    self.ports(port("mlx5_0", link_downed=None), port("mlx5_1"))
                    self.step()
                case "reload":
                    self.counters = {"link_downed": number // 6, "seen_down": 0}
                case "blind":
                    self.counters["link_downed"] = 255
                case "reboot":
                    self.reboot()
                case "accept":
                    self.accept()
                case _:
                    self.ports(port("mlx5_1"))
                    self.step()
            self.show(20.0 * (number % 3))


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(before=STEPS, after=STEPS, checkpointed=st.booleans())
def test_a_restart_at_any_point_changes_nothing(
    before: list[tuple[str, int]], after: list[tuple[str, int]], checkpointed: bool
) -> None:
    through, cut = Port(), Port()
    for host in (through, cut):
        host.play(before)
    (cut.checkpointed if checkpointed else cut.restart_daemon)()
    assert durable(cut.state) == durable(through.state)
    for host in (through, cut):
        host.show()
        host.play(after)
        host.run(700, every=60)
    assert durable(cut.state) == durable(through.state)
    assert cut.ids == through.ids


# --- its cost


def counted(host: WholeHost) -> int:
    return sum(event.kind == EventKind.COUNTED for event in host.ledger)


def test_nothing_is_written_while_nothing_grows_and_one_event_in_ten_minutes_while_a_port_flaps() -> None:
    host = started()
    first = counted(host)
    assert first == 2  # what each of both ports begins with
    host.run(HOUR, every=60)
    assert counted(host) == first
    hours = 4
    for n in range(round(hours * HOUR / 20)):
        host.uptime += 20
        reads(host, link_downed=n % 250)
    assert counted(host) - first <= 3 + hours * HOUR / EACH
    assert host.ids == {FLAPPING}
    assert len(host.state.port_downs["mlx5_0/1"].marks) <= WINDOW / EACH + 3 <= MARKS_KEPT


def test_a_burst_is_over_when_its_window_is() -> None:
    """A change within ten minutes after an event of a port that flaps has no event of its own, and no later one if the port stays quiet."""
    host = started()
    reads(host, link_downed=3)
    reads(host, link_downed=9)
    host.run(60)
    assert downs(host) == [9]
    host.beside.infiniband = None  # no pass of the collector
    host.run(1.0, every=1.0)
    host.ports(port("mlx5_0", link_downed=9), port("mlx5_1"))
    host.run(3.4 * HOUR, every=60)
    assert host.ids == set()


def test_the_memory_of_twelve_ports_is_next_to_nothing() -> None:
    marks = tuple((n + 0.5, n) for n in range(MARKS_KEPT))
    memory = PortDowns(counters=Counters(999, 999, 999), since=1.5, marks=marks)
    size = sum(
        map(sys.getsizeof, (memory, memory.counters, memory.marks, *marks, *(at for at, _ in marks), *range(300, 303)))
    )
    assert 12 * size < 1 << 17


def test_a_port_that_is_forgotten_is_forgotten_whole() -> None:
    host = started()
    reads(host, link_downed=2)
    host.ports(port("mlx5_1"))
    host.run(10)
    assert "mlx5_0/1" in host.state.port_downs  # it may come back, and count on
    host.accept()
    host.run(10)
    assert "mlx5_0/1" not in host.state.port_downs
    reads(host, link_downed=2)
    assert host.state.port_downs["mlx5_0/1"].marks == ()
