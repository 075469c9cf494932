"""Rows of the table of conditions for the host other than its GPUs. They count because the whole node is drained."""

from __future__ import annotations

from functools import lru_cache

from gpuwarden.health.condition import NO_DRIVER, Condition, F, W
from gpuwarden.health.model import Advice, Latch

HOST_CONDITIONS: tuple[Condition, ...] = (
    # --- InfiniBand and RoCE
    Condition(
        code="infiniband_down", scope="port", severity=F, advice=Advice.INSPECT_HARDWARE, rise=120, fall=60,
        title="An InfiniBand or RoCE port is down",
        why="The port was active here before and is not now, or is gone with its adapter. 2 minutes are what a reload of "
        "the network driver takes. A port that was never active is not missed, and one whose adapter has another name or place by "
        "now is the same port. An Ethernet port that is not of the job fabric only warns: beside InfiniBand, with the default route "
        "of the host, or slower than the others and without as many of its kind. Give up a port that was unplugged on purpose with "
        "gpuwarden inventory accept.",
        source="Meta RSC study (links of the back-end network are a top cause of failed jobs); gpud waits 4 min; NVSentinel#1529 "
        "(a management port that drained its node)",
    ),
    Condition(
        code="infiniband_flapping", scope="port", severity=W, advice=Advice.INSPECT_HARDWARE, fall=600,
        title="An InfiniBand or RoCE port goes down again and again",
        why="Three times within 3 hours by the port's own counters, so that no interruption is too short to be seen; where these "
        "are at their maximum, by what passes see.",
        source="Azure healthagent (3 in 3 h); gpud counts samples, and misses what is shorter than 30 s",
    ),
    Condition(
        code="infiniband_rate_low", scope="port", severity=W, advice=Advice.INSPECT_HARDWARE, rise=240, fall=60,
        title="An InfiniBand or RoCE port is slower than it was",
        why="It is active at a lower rate than its own best: lanes lost, or trained down. If that was done on purpose, "
        "gpuwarden inventory accept takes the new rate.",
        source="gpud, NHC check_hw_ib and NVSentinel compare with a configured rate; the port's own past needs none",
    ),
    Condition(
        code="infiniband_errors", scope="port", severity=W, advice=Advice.INSPECT_HARDWARE, fall=600,
        title="An InfiniBand, RoCE or EFA port counts errors for long",
        why="An error counter of the port grows beyond its limit in each third of 10 or 12 minutes or of an hour, while no more than half of the "
        "ports of its kind do: 120 symbol errors or 3 recoveries an hour, a timeout a second; the table is in health/host/port_errors.py. "
        "Of EFA any command without completion. Counters never fail a node. A counter at its maximum no longer counts: gpuwarden_port_blind "
        "shows that.",
        source="NVIDIA/NVSentinel NIC health monitor (rates, of which many are fatal there), UFM (traps and events), InfiniBand specification (bit error rate)",
    ),
    Condition(
        code="adapter_pcie_degraded", scope="adapter", severity=W, advice=Advice.INSPECT_HARDWARE, rise=240, fall=60,
        title="The PCIe link of a network adapter is narrower or slower than it can be",
        why="Fewer lanes than both ends of a link on its way to the root port have, or less speed at the adapter, for 4 minutes. Where all "
        "adapters are alike, it is how the host was built. If it is meant to be so, gpuwarden inventory accept takes it.",
        source="imbue-ai/cluster-health health_checks.py (x8 of x16 lanes: out of training, reboot, else a ticket)",
    ),
    # --- mounts
    Condition(
        code="disk_full", scope="mount", severity=W, advice=Advice.FIX_CONFIGURATION, rise=60, fall=60,
        title="A file system is full",
        why="95 % of its space are used and less than 100 GiB are left, or 95 % of its inodes are used. Other limits: `disk.used_percent`, "
        "`disk.inodes_percent`.",
        source="own choice of limits; NHC check_fs_used, check_fs_iused",
    ),
    Condition(
        code="mount_missing", scope="mount", severity=F, advice=Advice.RESTART_SERVICE, rise=60, fall=30,
        title="A file system that must be mounted is not",
        why="It is listed in collectors.storage.expected. One that is mounted on first use is not missing.",
        source="Meta RSC study (mounts are a top cause of failed jobs); NHC check_fs_mount",
    ),
    Condition(
        code="mount_hung", scope="mount", severity=F, advice=Advice.RESTART_SERVICE, rise=120, fall=30,
        title="A file system does not answer",
        why="A separate process that queried it hangs, or got an error such as a stale file handle. 2 minutes are "
        "what the failover of a file server takes. A failure where the mount is expected, else a warning.",
        source="NVRx storage check; the grace period of an NFS server is 90 s (Linux nfsd)",
    ),
    Condition(
        code="mount_read_only", scope="mount", severity=F, advice=Advice.INSPECT_HARDWARE, rise=60, fall=30,
        title="A file system became read-only",
        why="It was writable here before: the kernel does that when the disk below fails. A failure for the root and for "
        "expected mounts, else a warning.",
        source="ext4(5), errors=remount-ro; gpud takes the kernel's line for it as a failure",
    ),
    # --- memory
    Condition(
        code="memory_low", scope="node", severity=W, advice=Advice.RESTART_APP, rise=120, fall=60,
        title="Main memory is used up",
        why="Less than 2 % of what is not set aside as huge pages is available; another limit: `memory.used_percent`. Or more swap space "
        "is used than `swap.used_percent`, where the site has set it.",
        source="own choice of the limit; proc(5), MemAvailable; NHC check_hw_swap_free",
    ),
    Condition(
        code="memory_ecc_uncorrectable", scope="node", severity=F, advice=Advice.INSPECT_HARDWARE, fall=60, latch=Latch.REBOOT,
        title="Main memory lost data",
        why="A memory controller counted an uncorrectable error. The process that held the page died or continues with wrong data. Where "
        "the kernel has no driver for the controllers (EDAC), as in a virtual machine: it ended a process for such an error, and no GPU here "
        "shares its memory with the CPU. It stays until the node reboots or an operator acknowledges it.",
        source="kernel, EDAC: ue_count; mm/memory-failure.c; NHC check_hw_mcelog",
    ),
    # --- processes and services
    Condition(
        code="process_hung", scope="node", severity=F, advice=Advice.REBOOT, fall=30,
        title="A process that uses a GPU cannot be ended",
        why="It sleeps in the kernel for 5 minutes without running once, where no signal reaches it, and holds its GPU. A "
        "failure if it is the driver's own (nvidia…) or a worker of gpuwarden test, and runs as root or a system account, since then the driver is "
        "stuck; else its file system may be, or a user gave a process that name.",
        source="gpud fails a node for nvidia… in D state for 5 checks of a minute", depends_on=("driver_unresponsive",),
    ),
    Condition(
        code="service_down", scope="service", severity=F, advice=Advice.RESTART_SERVICE, rise=120, fall=30,
        title="A service that must run does not",
        why="An enabled unit of the driver (fabric manager, persistence daemon, DCGM, IMEX) or a configured one failed, "
        "does not run, or restarted three times within 10 minutes. 2 minutes are what a driver reload or a service restart "
        "takes. A failure only for the fabric manager of a host with NVSwitches: while its unit is enabled whatever the GPUs report of the "
        "fabric, since they stay registered when it dies; while it is disabled not where GPUs are registered or a process of it runs "
        "in a container. Where not all processes of the host are visible it is no failure. IMEX only where nodes share an NVLink "
        "domain; the fabric manager not there, since it runs on the switches.",
        source="NVSentinel, system services: 300 s from boot, 3 restarts in 600 s; NVSentinel#883 and ADR-050 (fabric manager)",
        depends_on=NO_DRIVER,
    ),
    # --- site checks
    Condition(
        code="plugin_failed", scope="plugin", severity=W, advice=Advice.FIX_CONFIGURATION,
        title="A site check gives no result",
        why="Three times in a row it did not start, did not end in time, or ended with a code that means nothing. What it "
        "found before is kept: a check that is broken makes no node bad, and none good.",
        source="Nagios: exit code 3 is unknown; node-problem-detector treats a timeout so, too",
    ),
)  # fmt: skip

_PREFIX = "plugin_"


@lru_cache(maxsize=256)
def plugin_condition(code: str) -> Condition | None:
    """Return the row of the site check `plugin_<name>`. Its exit code gives the severity, its interval the timing."""
    name = code.removeprefix(_PREFIX)
    if name == code or not name:
        return None
    return Condition(
        code=code,
        scope="node",
        severity=F,
        advice=Advice.OBSERVE,
        title=f"The site check {name} found a fault",
        why=f"The program of [plugins.{name}] ended with one of its warning or failure codes; its first line is the text of "
        f"the evidence. It counts at once and ends with the first run that is well: see [checks.{code}] for rise and fall.",
        source="this site",
    )
