"""Thermal margin at which the hardware slows a board down.

NVML's margin is the distance to the highest operating temperature (`temperature_gpu_max`). At 0 and below a GPU may
lower its clocks slightly; the hardware slows it down at a board-specific offset. An H100 has its maximum at 87 °C and
the slowdown at 89 °C (measured, also on an H200), so its offset is -2.
"""

from __future__ import annotations

from gpuwarden_collectors.facts import GpuFacts

_OFFSETS = {"H100": -2, "GB200": -2, "GB300": -2, "L40": -2, "L40S": -2, "B200": -3}
"""Offset in °C by a word of the board's name, for drivers that do not report both temperatures (NVSentinel ADR-042)."""


def slowdown_offset(facts: GpuFacts) -> int:
    """Return the margin in °C, at most 0, at which the hardware slows this GPU down; 0 for an unknown model."""
    r = facts.readings
    if r.temperature_gpu_max and r.temperature_slowdown:
        return min(0, r.temperature_gpu_max - r.temperature_slowdown)
    return next((_OFFSETS[item] for item in facts.name.split() if item in _OFFSETS), 0)
