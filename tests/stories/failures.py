"""Stories of machines that were plainly bad, or that looked healthy to the tools of their day: what is to be found, and when it ends."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from evaluate.kernel_text import happened
from gpuwarden.health.model import Health
from gpuwarden_collectors.event_facts import GpuResetEvent
from gpuwarden_collectors.facts import GpuAnswer
from gpuwarden_collectors.host_facts import MountFacts
from stories.readings import bus
from stories.story import Story
from support.hosts import Host, slot
from support.whole_hosts import WholeHost, hung, mount

HOURS = 3600.0


def recovery_action_before_the_daemon() -> Host:
    """The Xid came while nothing watched: what is left of it is the recovery action of the GPU."""
    host = Host(8)
    host.change(1, recovery_action=1)
    host.run(1 * HOURS, every=15)
    return host


def slow_link_in_production() -> Host:
    """Generation 2 of 5 for three and a half hours of full load."""
    host = Host(8)
    host.run(60)
    host.change(6, pcie_generation=2, utilization_gpu=100)
    host.run(3.5 * HOURS, every=15)
    host.change(6, pcie_generation=5)
    host.run(0.5 * HOURS, every=15)
    return host


def gone_without_a_line(*, on_the_bus: bool) -> Host:
    host = Host(8)
    host.run(60)
    del host.gpus[3]
    if not on_the_bus:
        del host.devices[3]
    host.run(1 * HOURS, every=15)
    return host


def firmware_of_one_gpu() -> Host:
    """The lines come only when somebody asks the GPU: 54, 53, 52, 32 and 10 minutes before the end. NVML answers for the other seven."""
    host = Host(8)
    host.run(60)
    minutes = (54, 53, 52, 32, 10)
    for ago, then in zip(minutes, (*minutes[1:], 0), strict=True):
        happened(
            host,
            f"NVRM: Xid (PCI:{bus(4)}): 119, pid=2024380, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU4 GSP! "
            "Expected function 103 (GSP_RM_ALLOC) (0x2081 0x4).",
        )
        host.run(60.0 * (ago - then), every=15)
    return host


def bench_of_two_minutes() -> Host:
    """Hardware slows the card down for heat 105 s after the load began; 15 s later the bench is over."""
    host = Host(2)
    for seconds, temperature, reasons in ((78, 58, 0), (10, 85, 0), (17, 90, 0), (15, 91, 0x48), (600, 60, 0)):
        slowed = 10**9 * 15 if seconds in (15, 600) else 0
        for gpu in host.gpus:
            host.change(gpu, temperature=temperature, clock_event_reasons=reasons, slowdown_hw_thermal_ns=slowed)
        host.run(seconds)
    return host


def remapped_row() -> Host:
    """Contained; the reset that activates the row comes with the node's maintenance two days later."""
    host = Host(8)
    host.run(60)
    host.change(2, remapped_rows_pending=1, remapped_rows_correctable=0, remapped_rows_uncorrectable=1)
    happened(
        host,
        f"NVRM: Xid (PCI:{bus(2)}): 63, pid=1850, Row Remapper: New row marked for remapping, reset gpu to activate",
    )
    host.run(2 * HOURS, every=15)
    host.change(2, remapped_rows_pending=0)
    host.step(GpuResetEvent(at=host.now, slot=slot(2), ok=True))
    host.run(1 * HOURS, every=15)
    return host


def rows_used_up() -> Host:
    """Use up the spare rows of a GPU, and reboot, which restores none of them."""
    host = Host(8)
    host.run(60)
    host.change(5, remapped_rows_failure=1)
    happened(
        host,
        f"NVRM: Xid (PCI:{bus(5)}): 64, pid='<unknown>', name=<unknown>, Row Remapper Error: (0x00000002eebc4100) - "
        "All reserved rows for bank are remapped",
        f"NVRM: Xid (PCI:{bus(5)}): 94, pid=2503421, name=python3, Ch 00000008",
    )
    host.run(1 * HOURS, every=15)
    host.reboot()
    host.run(1 * HOURS, every=15)
    return host


def off_the_bus_after_a_bus_error() -> Host:
    host = Host(4)
    host.run(60)
    happened(
        host,
        "pcieport 0000:00:01.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer, (Requester ID)",
        f"nvidia {slot(1)}: AER: can't recover (no error_detected callback)",
    )
    assert host.health is Health.WARNING  # the line before the loss is not the loss
    del host.gpus[1]
    host.devices[1] = replace(host.devices[1], responds=False)
    happened(
        host,
        f"NVRM: Xid (PCI:{bus(1)}): 79, GPU has fallen off the bus.",
        f"NVRM: Xid (PCI:{bus(1)}): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
    )
    host.run(1 * HOURS, every=15)
    return host


def firmware_under_one_model() -> Host:
    host = Host(8)
    host.run(60)
    happened(
        host,
        "NVRM: _issueRpcAndWait: rpcRecvPoll timedout for fn 76 sequence 4127!",
        f"NVRM: Xid (PCI:{bus(3)}): 119, pid=11431, name=gpu-feature-dis, Timeout after 45s of waiting for RPC response from GPU3 GSP! "
        "Expected function 76 (GSP_RM_CONTROL) sequence 4128 (0x20803039 0xb0).",
    )
    host.run(1 * HOURS, every=15)
    return host


def fatal_link_that_recovered() -> Host:
    host = Host(8)
    host.run(60)
    happened(
        host,
        f"NVRM: Xid (PCI:{bus(2)}): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 1"
        "(0x100000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
    )
    host.run(2 * HOURS, every=15)
    return host


def dead_under_new_firmware() -> Host:
    """NVML answers `Unknown Error` for all that is asked of the GPU."""
    host = Host(1)
    host.run(60)
    host.answer(0, GpuAnswer.UNKNOWN)
    host.run(1 * HOURS, every=15)
    return host


def answers_ones() -> Host:
    """`rev ff`: the card is on the bus, its configuration space reads 0xff, and seven others work."""
    host = Host(8)
    host.run(60)
    host.devices[6] = replace(host.devices[6], responds=False)
    happened(host, f"NVRM: Xid (PCI:{bus(6)}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    host.answer(6, GpuAnswer.UNKNOWN)
    host.run(1 * HOURS, every=15)
    return host


def killed_by_a_question() -> Host:
    host = Host(1)
    host.run(60)
    happened(host, f"NVRM: Xid (PCI:{bus(0)}): 120, pid=4711, name=nvidia-smi, GSP task exception: page fault")
    host.run(600)
    return host


def expected_mount_of_another_type(*, hangs: bool) -> WholeHost:
    """A parallel file system that is listed, whatever its type: it is gone, or nothing on it answers."""
    host = WholeHost()
    host.run(120)
    gone = MountFacts(path="/data", type="lustre", expected=True, mounted=False)
    host.mounts(mount("/"), hung("/data", type="lustre", expected=True) if hangs else gone)
    host.run(1 * HOURS, every=15)
    return host


def link_mask_at_boot() -> Host:
    """The links train and the fabric is complete all the same."""
    host = Host(8, uptime=60.0)
    host.run(10)
    happened(host, "NVRM: knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's postRxDetLinkMask failed!")
    host.run(1 * HOURS, every=15)
    return host


def killed_for_its_own_memory() -> Host:
    host = Host(8)
    host.run(60)
    happened(
        host,
        "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=python3,pid=4711,uid=1000",
        "oom_reaper: reaped process 4711 (python3), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
    )
    host.run(1 * HOURS, every=15)
    return host


FAILED = Health.FAILURE

STORIES: tuple[Story, ...] = (
    Story(id="B06", source="NVIDIA/DCGM#263, scitix/sichek PR #121", name="a GPU to be reset, found by a daemon that came after the error",
          made=recovery_action_before_the_daemon, expects=("failure gpu_recovery_action",), ends=FAILED),
    Story(id="B09", source="local-inference-lab/rtx6kpro PR #88", name="PCIe generation 2 of 5 under load, for hours",
          made=slow_link_in_production, expects=("warning pcie_link_degraded",)),
    Story(id="B19", source="NVIDIA/dcgm-exporter#348, leptonai/gpud#591", name="a GPU gone without a line, on the bus",
          made=partial(gone_without_a_line, on_the_bus=True), expects=("failure gpu_missing",), ends=FAILED),
    Story(id="B19", source="NVIDIA/NVSentinel#684, PR #833", name="a GPU gone without a line, not on the bus",
          made=partial(gone_without_a_line, on_the_bus=False), expects=("failure gpu_missing",), ends=FAILED),
    Story(id="B28", source="leptonai/gpud#1189", name="an expected Lustre mount is gone", made=partial(expected_mount_of_another_type, hangs=False),
          expects=("failure mount_missing",), ends=FAILED),
    Story(id="B28", source="leptonai/gpud#1189", name="an expected Lustre mount hangs", made=partial(expected_mount_of_another_type, hangs=True),
          expects=("failure mount_hung",), ends=FAILED),
    Story(id="B30", source="leptonai/gpud#1271, NVIDIA/NVSentinel#1748", name="a link mask that was not read at boot, all links up", made=link_mask_at_boot),
    Story(id="B32", source="leptonai/gpud#500 and its kernel log", name="GSP of one GPU dead, a line only when somebody asks it",
          made=firmware_of_one_gpu, expects=("failure xid.119",), ends=FAILED),
    Story(id="B34", source="rammsguns/llm-rig#97", name="slowed for heat in the last 15 s of a bench of two minutes", made=bench_of_two_minutes),
    Story(id="C02", source="HF m4/IDEFICS-80B chronicles, 2023-05", name="a row remapped (Xid 63), reset hours later",
          made=remapped_row, expects=("warning row_remap_pending", "warning xid.63")),
    Story(id="C03", source="imbue-ai/cluster-health, HF m4/IDEFICS-80B chronicles", name="no row left to remap (Xid 64), and a reboot",
          made=rows_used_up, expects=("failure row_remap_failed", "failure xid.64", "warning xid.94"), ends=FAILED),
    Story(id="C05", source="a post of 2026-09-10 (vegaserv)", name="a bus error, then Xid 79 and 154",
          made=off_the_bus_after_a_bus_error, expects=("failure gpu_missing", "failure gpu_recovery_action", "failure xid.79", "warning pcie_aer_fatal"),
          ends=FAILED, incidents=1),
    Story(id="C07", source="vllm-project/vllm#40652", name="GSP timeout named after the process that asked",
          made=firmware_under_one_model, expects=("failure xid.119",), ends=FAILED),
    Story(id="C08", source="NVIDIA forum 292539, NVIDIA/NVSentinel PR #545", name="a fatal NVLink error (Xid 74) that recovered",
          made=fatal_link_that_recovered, expects=("warning xid.74",)),
    Story(id="C13", source="awslabs/amazon-eks-ami#1523", name="a GPU of which every answer is Unknown Error",
          made=dead_under_new_firmware, expects=("failure gpu_unresponsive",), ends=FAILED),
    Story(id="C16", source="lyulyul/shine-cluster#171, akash-network/support#209", name="rev ff: on the bus, answers ones, seven others work",
          made=answers_ones, expects=("failure gpu_missing", "failure gpu_unresponsive", "failure xid.79"), ends=FAILED),
    Story(id="C17", source="NVIDIA/open-gpu-kernel-modules#1239", name="a question that ends the firmware (Xid 120)",
          made=killed_by_a_question, expects=("failure xid.120",), ends=FAILED),
    Story(id="D14", source="leptonai/gpud, imbue-ai/cluster-health", name="a job killed for its own memory limit", made=killed_for_its_own_memory),
)  # fmt: skip
