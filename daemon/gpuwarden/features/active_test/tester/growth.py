"""Which counters of a GPU grew between two readings. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

from gpuwarden_collectors.active_test.facts import GpuTest, Growth
from gpuwarden_collectors.facts import GpuAnswer, GpuFacts, NvmlFacts
from gpuwarden_collectors.gpu_readings import GpuReadings

_ERRORS = tuple(
    """
    ecc_corrected_ ecc_uncorrected_ retired_pages_single_bit retired_pages_double_bit remapped_rows_correctable
    remapped_rows_uncorrectable pcie_replay pcie_correctable_errors pcie_naks_ pcie_receiver_errors pcie_bad_
    pcie_nonfatal_errors pcie_fatal_errors pcie_unsupported_requests pcie_lcrc_errors pcie_lane_errors nvlink_crc_
    nvlink_replay_errors nvlink_recovery_errors nvlink_dl_ nvlink5_rx_errors nvlink5_rx_symbol_errors
    nvlink5_recover""".split()
)
_SLOWDOWNS = tuple(
    "violation_power_ns violation_thermal_ns violation_board_limit_ns violation_reliability_ns slowdown_".split()
)
COUNTERS = tuple(field.name for field in fields(GpuReadings) if field.name.startswith((*_ERRORS, *_SLOWDOWNS)))
"""The counters of errors and of slowdowns: cumulative, each in its own unit."""


def growth(before: GpuReadings, after: GpuReadings) -> tuple[Growth, ...]:
    """Return the counters that increased; one that is unknown at either time is left out."""
    return tuple(_grown(before, after))


def _grown(before: GpuReadings, after: GpuReadings) -> Iterator[Growth]:
    for name in COUNTERS:
        first, last = getattr(before, name), getattr(after, name)
        if first is not None and last is not None and last > first:
            yield Growth(reading=name, by=last - first)


def vanished(before: NvmlFacts, after: NvmlFacts) -> tuple[GpuFacts, ...]:
    """The GPUs that answered before and do not answer after."""
    gone = _answering(before).keys() - _answering(after).keys()
    return tuple(gpu for gpu in before.gpus if gpu.slot in gone)


def with_growth(tests: Sequence[GpuTest], before: NvmlFacts, after: NvmlFacts) -> tuple[GpuTest, ...]:
    """Return the tests of one run with the growth of counters: on the first test of each GPU, and empty on its repeats.
    None if it is not known.
    """
    first, last = _answering(before), _answering(after)
    grown_tests: list[GpuTest] = []
    for test in tests:
        grown: tuple[Growth, ...] | None
        if test.slot not in first or test.slot not in last:
            grown = None
        elif any(other.uuid == test.uuid for other in grown_tests):
            grown = ()
        else:
            grown = growth(first[test.slot], last[test.slot])
        grown_tests.append(replace(test, growth=grown))
    return tuple(grown_tests)


def _answering(facts: NvmlFacts) -> dict[str, GpuReadings]:
    return {gpu.slot: gpu.readings for gpu in facts.gpus if gpu.slot and gpu.answer is GpuAnswer.OK}
