"""What is of the moment: kept by a recall, begun again by a boot; and a feature that breaks is no reason to judge nothing."""

from __future__ import annotations

from dataclasses import fields

import pytest

from gpuwarden.engine.engine import Engine
from gpuwarden.health import detectors
from gpuwarden.health.memory import Moments, ReadingTime, Vital
from gpuwarden.health.model import Event, EventKind, Health
from gpuwarden.health.state import State
from gpuwarden.health.view import Rules, Sight
from gpuwarden_collectors.facts import Stamp
from support.hosts import slot
from support.whole_hosts import WholeHost

NOW = Stamp(1000.0, 1_700_000_000.0)
SEEN = Moments(
    slots=frozenset({slot(0)}), ports_above=frozenset({"0000:00:01.0"}), bus_observed=True, fabrics={slot(0): "f"},
    vital={slot(0): Vital(frozenset({"power_usage_mw"}))}, reading_time=ReadingTime(990.0, (0.1,)), features={"job_stall": {}},
    ports_followed=frozenset({"mlx5_0/1"}),
)  # fmt: skip


def test_a_recall_keeps_all_that_this_boot_has_shown_whatever_the_ledger_holds() -> None:
    engine = Engine("boot", Rules())
    engine.state = State(boot_id="boot", moments=SEEN)
    with engine.rebuilding():
        for boot in ("before", "boot"):
            engine.fold(Event(kind=EventKind.BOOT, at=NOW, boot_id=boot))
    assert engine.state.moments == SEEN
    assert engine.state.boot_id == "boot"


def test_a_boot_begins_all_of_it_again() -> None:
    engine = Engine("boot", Rules())
    engine.state = State(boot_id="before", moments=SEEN)
    engine.step(NOW)
    kept = [
        field.name
        for field in fields(Moments)
        if getattr(engine.state.moments, field.name) != getattr(Moments(), field.name)
    ]
    assert kept == []


def test_a_feature_that_breaks_is_reported_and_a_lost_gpu_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(state: State, _: Sight) -> tuple[State, tuple[Event, ...]]:
        raise ZeroDivisionError(len(state.pins))

    host = WholeHost(2)
    host.step()
    monkeypatch.setitem(detectors.FOLLOWERS, "job_stall", broken)
    del host.gpus[1], host.devices[1]
    host.step()
    assert host.health is Health.FAILURE
    assert "gpu_missing" in host.codes
    assert "job_stall: ZeroDivisionError" in str(host.state.tracks)
