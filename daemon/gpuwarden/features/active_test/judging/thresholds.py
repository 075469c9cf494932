"""What the figures of an active test are judged by. The noise was measured on healthy H100 and H200, alone on the GPU.

| what | noise measured | warning | failure |
| --- | --- | --- | --- |
| a wrong word of memory | 0 in 40 TB of marches; 7,003 of 7,003 injected bits found | one with ECC off | one with ECC on, or twice at one place |
| a wrong result of a kernel | 0 in 1,500 chunks; 1,800 of 1,800 injected bits found | one chunk, of one SM or of several | a second on that board within 28 days |
| CUDA does not start, or a call does not return | never seen | one test, without a verdict | again at least an hour later, if no test in between ended well |
| a wrong word of a copy (every copy is verified) | 0 | one test | a second on that board within 28 days |
| cycles of one SM | 0.003 % | more than 0.05 % off in 3 of 5 chunks, either way | never |
| cycles of all SMs | 0.003 % | no verdict: 0.5 % more than ever before means other work on the GPU (at 5 % load: 6 %) | never |
| int8 rate | 0.4 to 0.8 % | 5 % | 25 %, twice, an hour apart |
| speed of verifying memory | 0.3 to 0.6 % | 3 % | the same |
| PCIe, best of 20 | 1.2 % | 10 % | the same |
| peers | not measured | 10 % | the same |
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuwarden.features.active_test.judging.outcome import BANDWIDTH_LOW, TEST_FAILED
from gpuwarden_collectors.dataclass import dataclass

HOUR, DAY = 3600.0, 86_400.0
REMEMBERED = 28 * DAY
"""Seconds for which a wrong result counts, and of a GPU's own past: the window of `lemons/memory.py`."""
RESULTS_KEPT = 90 * DAY
AN_HOUR_APART = HOUR
"""Two slow tests within an hour count as one cause: a hot room, a neighbour, a power event."""

PAST_LEAST = 5
"""Results of a GPU's own past that are needed to compare with it."""
SIBLINGS_LEAST = 3
"""Other GPUs of the same run that are needed to compare with them."""
DEEP = 0.25
"""Share below both its own past and its siblings that is a failure the second time. Own choice: 10 to 80 times the
noise. Healthy GPUs of a fleet differ by 22 % at most (SC22, V100 and A100), so one table for all boards could not be
stricter."""
FLOOR = 0.25
"""Share below what boards of this name reached when they were measured."""
MEMORY_COVERED = 0.9
"""Share of the memory that a test must cover; otherwise it gives no verdict and ends no finding about memory."""
GATE_LEAVES = 3 * 1024**3
"""Bytes that a gate test need not cover: 2 GiB for a job that is just starting, and the contexts."""

SM_OFF_CHUNKS, SM_OFF_SHARE = 5, 0.6
"""An SM counts as slow if it was off in this share of the chunks, of which there must be this many."""
SMS_OFF_MOST = 16
"""SMs that are off at once: more than one GPC has, so a small kernel of another program ran."""
ALL_OFF = 0.005
"""Share by which all SMs together need more cycles than the kernel's constant."""
XIDS_OF_WORKERS = (13, 31, 43, 45)
"""Xids that a program causes: those of the test's own process are set aside."""
XIDS_COUNT_FROM = 3
"""Tests with such an Xid on this GPU alone, within 28 days, from which on they count against it."""
CORRECTED_A_SECOND = 1_000_000 / 3600
"""Corrected errors under the load of the test: the rate of `memory_degrading`. No healthy GPU is known to reach a
tenth."""

POWER_CAP, CLOCKS_SET = 0x4, 0x2
"""nvmlClocksEventReasons. bf16 drives every healthy H100 into its power cap (0x4), so that the bit shows nothing if
bf16 ran; the limit itself is compared by its value. A test with a clock that was set (0x2) is compared only with such
tests."""
WARM, HOT = 45, 60
"""°C before the test: the borders of the bands within which a GPU is compared with itself. An idle H100 has 30 to 40,
right after a job 55 to 75."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A speed that is judged, and its thresholds."""

    name: str
    """Its name in stored results."""
    code: str
    """Code of the condition that it raises."""
    detail: str
    """Detail of that condition."""
    title: str
    """For people."""
    drop: float
    """From this share on below its own past and its siblings it is a warning."""
    unit: str = "GB/s"
    """What it is printed in."""
    scale: float = 1e-9
    """From bytes per second to that."""

    @property
    def finding(self) -> str:
        """Name of the finding that this figure makes."""
        return f"{self.code}.{self.detail}"


FIGURES: tuple[Figure, ...] = (
    Figure(name="int8", code=TEST_FAILED, detail="rate", title="int8 rate", drop=0.05, unit="TOPS", scale=1e-12),
    Figure(name="verify", code=BANDWIDTH_LOW, detail="memory", title="reading memory", drop=0.03),
    Figure(name="to_device", code=BANDWIDTH_LOW, detail="pcie", title="PCIe, host to GPU", drop=0.10),
    Figure(name="to_host", code=BANDWIDTH_LOW, detail="pcie", title="PCIe, GPU to host", drop=0.10),
    Figure(name="peers", code=BANDWIDTH_LOW, detail="peers", title="reading peers (median)", drop=0.10),
)

MEASURED: Mapping[tuple[str, int], Mapping[str, float]] = {
    ("NVIDIA H100 80GB HBM3", 700_000): {"int8": 1.198e15, "verify": 3.050e12},
    ("NVIDIA H200", 700_000): {"int8": 1.178e15, "verify": 4.579e12},
}
"""By product name and power limit (mW): the least that a healthy board reached. Boards that are not here have no floor."""
