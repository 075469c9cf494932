"""What a job used is right to 1 % by a truth that is known, through restarts, gaps and resets of the driver's counters."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gpuwarden.features.why.model import Use
from gpuwarden.health.model import EventKind
from gpuwarden_collectors.base import PassOutcome
from support.why_hosts import WhyHost

JOULE = 1_000.0
"""Millijoules."""


class Loaded(WhyHost):
    """A job whose GPUs draw a power that changes by chance; it keeps the truth. `every`: seconds after which the counter is read again."""

    def __init__(self, gpus: int = 2, *, counter: bool = True, seed: int = 0, every: float = 0.0) -> None:
        super().__init__(gpus)
        self.chance = random.Random(seed)
        self.counter = counter
        self.every, self.counted_at = every, float("-inf")
        self.job(started=self.uptime)
        self.counted = dict.fromkeys(range(gpus), 5_000_000.0)
        self.joules = self.busy = self.seconds = 0.0
        self.draw()

    def draw(self) -> None:
        self.power = {n: self.chance.uniform(100.0, 700.0) for n in self.gpus}
        self.utilization = {n: self.chance.randrange(101) for n in self.gpus}
        self._read()

    def _read(self) -> None:
        if self.uptime - self.counted_at >= self.every:
            self.read_counters, self.counted_at = dict(self.counted), self.uptime
        for n in self.gpus:
            energy = round(self.read_counters[n]) if self.counter else None
            self.change(
                n, energy_mj=energy, power_usage_mw=round(self.power[n] * JOULE), utilization_gpu=self.utilization[n]
            )

    def lasts(self, seconds: float, *, read: bool = True) -> None:
        """Let time pass under this load, with passes or without."""
        end = self.uptime + seconds
        while self.uptime < end:
            self.uptime += 5.0
            for n in self.gpus:
                self.counted[n] += self.power[n] * 5.0 * JOULE
                self.joules += self.power[n] * 5.0
                self.busy += self.utilization[n] / 100 * 5.0
                self.seconds += 5.0
            self._read()
            if read:
                self.step()

    def used(self) -> Use:
        self.ends()
        return self.settles().epoch.use


@pytest.mark.slow
def test_an_hour_of_changing_load() -> None:
    host = Loaded()
    host.step()
    for _ in range(60):
        host.draw()
        host.lasts(60)
    assert host.count(EventKind.JOB_USED) == 2, "every half hour"
    use = host.used()
    assert use.energy_j == pytest.approx(host.joules, rel=0.01)
    assert use.busy == pytest.approx(host.busy / host.seconds, rel=0.01)
    assert use.energy_covers == pytest.approx(1.0, abs=0.01)
    assert use.observed_gpu_seconds == pytest.approx(host.seconds, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_restarts_and_times_without_a_daemon_lose_no_energy(seed: int) -> None:
    host = Loaded(seed=seed)
    host.step()
    for minute in range(90):
        host.draw()
        away = minute % 13 == 7
        host.lasts(60, read=not away)
        if minute % 9 == 4 or away:
            host.restart_daemon() if minute % 2 else host.checkpointed()
    use = host.used()
    assert use.energy_j == pytest.approx(host.joules, rel=0.01)
    assert use.energy_covers == pytest.approx(1.0, abs=0.01)
    assert use.observed_gpu_seconds < host.seconds, "busy is not known of the times without a pass"


def test_without_a_counter_it_is_power_over_time_and_gaps_are_said() -> None:
    host = Loaded(counter=False)
    host.step()
    for _ in range(20):
        host.draw()
        host.lasts(60)
    joules_before = host.joules
    host.lasts(400, read=False)
    for _ in range(20):
        host.lasts(60)
    gone = host.power
    use = host.used()
    assert use.energy_covers == pytest.approx(2400 / 2800, abs=0.01)
    assert use.energy_j == pytest.approx(host.joules - sum(gone.values()) * 400, rel=0.01)
    assert joules_before < (use.energy_j or 0)


@pytest.mark.parametrize("minutes", [2, 30])
def test_a_counter_that_is_read_once_a_minute(minutes: int) -> None:
    host = Loaded(every=55.0)
    host.step()
    for minute in range(minutes):
        host.draw()
        host.lasts(65)
        if minute % 7 == 2:
            host.restart_daemon()
            host.counted_at = float("-inf")  # another reader reads all
    use = host.used()
    assert use.energy_j == pytest.approx(host.joules, rel=0.01)
    assert use.energy_covers == pytest.approx(1.0, abs=0.01)


def test_the_longest_interval_is_no_gap() -> None:
    host = Loaded(counter=False)
    host.change(0, clock_event_reasons=0x40)
    host.step()
    for _ in range(20):
        host.lasts(25, read=False)
        host.lasts(5)
    use = host.used()
    assert use.energy_j == pytest.approx(host.joules, rel=0.01)
    assert use.busy == pytest.approx(host.busy / host.seconds, rel=0.01)
    assert (use.throttled_gpu_seconds, use.observed_gpu_seconds) == pytest.approx((600, 1200), rel=0.01)


def test_what_was_drawn_before_the_job_is_not_its_own() -> None:
    host = Loaded(every=55.0)
    host.lasts(40, read=False)
    host.job(started=host.uptime)
    host.joules = 0.0
    host.gpus = {n: replace(facts, read_at={"energy_mj": host.counted_at}) for n, facts in host.gpus.items()}
    host.step()
    host.lasts(10)
    host.gpus = {n: replace(facts, read_at={}) for n, facts in host.gpus.items()}
    host.lasts(110)
    assert host.used().energy_j == pytest.approx(host.joules, rel=0.01)


def test_a_reset_of_the_counter_loses_no_more_than_one_pass() -> None:
    host = Loaded()
    host.step()
    for minute in range(30):
        host.draw()
        host.lasts(60)
        if minute == 10:
            host.counted = dict.fromkeys(host.gpus, 0.0)
    assert host.used().energy_j == pytest.approx(host.joules, rel=0.01)


def test_a_counter_that_jumps_is_not_believed() -> None:
    host = Loaded()
    host.step()
    for minute in range(30):
        host.lasts(60)
        if minute == 10:
            host.counted = dict.fromkeys(host.gpus, 1e15)
    assert host.used().energy_j == pytest.approx(host.joules, rel=0.01)


def test_passes_that_fail_are_bridged_by_the_counter() -> None:
    host = Loaded()
    host.step()
    host.lasts(600)
    for _ in range(24):
        host.lasts(5, read=False)
        host.step(nvml=host.nvml(PassOutcome.FAILED))
    host.lasts(600)
    use = host.used()
    assert use.energy_j == pytest.approx(host.joules, rel=0.01)


def test_what_it_holds_without_a_process_and_what_slows_it_down() -> None:
    host = Loaded()
    host.change(0, memory_used_bytes=7 << 30)
    host.step()
    host.lasts(300)
    host.change(1, memory_used_bytes=70 << 30, clock_event_reasons=0x40)
    host.lasts(300)
    host.change(1, memory_used_bytes=3 << 30, clock_event_reasons=0x4)
    host.gpus[0] = replace(host.gpus[0], processes=())
    host.lasts(300)
    use = host.used()
    assert use.memory_peak_bytes == 70 << 30
    assert use.throttled_gpu_seconds == pytest.approx(300, abs=10)
    assert use.idle_gpu_seconds == pytest.approx(300, abs=10)
    assert use.tensor == pytest.approx(0.48)
