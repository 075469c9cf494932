"""Rows of the table of conditions for a working GPU. Those for one that does not work are in `health/conditions.py`."""

from __future__ import annotations

from gpuwarden.health.condition import NO_GPU, Condition, F, W
from gpuwarden.health.model import Advice, Latch

GPU_CONDITIONS: tuple[Condition, ...] = (
    # --- memory
    Condition(
        code="memory_degrading", scope="gpu", severity=F, advice=Advice.CONTACT_SUPPORT, fall=3600, latch=Latch.ACKNOWLEDGE,
        ends="the board was replaced, gpuwarden test found nothing at level quick or standard, or an operator acknowledged it (gpuwarden ack), "
        "and it is no longer seen",
        jobs_go_on=True,
        title="The memory of a GPU degrades",
        why="At least 1,000,000 corrected errors an hour in two of the last three windows of 10 minutes, or 2 or more rows remapped "
        "for corrected errors within 7 days while at least 1,000 errors an hour continue. The node is taken out after its jobs. An idle "
        "GPU makes no errors, and a reset or reboot only begins the counters again: it stays until the board is replaced, gpuwarden test "
        "finds nothing (quick or standard), or gpuwarden ack.",
        source="NVIDIA/NVSentinel#1748 (17,700 a second for weeks under load, none while idle); Lablup (a GPU with 254 remapped rows "
        "that was gone later); the limits: own choice", depends_on=NO_GPU,
    ),
    Condition(
        code="row_remaps_many", scope="gpu", severity=W, advice=Advice.CONTACT_SUPPORT, fall=60,
        title="Many rows of a GPU's memory are remapped",
        why="8 or more for corrected errors or 512 for uncorrectable ones in the life of the board, or a bank has few spare rows left, "
        "or none. Each remapping did its work; plan the replacement of the board. The count never falls, so gpuwarden only "
        "warns.",
        source="NVIDIA/NVSentinel#1748 (8 rows), Lablup (254); DCGM_FR_UNCORRECTABLE_ROW_REMAP_LIMIT; awslabs (remap histogram)",
        depends_on=NO_GPU,
    ),
    Condition(
        code="row_remap_overdue", scope="gpu", severity=F, advice=Advice.RESET_GPU, rise=7 * 86_400, fall=10, jobs_go_on=True,
        title="A memory row has waited for days to be remapped",
        why="It has been pending for 7 days, as row_remap_pending says from the beginning: one more error in the same bank may not be "
        "contained. The node is taken out after its jobs so that the GPU can be reset, and comes back after that.",
        source="awslabs, leptonai/gpud (reboot at once); the days: own choice", depends_on=(*NO_GPU, "row_remap_failed"),
    ),
    Condition(
        code="gpu_repair_pending", scope="gpu", severity=W, advice=Advice.REBOOT, fall=10,
        title="A GPU waits for a reboot that repairs it",
        why="A channel of its memory, or a TPC, is set aside and repaired at the next reset or reboot.",
        source="nvml.h: nvmlDeviceGetRepairStatus; awslabs (reboot)", depends_on=NO_GPU,
    ),
    Condition(
        code="memory_unrepairable", scope="gpu", severity=F, advice=Advice.CONTACT_SUPPORT, fall=10,
        title="Memory of a GPU is beyond repair",
        why="The driver's own flag: the GPU is a case for replacement.",
        source="nvml.h: nvmlDeviceGetUnrepairableMemoryFlag_v1; DCGM_FR_FAULTY_MEMORY; awslabs (replace)", depends_on=NO_GPU,
    ),
    # --- speed
    Condition(
        code="gpu_slow", scope="gpu", severity=W, advice=Advice.INSPECT_HARDWARE, rise=600, fall=300,
        title="A GPU is slow while it is busy",
        why="For 10 minutes, at full utilisation: its SM clock is below half of that of its siblings (busy GPUs of the same name, of the "
        "same job where that is known), or below half of its maximum with fewer than two of them or under a hardware slowdown of unknown cause, and the driver gives no reason that "
        "explains it (clocks that were set, hardware slowdown for heat or by the power brake, its own power limit); or, under software thermal slowdown, below 80 % of "
        "them (60 % of its maximum); or it is power-capped below 70 % of its limit while its siblings reach theirs (not on superchips, "
        "whose CPU shares the power). GPUs with MIG are not judged. An idle GPU does not show it: it ends after 5 minutes of work.",
        source="sgl-project/sglang#39206 (480 of 1980 MHz at 86 °C), GB10 (650 of 3003 MHz without a reason); scitix/sichek; the limits: "
        "own choice", depends_on=NO_GPU,
    ),
    Condition(
        code="gpu_idle_hot", scope="gpu", severity=W, advice=Advice.INSPECT_HARDWARE, rise=1800, fall=600, shadow=True,
        title="A GPU is hot though it does nothing",
        why="For 30 minutes nothing has it open, its utilization is 0, and it is 25 K hotter and draws 15 W more than the median of at least three "
        "idle siblings of the same name and part number. In shadow in this release.",
        source="own choice: no public incident has it with numbers", depends_on=NO_GPU,
    ),
    Condition(
        code="vgpu_unlicensed", scope="gpu", severity=W, advice=Advice.FIX_CONFIGURATION, rise=1200, fall=60,
        title="A vGPU lost its licence",
        why="It had a licence here before, and has had none for 20 minutes: from then on its vGPU software slows it down. If it no longer needs one, "
        "run gpuwarden inventory accept.",
        source="NVIDIA vGPU client licensing user guide (full capability for 20 minutes without a licence); nvml.h: nvmlDeviceGetGridLicensableFeatures",
        depends_on=NO_GPU,
    ),
)  # fmt: skip
