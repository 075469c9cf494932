"""Rows of the table of conditions for kernel log lines other than Xids."""

from __future__ import annotations

from gpuwarden.health.condition import NO_GPU, Condition, F, W
from gpuwarden.health.model import Advice, Latch

LINE_CONDITIONS: tuple[Condition, ...] = (
    Condition(
        code="gsp_not_answering", scope="gpu", severity=W, advice=Advice.RESET_GPU, fall=3600,
        title="The system processor of a GPU does not answer the driver",
        why="The driver limits its lines about calls that time out and reports that the GPU likely needs a reset; or lines about a late "
        "heartbeat, which name no GPU, continue for a minute. One such line alone comes after each resume from suspend. Xids 119, 120 "
        "and 175 fail the GPU by themselves: this is one sign among others.",
        source="NVIDIA/open-gpu-kernel-modules rpc.c, kernel_gsp.c; leptonai/gpud#500 (a dead GSP prints only while somebody asks it)",
        depends_on=(*NO_GPU, "xid"),
    ),
    Condition(
        code="soft_lockup", scope="node", severity=F, advice=Advice.REBOOT, fall=600, latch=Latch.REBOOT,
        title="A CPU is stuck in the kernel",
        why="Soft lockups continue for a minute: a warning. A failure after 5 minutes in a driver of GPUs or network adapters, and after "
        "a minute where a fatal PCIe error came within the 10 minutes before. The first 5 minutes after a boot do not count.",
        source="leptonai/gpud#1245 (a node that was Ready for 3.5 days); NVIDIA/NVSentinel (soft lockup in mlx5 is fatal); a pause of the "
        "hypervisor prints one line for each CPU, and no more",
    ),
    Condition(
        code="nvme_failed", scope="node", severity=W, advice=Advice.INSPECT_HARDWARE, fall=7 * 86_400,
        title="The kernel gave up an NVMe drive",
        why="The controller did not come back from a reset. What was mounted from it is gone; that fails the node where the mount is "
        "expected. It ends with the kernel's line about a new controller of that name, in a week, or by acknowledgement.",
        source="Linux, drivers/nvme/host/pci.c: nothing tries again after these lines",
    ),
    Condition(
        code="adapter_failed", scope="adapter", severity=F, advice=Advice.REBOOT, rise=30, fall=3600, latch=Latch.REBOOT,
        title="The firmware of a network adapter failed",
        why="The mlx5 driver reports that the firmware does not count any more, an unrecoverable hardware error, or a fatal error (as where the "
        "adapter is off the PCIe bus), and no recovery within 30 seconds; its ports may still read ACTIVE. Commands without an answer warn, and fail once they go on for 2 minutes. An "
        "adapter without a port of the job fabric only warns. It ends with the driver's line about a recovery or a new start, with "
        "a reboot, or by acknowledgement.",
        source="NVIDIA/NVSentinel NIC health monitor (first, second and commands: fatal); Linux, mlx5 health.c (fatal errors, recovery)",
    ),
)  # fmt: skip
