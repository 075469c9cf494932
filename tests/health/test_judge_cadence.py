"""The judge over readings that are not read in each pass: real bindings on the fake library, the judge behind them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpuwarden.health.model import EventKind
from gpuwarden.health.view import Rules
from gpuwarden.replay.replay import Replay
from gpuwarden.trace.records import Began, Passed, Record
from gpuwarden_collectors.facts import GpuAnswer, NvmlFacts
from support.hosts import Host, healthy_gpu, slot
from support.nvml_nodes import Node, node_in
from support.traces import lines, read, write

REPLAYS, SLOWED = "pcie_replays", "slowdown_hw_thermal_ns"


class Read:
    """A host whose GPUs are read through NVML, pass by pass, on the host's clock. `records`: what a trace would hold."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.host = Host(8)
        self.host.nvml_change = self._pass
        self.records: list[Record] = [
            Began(at=self.host.now, boot_id=self.host.boot_id, rules=Rules(), memory=()),
        ]
        for n in range(8):
            node.fake.text(n, "pci_bus_id", f"0000{slot(n)}")
        node.reader.connect()

    def _pass(self, _: NvmlFacts) -> NvmlFacts:
        self.node.now = self.host.uptime
        return self.node.read(after=0)

    def step(self) -> None:
        self.host.uptime += 5
        nvml, pci = self.host.nvml(), self.host.pci()
        self.records += [Passed(nvml), Passed(pci)]
        self.host.step(nvml=nvml, pci=pci)

    def run(self, seconds: int) -> None:
        for _ in range(seconds // 5):
            self.step()


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Read]:
    with node_in(tmp_path, monkeypatch) as node:
        node.fake.write(frozen=True)
        yield Read(node)


@pytest.mark.slow
def test_a_window_takes_a_sample_only_when_the_counter_was_read(seen: Read) -> None:
    times, values = set(), set()
    for second in range(0, 600, 5):
        seen.node.fake.reading("*", REPLAYS, second)
        seen.step()
        series = seen.host.state.moments.windows[slot(0), REPLAYS]
        times.add(series.at)
        values.add(series.last)
        assert series.last - series.grown == 0
        assert series.last == series.at - 10_005  # what the counter had at that time, not what it has now
    assert 11 <= len(times) == len(values) <= 13


@pytest.mark.slow
def test_replays_are_found_and_cleared_though_they_are_counted_once_a_minute(seen: Read) -> None:
    seen.run(60)
    for minute in range(8):
        seen.node.fake.reading(2, REPLAYS, 100 * minute)
        seen.run(60)
    assert [str(finding.key) for finding in seen.host.findings] == [f"pcie_replay_rate@gpu/{slot(2)}"]
    seen.run(1500)
    assert seen.host.codes == []


@pytest.mark.slow
@pytest.mark.parametrize("supported", [True, False])
def test_a_slowdown_that_comes_and_goes_is_measured_by_the_driver_or_found_by_its_bit(
    seen: Read, *, supported: bool
) -> None:
    """A counter that is None does not exist; it was not merely left unread."""
    if not supported:
        seen.node.fake.reading("*", SLOWED, "none")
    for second in range(0, 900, 5):
        slowed = second % 20 < 15 or not supported
        seen.node.fake.reading(4, "clock_event_reasons", 0x40 if slowed else 0)
        if supported:
            seen.node.fake.reading(4, SLOWED, second * 750_000_000)
        seen.step()
    [finding] = seen.host.findings
    assert (finding.key.code, "slowed_seconds" in finding.evidence) == ("thermal_slowdown", supported)


@pytest.mark.slow
def test_a_slowdown_shorter_than_a_minute_is_none(seen: Read) -> None:
    seen.run(600)
    seen.node.fake.reading(4, "clock_event_reasons", 0x40).reading(4, SLOWED, 30_000_000_000)
    seen.run(30)
    seen.node.fake.reading(4, "clock_event_reasons", 0)
    seen.run(900)
    assert seen.host.codes == []


WORN = {"energy_mj": 9_000_000, REPLAYS: 3, "violation_power_ns": 700}
FRESH = {"energy_mj": 40_000, REPLAYS: 0, "violation_power_ns": 0}


def give(seen: Read, values: dict[str, int]) -> None:
    for name, value in values.items():
        seen.node.fake.reading(3, name, value)


@pytest.mark.parametrize("reset", [True, False])
def test_a_reset_is_recognised_in_the_first_pass_after_it_and_only_a_reset_is(seen: Read, *, reset: bool) -> None:
    give(seen, WORN)
    seen.run(10)
    seen.host.step(seen.host.xid(3, 95), collect=False)
    seen.run(60)
    assert seen.host.codes == ["xid"]
    seen.node.fake.vanish(3)
    seen.run(10)
    seen.node.fake.write(frozen=True)
    for n in range(8):
        seen.node.fake.text(n, "pci_bus_id", f"0000{slot(n)}")
    give(seen, FRESH if reset else {**FRESH, "energy_mj": WORN["energy_mj"] + 5})
    seen.run(20)
    assert seen.host.codes == ([] if reset else ["xid"])


def test_what_a_gpu_had_counted_when_it_failed_is_never_more_than_it_had(seen: Read) -> None:
    """The counters kept with a latch may be a minute old: then they are lower, so that no reset is seen where there was none."""
    give(seen, {**WORN, "energy_mj": 100})
    seen.run(15)
    give(seen, WORN)
    seen.host.step(seen.host.xid(3, 95), collect=False)
    [track] = seen.host.state.tracks_of("xid")
    counted = dict(word.split("=") for word in track.counters.split())
    assert int(counted["energy_mj"]) <= WORN["energy_mj"]


@pytest.mark.slow
def test_a_trace_keeps_when_a_counter_was_read_and_is_judged_the_same(seen: Read, tmp_path: Path) -> None:
    for minute in range(6):
        seen.node.fake.reading(2, REPLAYS, 100 * minute)
        seen.run(60)
    path = write(tmp_path / "t", seen.records)
    again = read(path)
    facts = [
        record.observation.facts
        for record in again
        if isinstance(record, Passed) and record.observation.collector == "nvml"
    ]
    assert {gpu.read_at[REPLAYS] for nvml in facts if nvml is not None for gpu in nvml.gpus if gpu.slot == slot(2)} == {
        gpu.read_at[REPLAYS] for nvml in passes(seen) for gpu in nvml.gpus if gpu.slot == slot(2)
    }
    replay = Replay()
    judged = [step for record in again for step in replay.take(record)]
    assert [str(f.key) for f in judged[-1].verdict.findings] == [str(f.key) for f in seen.host.findings] != []
    written = [line for line in lines(path) if line.get("pass") == "nvml"]
    assert sum(len(str(line)) for line in written[24:]) / len(written[24:]) < 400  # a pass of 8 GPUs


def passes(seen: Read) -> list[NvmlFacts]:
    observations = [record.observation for record in seen.records if isinstance(record, Passed)]
    return [
        observation.facts
        for observation in observations
        if observation.collector == "nvml" and observation.facts is not None
    ]


def test_a_trace_of_a_version_without_times_counts_each_pass(seen: Read) -> None:
    seen.run(30)
    old = [replace(facts, gpus=tuple(replace(gpu, read_at={}) for gpu in facts.gpus)) for facts in passes(seen)]
    seen.host.nvml_change = lambda _: old.pop(0)
    while old:
        seen.host.uptime += 5
        seen.host.step()
        assert seen.host.state.moments.windows[slot(0), REPLAYS].at == seen.host.uptime


# --- passes of NVML that are as far apart as may be


def sparse_host() -> Host:
    """A host whose NVML is read each 30 s. Other collectors make the judge step in between, as the bus does here."""
    host = Host(8, rules=Rules(nvml_fresh_for=90.0))
    host.step()
    return host


def sparse_pass(host: Host) -> None:
    """The time until the next pass of NVML, which takes a second."""
    for seconds in (10, 10, 10.5):
        host.uptime += seconds
        host.step(pci=host.pci(), collect=False)
    host.uptime += 0.5
    host.step(nvml=host.nvml())


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (GpuAnswer.UNKNOWN, "gpu_unresponsive"),
        (GpuAnswer.LOST, "gpu_missing"),
        (GpuAnswer.RESET_REQUIRED, "gpu_reset_required"),
        (None, "gpu_missing"),
    ],
)
def test_one_pass_that_misses_a_gpu_fails_nothing_however_long_until_the_next(
    answer: GpuAnswer | None, code: str
) -> None:
    host, facts = sparse_host(), healthy_gpu(3)
    for seen in (1, 3):
        if answer is None:
            del host.gpus[3]
        else:
            host.answer(3, answer)
        for _ in range(seen):
            sparse_pass(host)
        host.gpus[3] = facts
        sparse_pass(host)
        raised = {str(event.key) for event in host.ledger if event.kind == EventKind.RAISED}
        assert raised == ({f"{code}@gpu/{slot(3)}"} if seen > 1 else set())
        sparse_pass(host)
    assert host.codes == []


def test_one_pass_between_two_jobs_does_not_begin_anew_how_long_a_link_has_been_slow() -> None:
    host = sparse_host()
    for number in range(20):
        busy = number % 4 != 3
        host.change(3, pcie_generation=1, utilization_gpu=90 if busy else 20)
        sparse_pass(host)
    assert host.codes == ["pcie_link_degraded"]
    host.change(3, utilization_gpu=20)
    for _ in range(3):
        sparse_pass(host)
    assert host.codes == []


def test_a_slow_link_that_is_seen_for_a_few_passes_and_then_no_more_is_forgotten() -> None:
    host = sparse_host()
    for slow in (True, False, False, False, False, True, True, True):
        host.change(3, pcie_generation=1 if slow else 5)
        sparse_pass(host)
    assert host.codes == []
