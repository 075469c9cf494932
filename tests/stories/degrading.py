"""Stories of GPUs that work and are bad: memory that wears out, clocks that nothing explains, power that is missing."""

from __future__ import annotations

from functools import partial

from gpuwarden.health.model import Health
from stories.story import Story
from support.hosts import Host

HOURS = 3600.0

# --- memory


def corrected_errors(host: Host, n: int, per_second: float, seconds: float) -> None:
    for _ in range(int(seconds / 15)):
        count = host.gpus[n].readings.ecc_corrected_volatile or 0
        host.change(n, ecc_corrected_volatile=count + round(15 * per_second))
        host.later(15)


def errors_under_load() -> Host:
    """17,700 a second for as long as there is work, none for a day of rest, and on from there with the next job."""
    host = Host(4)
    host.change(2, ecc_corrected_volatile=9_600_000_000, remapped_rows_correctable=8)
    host.run(60)
    corrected_errors(host, 2, 17_700, 1 * HOURS)
    host.change(2, utilization_gpu=0)
    host.run(24 * HOURS, every=60)
    host.change(2, utilization_gpu=100)
    corrected_errors(host, 2, 4_647, 1 * HOURS)
    host.run(2 * HOURS, every=15)
    return host


def rows_remapped(gone: bool) -> Host:
    """254 for corrected errors, by and by within three weeks, without many errors; then the GPU is gone."""
    host = Host(8)
    host.run(60)
    for count in (1, 2, 7, 8, 40, 120, 200, 254):
        host.change(4, remapped_rows_correctable=count)
        host.run(600, every=60)
        host.days(3)
    host.run(600)
    if gone:
        del host.gpus[4], host.devices[4]
        host.run(60)
    return host


def remap_pending(days: float) -> Host:
    host = Host(8)
    host.run(60)
    host.change(1, remapped_rows_pending=1)
    host.run(days * 24 * HOURS, every=3600)
    return host


def repair_states(**values: int) -> Host:
    host = Host(8)
    for n in host.gpus:
        host.change(n, repair_channel_pending=0, repair_tpc_pending=0, memory_unrepairable=0, remap_banks_max=5760)
    host.run(60)
    host.change(6, **values)
    host.run(2 * HOURS, every=15)
    return host


# --- speed


def one_of_two_is_hot() -> Host:
    """GPU 1 at 375 to 480 MHz and 86 °C for the whole job, software thermal slowdown in every sample."""
    host = Host(2)
    for n in host.gpus:
        host.change(n, utilization_gpu=100, clock_sm_mhz=1965, clock_sm_max_mhz=1980, clock_event_reasons=0)
    host.run(300)
    for at in range(120):
        counted = (host.gpus[1].readings.slowdown_sw_thermal_ns or 0) + 15_000_000_000
        host.change(
            1, temperature=86, temperature_margin=1, clock_event_reasons=0x20, slowdown_sw_thermal_ns=counted,
            clock_sm_mhz=(480, 375, 450, 480)[at % 4],
        )  # fmt: skip
        host.change(0, clock_sm_mhz=(1965, 1980)[at % 2])
        host.run(15, every=5)
    return host


def power_supply_gives_too_little() -> Host:
    """94 to 96 % busy at 630 to 650 MHz and 15 to 18 W, no reason, for ever."""
    host = Host(1)
    for at in range(240):
        host.change(
            0, utilization_gpu=(94, 95, 96)[at % 3], clock_sm_mhz=(630, 650)[at % 2], clock_sm_max_mhz=3003, clock_event_reasons=0,
            power_usage_mw=(15_000, 18_000)[at % 2], power_limit_mw=None, power_enforced_limit_mw=None, temperature_margin=None,
        )  # fmt: skip
        host.run(5)
    return host


def minutes_of_it_each_half_hour() -> Host:
    """The same for five minutes of each half hour: too short to be told from what a job does."""
    host = Host(1)
    for _ in range(6):
        host.change(0, utilization_gpu=96, clock_sm_mhz=650, clock_sm_max_mhz=3003, clock_event_reasons=0)
        host.run(300)
        host.change(0, clock_sm_mhz=2400)
        host.run(1500)
    return host


def warmed_through() -> Host:
    """A fan that stays at 70 %: hardware thermal slowdown for as long as the load lasts."""
    host = Host(2)
    for _ in range(120):
        counted = (host.gpus[1].readings.slowdown_hw_thermal_ns or 0) + 13_000_000_000
        host.change(
            1, utilization_gpu=100, temperature=87, temperature_margin=0, clock_event_reasons=0x48, clock_sm_mhz=1155, clock_sm_max_mhz=1875,
            slowdown_hw_thermal_ns=counted,
        )  # fmt: skip
        host.run(15, every=5)
    return host


# --- power


def braked(hours: float, clock: int) -> Host:
    """GPUs 2 and 3 of four, with the mask 0x8c."""
    host = Host(4)
    for n in host.gpus:
        host.change(n, utilization_gpu=100, clock_sm_mhz=1800, clock_sm_max_mhz=1965)
    host.run(300)
    for _ in range(int(hours * 240)):
        for n in (2, 3):
            counted = (host.gpus[n].readings.slowdown_hw_power_brake_ns or 0) + 15_000_000_000
            host.change(n, clock_event_reasons=0x8C, slowdown_hw_power_brake_ns=counted, clock_sm_mhz=clock)
        host.later(15)
    return host


HBM = "NVIDIA/NVSentinel#1748, NVIDIA/DCGM#313"
LABLUP = "Lablup (504 B200)"
PENDING = "awslabs reference (row remap pending), leptonai/gpud"
HOT, GB10 = "sgl-project/sglang#39206", "ASUS GX10 and DGX Spark (blogs)"
BRAKE = "NVIDIA/NVSentinel#1666, #1668"
REPAIRS = "awslabs reference, p6-b300.48xlarge"
W, F = Health.WARNING, Health.FAILURE

STORIES: tuple[Story, ...] = (
    Story(
        id="B02", source=HBM, name="17,700 corrected errors a second under load, none at rest", made=errors_under_load,
        expects=("failure memory_degrading", "warning ecc_correctable_rate", "warning row_remaps_many"), ends=F,
    ),
    Story(
        id="B23", source=LABLUP, name="254 rows remapped within three weeks", made=partial(rows_remapped, gone=False),
        expects=("warning row_remaps_many",), ends=W,
    ),
    Story(
        id="B23", source=LABLUP, name="254 rows remapped, then gone", made=partial(rows_remapped, gone=True),
        expects=("failure gpu_missing", "warning row_remaps_many"), ends=F,
    ),
    Story(
        id="B24", source=PENDING, name="a remapping pending for five days", made=partial(remap_pending, 5),
        expects=("warning row_remap_pending",), ends=W,
    ),
    Story(
        id="B24", source=PENDING, name="a remapping pending for eight days", made=partial(remap_pending, 8),
        expects=("failure row_remap_overdue", "warning row_remap_pending"), ends=F,
    ),
    Story(
        id="B33", source=HOT, name="one H100 of two at 480 MHz under software thermal slowdown", made=one_of_two_is_hot,
        expects=("warning gpu_slow",), ends=W,
    ),
    Story(
        id="B34", source="rammsguns/llm-rig#97", name="hardware thermal slowdown under half an hour of load", made=warmed_through,
        expects=("warning thermal_slowdown",), ends=W,
    ),
    Story(
        id="B43", source=GB10, name="650 of 3,003 MHz without a reason", made=power_supply_gives_too_little, expects=("warning gpu_slow",), ends=W
    ),
    Story(id="B43", source=GB10, name="650 of 3,003 MHz for five minutes of each half hour", made=minutes_of_it_each_half_hour),
    Story(
        id="E05", source=BRAKE, name="power brake on two of four at a quarter of the clock", made=partial(braked, 2, 490),
        expects=("failure power_brake", "warning power_brake"), ends=F,
    ),
    Story(
        id="E05", source=BRAKE, name="power brake on two of four at two thirds of the clock", made=partial(braked, 2, 1300),
        expects=("warning power_brake",), ends=W,
    ),
    *(
        Story(id="B25", source=REPAIRS, name=name, made=partial(repair_states, **values), expects=(verdict,), ends=ends)
        for name, values, verdict, ends in (
            ("channel repair pending", {"repair_channel_pending": 1}, "warning gpu_repair_pending.channel", W),
            ("TPC repair pending", {"repair_tpc_pending": 1}, "warning gpu_repair_pending.tpc", W),
            ("memory beyond repair", {"memory_unrepairable": 1}, "failure memory_unrepairable", F),
            ("SRAM threshold exceeded", {"sram_threshold_exceeded": 1}, "failure sram_threshold", F),
            ("banks with few spare rows", {"remap_banks_max": 5750, "remap_banks_low": 10}, "warning row_remaps_many", W),
        )
    ),
)  # fmt: skip
