"""Simulated GPUs through the same sweep as real ones, and the faults that can be put into them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_collectors.base import host_clock
from gpuwarden_collectors.event_facts import Source, XidEvent
from gpuwarden_collectors.facts import GpuAnswer, GpuFacts, NvmlFacts, NvmlProblem
from gpuwarden_collectors.gpu_readings import GpuReadings
from gpuwarden_collectors.nvml.options import NvmlOptions
from gpuwarden_collectors.nvml.reader import NvmlReader
from gpuwarden_collectors.nvml.simulated_faults import add, clear, load, parse_fault, update
from gpuwarden_collectors.nvml.simulated_gpu import simulated_gpu, simulated_slot, simulated_uuid

PATIENCE = 60.0
GPUS = 4

CHILD = """
import sys
from gpuwarden_collectors.nvml.options import NvmlOptions
from gpuwarden_collectors.nvml.reader import NvmlReader
reader = NvmlReader(NvmlOptions(simulate=2, simulate_dir=sys.argv[1]))
reader.connect()
print("connected", flush=True)
for line in sys.stdin:
    print(len(reader.read().gpus), flush=True)
"""


class Simulation:
    """Simulated GPUs and the folder through which faults reach them. The clock of slow readings is the test's."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.now = 1000.0
        self.reader = NvmlReader(NvmlOptions(simulate=GPUS, simulate_dir=str(directory)), clock=lambda: self.now)

    def inject(self, words: str, gpu: int | None = 1, *, age: float = 0.0) -> None:
        fault = parse_fault(words.split(), gpu)
        update(self.directory, lambda faults: add(faults, fault, host_clock().boottime - age))

    def clear(self, gpu: int | None = None) -> None:
        update(self.directory, lambda faults: clear(faults, gpu))

    def read(self) -> NvmlFacts:
        self.now += 61.0  # so that what is asked each minute is asked
        return self.reader.read()

    def gpu(self, number: int = 1) -> GpuFacts:
        return next(gpu for gpu in self.read().gpus if gpu.slot == simulated_slot(number))


@pytest.fixture
def simulation(tmp_path: Path) -> Iterator[Simulation]:
    simulation = Simulation(tmp_path)
    simulation.reader.connect()
    yield simulation
    simulation.reader.close()


@pytest.fixture
def child(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that reads two simulated GPUs each time it gets a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ask(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("read\n")
    child.stdin.flush()


def answer(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def inject(directory: Path, words: str) -> None:
    update(directory, lambda faults: add(faults, parse_fault(words.split(), 1), 0.0))


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, "it was not in time"
        time.sleep(0.01)


# --- healthy GPUs


def test_healthy_simulated_gpus_respond_to_everything_and_are_marked_as_simulated(simulation: Simulation) -> None:
    simulation.read()
    facts = simulation.read()
    assert facts.simulated
    assert facts.problem is None
    assert [gpu.slot for gpu in facts.gpus] == [simulated_slot(number) for number in range(GPUS)]
    assert [gpu.uuid for gpu in facts.gpus] == [simulated_uuid(number) for number in range(GPUS)]
    for gpu in facts.gpus:
        assert (gpu.answer, gpu.errors) == (GpuAnswer.OK, ())
        assert (len(gpu.links), all(link.active for link in gpu.links)) == (18, True)
        assert gpu.readings.gpm_sm_active is not None


def test_every_process_sees_the_same_simulated_machine_at_the_same_time() -> None:
    assert simulated_gpu(3, 5000.0) == simulated_gpu(3, 5000.0)
    assert simulated_gpu(3, 5000.0) != simulated_gpu(2, 5000.0)


@given(number=st.integers(0, 63), now=st.floats(0, 1e7), later=st.floats(0, 1e5))
def test_simulated_readings_stay_in_range_and_counters_never_go_back(number: int, now: float, later: float) -> None:
    before, after = simulated_gpu(number, now).values, simulated_gpu(number, now + later).values
    for values in (before, after):
        assert 25 <= values["temperature"] <= 80
        assert 60_000 <= values["power_usage_mw"] <= 700_000
        assert 0 <= values["utilization_gpu"] <= 100
        assert values["memory_free_bytes"] > 0
    for name in ("energy_mj", "nvlink_tx_kib", "pcie_rx_bytes", "violation_power_ns", "ecc_corrected_volatile"):
        assert before[name] <= after[name]


def test_simulated_gpus_have_slots_and_uuids_of_their_own() -> None:
    assert len({simulated_slot(number) for number in range(64)}) == 64
    assert len({simulated_uuid(number) for number in range(64)}) == 64


def test_the_temperature_follows_the_load_with_a_lag() -> None:
    idle, just_busy, long_busy = (simulated_gpu(0, now).values["temperature"] for now in (1790, 1801, 2400))
    assert idle - 3 <= just_busy <= idle + 8 < long_busy


# --- faults


READINGS = {
    # what is injected: what the GPU then reports
    "ecc-uncorrectable": {"ecc_uncorrected_volatile": 1, "ecc_uncorrected_volatile_dram": 1},
    "ecc-uncorrectable 7": {"ecc_uncorrected_aggregate": 7},
    "row-remap-pending": {"remapped_rows_pending": 1, "remapped_rows_uncorrectable": 1},
    "row-remap-failure": {"remapped_rows_failure": 1, "remap_banks_none": 1},
    "sram-threshold": {"sram_threshold_exceeded": 1},
    "retired-pages 3": {"retired_pages_double_bit": 3, "retired_pages_pending": 1},
    "recovery-action 2": {"recovery_action": 2},
    "overheat": {"temperature": 91, "temperature_margin": -4, "clock_event_reasons": 0x48},
    "fabric": {"fabric_health_summary": 2},
    "pcie-width": {"pcie_width": 8},
    "pcie-width 4": {"pcie_width": 4},
}


@pytest.mark.parametrize("words", READINGS)
def test_an_injected_fault_shows_in_its_gpu_and_in_no_other_until_it_is_cleared(
    simulation: Simulation, words: str
) -> None:
    healthy = simulation.gpu().readings
    simulation.inject(words)
    sick = simulation.gpu().readings
    assert {name: getattr(sick, name) for name in READINGS[words]} == READINGS[words]
    assert_healthy(simulation.gpu(2).readings)
    simulation.clear()
    assert {name: getattr(simulation.gpu().readings, name) for name in READINGS[words] if "temp" not in name} == {
        name: getattr(healthy, name) for name in READINGS[words] if "temp" not in name
    }


def assert_healthy(readings: GpuReadings) -> None:
    assert readings.remapped_rows_failure == readings.sram_threshold_exceeded == readings.ecc_uncorrected_volatile == 0
    assert (readings.pcie_width, readings.recovery_action, readings.fabric_health_summary) == (16, 0, 1)


@pytest.mark.parametrize(
    ("words", "counter", "per_second"),
    [
        ("ecc-correctable-storm", "ecc_corrected_volatile", 1000),
        ("pcie-replays", "pcie_replays", 100),
        ("overheat", "slowdown_hw_thermal_ns", 10**9),
        ("throttle", "slowdown_sw_thermal_ns", 10**9),
        ("power-brake", "slowdown_hw_power_brake_ns", 10**9),
        ("nvlink-errors", "nvlink_replay_errors", 20),
    ],
)
def test_a_storm_grows_from_its_injection_on(simulation: Simulation, words: str, counter: str, per_second: int) -> None:
    before = getattr(simulation.gpu().readings, counter)
    simulation.inject(words, age=100.0)
    assert getattr(simulation.gpu().readings, counter) >= before + 100 * per_second


def test_a_link_that_is_down_is_inactive_and_the_others_are_not(simulation: Simulation) -> None:
    simulation.inject("nvlink-down 5")
    assert [link.link for link in simulation.gpu().links if not link.active] == [5]


def test_a_lost_gpu_is_reported_as_lost_and_keeps_its_slot_and_identity(simulation: Simulation) -> None:
    simulation.read()
    simulation.inject("lost")
    facts = simulation.read()
    assert [gpu.answer for gpu in facts.gpus] == [GpuAnswer.OK, GpuAnswer.LOST, GpuAnswer.OK, GpuAnswer.OK]
    assert (facts.gpus[1].slot, facts.gpus[1].uuid) == (simulated_slot(1), simulated_uuid(1))
    assert facts.gpus[1].readings == GpuReadings()


def test_a_vanished_gpu_is_not_listed_and_those_after_it_are_renumbered(simulation: Simulation) -> None:
    simulation.read()
    simulation.inject("vanish")
    assert [(gpu.index, gpu.slot) for gpu in simulation.read().gpus] == [
        (0, simulated_slot(0)),
        (1, simulated_slot(2)),
        (2, simulated_slot(3)),
    ]


def test_a_gpu_that_needs_a_reset_is_reported_as_such(simulation: Simulation) -> None:
    simulation.inject("reset-required")
    gpu = simulation.gpu()
    assert (gpu.answer, gpu.uuid) == (GpuAnswer.RESET_REQUIRED, simulated_uuid(1))


@pytest.mark.parametrize(
    ("words", "problem"),
    [("driver-gone", NvmlProblem.DRIVER_NOT_LOADED), ("driver-mismatch", NvmlProblem.LIBRARY_MISMATCH)],
)
def test_a_fault_of_the_driver_leaves_no_gpus_and_passes_when_cleared(
    simulation: Simulation, words: str, problem: NvmlProblem
) -> None:
    simulation.inject(words, None)
    facts = simulation.read()
    assert (facts.problem, facts.gpus, facts.simulated) == (problem, (), True)
    simulation.clear()
    assert len(simulation.read().gpus) == GPUS


def test_a_library_that_no_longer_fits_asks_for_a_new_process(simulation: Simulation) -> None:
    simulation.read()
    assert not simulation.reader.spent
    simulation.inject("driver-mismatch", None)
    simulation.read()
    assert simulation.reader.spent


def test_a_library_that_never_fitted_asks_for_a_new_process_after_a_minute(tmp_path: Path) -> None:
    simulation = Simulation(tmp_path)
    simulation.inject("driver-mismatch", None)
    simulation.reader.connect()
    simulation.reader.read()
    assert not simulation.reader.spent
    simulation.now += 61
    simulation.reader.read()
    assert simulation.reader.spent


def test_a_slow_gpu_makes_the_pass_longer(simulation: Simulation) -> None:
    simulation.inject("slow 300")
    started = time.monotonic()
    simulation.read()
    assert time.monotonic() - started >= 0.3


def test_an_injected_xid_is_delivered_once(simulation: Simulation) -> None:
    simulation.read()
    events: list[XidEvent] = []
    stop = threading.Event()
    thread = threading.Thread(target=simulation.reader.events, args=(events.append, stop))
    thread.start()
    try:
        simulation.inject("xid 79", gpu=2)
        wait_for(lambda: bool(events))
        simulation.inject("xid 94", gpu=0)
        wait_for(lambda: len(events) == 2)
    finally:
        stop.set()
        thread.join(PATIENCE)
    assert [(event.source, event.slot, event.xid) for event in events] == [
        (Source.NVML, simulated_slot(2), 79),
        (Source.NVML, simulated_slot(0), 94),
    ]
    assert load(simulation.directory) == ()


# --- faults of the process


def test_a_hang_does_not_end_until_it_is_cleared(child: subprocess.Popen[str], tmp_path: Path) -> None:
    assert answer(child) == "connected"
    inject(tmp_path, "hang")
    ask(child)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.5)
    update(tmp_path, clear)
    assert answer(child) == "2"


def test_a_hanging_process_ends_on_sigterm(child: subprocess.Popen[str], tmp_path: Path) -> None:
    assert answer(child) == "connected"
    inject(tmp_path, "hang")
    ask(child)
    child.terminate()
    assert child.wait(PATIENCE) == -signal.SIGTERM


def test_a_hard_hang_ignores_sigterm_but_not_sigkill(child: subprocess.Popen[str], tmp_path: Path) -> None:
    assert answer(child) == "connected"
    inject(tmp_path, "hang-hard")
    ask(child)
    wait_for(lambda: ignores_term(child.pid))
    child.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.3)
    child.kill()
    assert child.wait(PATIENCE) == -signal.SIGKILL


def ignores_term(pid: int) -> bool:
    line = next(row for row in Path(f"/proc/{pid}/status").read_text().splitlines() if row.startswith("SigIgn"))
    return bool(int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_a_crash_occurs_once_and_removes_itself_from_the_file(child: subprocess.Popen[str], tmp_path: Path) -> None:
    assert answer(child) == "connected"
    inject(tmp_path, "crash")
    ask(child)
    assert child.wait(PATIENCE) == -signal.SIGSEGV
    assert load(tmp_path) == ()


# --- the folder


@pytest.mark.parametrize("content", ["", "{", "[]", '{"faults": 3}', '{"faults": [{"what": 1}]}', "\x00\xff"])
def test_a_damaged_file_is_an_error_to_the_command_and_changes_nothing_for_the_gpus(
    simulation: Simulation, content: str
) -> None:
    simulation.inject("pcie-width 2")
    assert simulation.gpu().readings.pcie_width == 2
    (simulation.directory / "faults.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match="cannot be read as injected faults"):
        load(simulation.directory)
    assert simulation.gpu().readings.pcie_width == 2


def test_without_a_folder_simulated_gpus_are_healthy() -> None:
    reader = NvmlReader(NvmlOptions(simulate=1))
    reader.connect()
    assert [gpu.answer for gpu in reader.read().gpus] == [GpuAnswer.OK]
    reader.close()
