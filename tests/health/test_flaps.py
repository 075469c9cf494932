"""What comes and goes again and again is held until it has been quiet for long."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuwarden.health.conditions import CONDITIONS
from gpuwarden.health.flaps import KEYS_KEPT, QUIET, RAISES_KEPT, WITHIN, Raises, flaps, raised_once_more
from gpuwarden.health.model import EventKind, Health, Key, gpu
from gpuwarden.health.view import CheckRule, Rules
from support.hosts import Host, slot

MOST = CONDITIONS["row_remap_failed"].flaps


def flap(host: Host, times: int) -> Host:
    """The driver reports it and takes it back, so often; each time for long enough to end the finding."""
    for _ in range(times):
        host.change(0, remapped_rows_failure=1)
        host.run(10)
        host.change(0, remapped_rows_failure=0)
        host.run(30)
    return host


def test_what_was_raised_four_times_within_an_hour_ends_each_time() -> None:
    host = flap(Host(1), MOST - 1)
    assert host.health is Health.HEALTHY


def test_what_was_raised_five_times_within_an_hour_stays_until_it_was_quiet_for_an_hour() -> None:
    host = flap(Host(1), MOST)
    assert host.codes == ["row_remap_failed"]
    assert host.findings[0].evidence["raised_within_an_hour"] == MOST
    host.run(QUIET - 60)
    assert host.codes == ["row_remap_failed"]
    host.run(60)
    assert host.health is Health.HEALTHY
    assert flap(host, 1).health is Health.HEALTHY


@pytest.mark.parametrize("restart", [Host.restart_daemon, Host.checkpointed])
def test_a_restart_does_not_let_it_go(restart: Callable[[Host], None]) -> None:
    host = flap(Host(1), MOST - 1)
    restart(host)
    flap(host, 1)
    restart(host)
    host.run(600)
    assert host.codes == ["row_remap_failed"]


@pytest.mark.slow
def test_what_comes_once_in_an_hour_does_not_flap() -> None:
    host = Host(1)
    for _ in range(2 * MOST):
        flap(host, 1)
        host.run(WITHIN / 3)
    assert host.health is Health.HEALTHY


@pytest.mark.slow
def test_a_site_with_a_longer_fall_time_has_it_all_the_same() -> None:
    host = flap(Host(1, rules=Rules(checks={"row_remap_failed": CheckRule(fall=2 * QUIET)})), 1)
    host.run(1.5 * QUIET)
    assert host.codes == ["row_remap_failed"]
    host.run(QUIET)
    assert host.health is Health.HEALTHY


def test_a_storm_slower_than_its_lines_are_seen_costs_one_row_a_line() -> None:
    host = Host(1)
    host.step()
    for _ in range(50):
        host.step(host.xid(0, 95))
        host.run(10)
    kinds = [event.kind for event in host.ledger if event.key == Key("xid", gpu(slot(0)), "95")]
    assert kinds.count(EventKind.XID) == 50
    assert len(kinds) == 51  # and it was raised once


def test_the_memory_of_raises_is_bounded() -> None:
    raises: Raises = {}
    for number in range(2 * KEYS_KEPT):
        for time in range(2):
            raises = raised_once_more(raises, Key("xid", gpu(slot(0)), str(number)), float(time))
    for time in range(10 * RAISES_KEPT):
        raises = raised_once_more(raises, Key("often", gpu(slot(0))), float(time))
    assert len(raises) == KEYS_KEPT
    assert max(map(len, raises.values())) == RAISES_KEPT
    assert flaps(raises, Key("often", gpu(slot(0))), MOST)
