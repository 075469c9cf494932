"""What an active test finds: rows of the table of conditions."""

from __future__ import annotations

from collections.abc import Mapping

from gpuwarden.health.condition import NO_GPU, Condition, F, W
from gpuwarden.health.model import Advice

_ENDS = (
    "It stays until a test of the same level or a higher one finds nothing, the board is replaced, or gpuwarden ack."
)
_PASSED = (
    "the board was replaced, gpuwarden test found nothing at the level that found it, or a higher one, or an operator acknowledged it "
    "(gpuwarden ack)"
)

CONDITIONS: tuple[Condition, ...] = (
    Condition(
        code="test_failed", scope="gpu", severity=F, advice=Advice.INSPECT_HARDWARE, jobs_go_on=True,
        title="An active test found a fault of a GPU",
        why="gpuwarden test found wrong words of memory, wrong results of a kernel whose results are known beforehand, or wrong copies; "
        "counters of uncorrectable errors grew; Xids of the test itself came on this GPU alone in three tests; or its int8 rate is low. "
        "A failure: one wrong word with ECC on, else two at one place; a second wrong result within 28 days; uncorrectable errors; a "
        "rate 25 % below own past and siblings, twice, an hour apart. Else a warning. " + _ENDS,
        source="measured on H100 and H200: 0 wrong words in 40 TB, 0 wrong results in 1,500 chunks, rates within 0.8 %; "
        "docs/use/active-tests.md",
        depends_on=NO_GPU, ends=_PASSED, from_memory=True,
    ),
    Condition(
        code="test_hung", scope="gpu", severity=F, advice=Advice.REBOOT, jobs_go_on=True,
        title="CUDA hung in an active test",
        why="The test's process on this GPU did not end within its time and was killed, while NVML answered: CUDA did not start, or a call did "
        "not return. A warning; a failure if it was the same an hour before or earlier, and no test ended well between. What sleeps in the "
        "driver and cannot be killed is left behind, and keeps every further test from this node until it is rebooted; after 5 minutes it "
        "is process_hung. " + _ENDS,
        source="own choice: a first start of a driver, or a host without CPU time, may take long once; measured on H100 and H200: a killed "
        "process is gone within 0.31 s (63 of 63)",
        depends_on=NO_GPU, ends=_PASSED, from_memory=True,
    ),
    Condition(
        code="gpu_sm_slow", scope="gpu", severity=W, advice=Advice.INSPECT_HARDWARE,
        title="A streaming multiprocessor of a GPU differs from the others",
        why="In an active test its cycles for the same loop were more than 0.05 % from the median of all, either way, in 3 of 5 chunks at "
        "least: 15 times the noise. Work that is spread over the whole GPU waits for its slowest part. " + _ENDS,
        source="measured on H100 and H200: no SM off by more than 0.003 %; delays of 0.2 % injected were all found",
        depends_on=NO_GPU, ends=_PASSED, from_memory=True,
    ),
    Condition(
        code="gpu_bandwidth_low", scope="gpu", severity=F, advice=Advice.INSPECT_HARDWARE, jobs_go_on=True,
        title="Memory, PCIe or peers of a GPU are slower than they were",
        why="In an active test memory was read 3 % slower, or PCIe or its peers were 10 % slower, than the median of its own last 28 days "
        "and than its siblings in the same run; 25 % slower than one of them; or 25 % slower than boards of its name that were measured. "
        "A failure only 25 % below both, twice, an hour apart, while the driver names no reason for it. " + _ENDS,
        source="measured on H100 and H200: reading memory within 0.6 %, PCIe (best of 20) within 1.2 %; 25 %: own choice, healthy GPUs "
        "of a fleet differ by 22 % at most (SC22)",
        depends_on=NO_GPU, ends=_PASSED, from_memory=True,
    ),
)  # fmt: skip

TO_DO: Mapping[str, str] = {
    "test_failed": "Test the GPU again when it is empty: `gpuwarden test --level standard`. Wrong again: have the board replaced. Tell the owners of "
    "the jobs since the last passed test.",
    "test_hung": "Drain the node and reboot it. Then test again: `gpuwarden test`. A warning only: test again when the node is free.",
    "gpu_sm_slow": "Test the GPU again: `gpuwarden test`. The same SM is slow again: open a case with the vendor; in service it costs time only.",
    "gpu_bandwidth_low": "Test the GPU again, cold and empty: `gpuwarden test`. Still slow: for PCIe check `nvidia-smi -q -i SLOT` (width, generation), "
    "for memory open a case with the vendor.",
}

RUNBOOKS: Mapping[str, str] = dict.fromkeys(TO_DO, "active-tests")
