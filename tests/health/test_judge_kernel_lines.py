"""What lines of the kernel log besides Xids make of a node, and what they do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evaluate.kernel_text import happened
from gpuwarden.health.model import Advice, Health, Latch
from gpuwarden_collectors.event_facts import KernelLineEvent, LineKind
from gpuwarden_collectors.facts import Stamp
from support.hosts import slot
from support.quick import first_quick
from support.whole_hosts import WholeHost, port
from support.whole_node import durable

ADAPTER = "0000:41:00.0"
SILENT = f"mlx5_core {ADAPTER}: poll_health:852:(pid 0): device's health compromised - reached miss count"
HARDWARE = f"mlx5_core {ADAPTER}: print_health_info:458:(pid 0): synd 0x8: unrecoverable hardware error"
FATAL = f"mlx5_core {ADAPTER}: poll_health:1083:(pid 0): Fatal error 1 detected"
TIMEOUT = (
    f"mlx5_core {ADAPTER}: wait_func:964:(pid 112): ACCESS_REG(0x805) timeout. Will cause a leak of a command resource"
)
RECOVERED = f"mlx5_core {ADAPTER}: health recovery succeeded"
STARTED = f"mlx5_core {ADAPTER}: firmware version: 28.41.1000"
STARTED_DEAD = f"mlx5_core {ADAPTER}: firmware version: 65535.65535.65535"
LOCKUP = "watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [python3:4711]"
IN_DRIVER = "RIP: 0010:_nv012345rm+0x1a/0x40 [nvidia]"
IN_NFS = "RIP: 0010:native_queued_spin_lock_slowpath+0x61/0x2d0"
NVME = "nvme nvme2: Disabling device after reset failure: -19"
HEARTBEAT = "NVRM: _kgspRpcRecvPoll: GSP RM heartbeat timed out"


def advised(index: int) -> str:
    where = f"GPU at PCI:{slot(index)[:-2]}"
    return f"NVRM: Rate limiting GSP RPC error prints for {where} (printing 1 of every 30).  The GPU likely needs to be reset."


def with_adapter() -> WholeHost:
    host = WholeHost()
    host.ports(port("mlx5_0", slot=ADAPTER), port("mlx5_1", slot="0000:42:00.0"))
    host.run(60)
    return host


def repeated(host: WholeHost, *texts: str, every: float, times: int) -> None:
    for _ in range(times):
        happened(host, *texts)
        host.run(every)


def health(host: WholeHost) -> Health:
    return host.health


# --- adapters


@pytest.mark.parametrize("line", first_quick(1, [SILENT, HARDWARE, FATAL]))
def test_dead_firmware_of_an_adapter_of_the_job_fabric_fails_though_its_port_reads_active(line: str) -> None:
    host = with_adapter()
    happened(host, line)
    host.run(60)
    (finding,) = host.findings
    assert (str(finding.key), finding.severity, finding.advice) == (
        f"adapter_failed@adapter/{ADAPTER}",
        "failure",
        Advice.REBOOT,
    )
    assert finding.latch is Latch.REBOOT
    host.run(7200, every=30)
    assert health(host) is Health.FAILURE
    host.restart_daemon()
    host.run(60)
    assert health(host) is Health.FAILURE
    host.reboot()
    host.run(60)
    assert health(host) is Health.HEALTHY


@pytest.mark.parametrize("line", [RECOVERED, STARTED])
def test_an_adapter_that_its_driver_recovers_within_seconds_is_no_finding(line: str) -> None:
    host = with_adapter()
    happened(host, SILENT)
    host.run(15)
    happened(host, line)
    host.run(300)
    assert not [event for event in host.ledger if event.kind == "raised"]


def test_a_recovery_in_the_same_moment_is_one_too() -> None:
    host = with_adapter()
    happened(host, SILENT, RECOVERED)
    host.run(300)
    assert health(host) is Health.HEALTHY


def test_a_later_recovery_ends_the_failure_and_a_new_fault_begins_another() -> None:
    host = with_adapter()
    happened(host, SILENT)
    host.run(120)
    happened(host, RECOVERED)
    host.run(15)
    assert health(host) is Health.HEALTHY
    happened(host, HARDWARE)
    host.run(60)
    assert health(host) is Health.FAILURE


def test_an_adapter_that_does_not_answer_at_a_new_start_of_its_driver_is_no_better_for_it() -> None:
    host = with_adapter()
    happened(host, SILENT)
    host.run(60)
    happened(host, STARTED_DEAD)
    host.run(60)
    assert health(host) is Health.FAILURE
    happened(host, STARTED)
    host.run(15)
    assert health(host) is Health.HEALTHY


def test_lines_about_adapters_that_begin_are_not_kept() -> None:
    host = with_adapter()
    before = len(host.ledger)
    happened(host, STARTED, "nvme nvme0: pci function 0000:04:00.0")
    assert len(host.ledger) == before


def test_an_adapter_without_a_port_of_the_job_fabric_only_warns() -> None:
    host = WholeHost()
    host.ports(port("mlx5_0", slot="0000:42:00.0"), port("mlx5_9", slot=ADAPTER, link_layer="Ethernet"))
    host.run(60)
    happened(host, SILENT)
    host.run(60)
    assert [(finding.key.code, finding.severity) for finding in host.findings] == [("adapter_failed", "warning")]
    never_up = WholeHost()
    never_up.ports(port("mlx5_0", slot="0000:42:00.0"))
    never_up.run(60)
    happened(never_up, SILENT)
    never_up.run(60)
    assert health(never_up) is Health.WARNING


def test_commands_on_both_sides_of_a_recovery_do_not_add_up() -> None:
    host = with_adapter()
    happened(host, TIMEOUT)
    host.run(60)
    happened(host, RECOVERED)
    host.run(70)
    happened(host, TIMEOUT)
    host.run(60)
    assert health(host) is Health.WARNING


def test_one_command_without_an_answer_warns_and_commands_without_answers_for_minutes_fail() -> None:
    host = with_adapter()
    happened(host, TIMEOUT)
    host.run(60)
    assert health(host) is Health.WARNING
    host.run(3700, every=20)
    assert health(host) is Health.HEALTHY
    repeated(host, TIMEOUT, every=60, times=4)
    assert health(host) is Health.FAILURE


def test_a_failed_adapter_can_be_acknowledged_and_fails_again_by_another_line() -> None:
    host = with_adapter()
    happened(host, SILENT)
    host.run(300)
    host.acknowledge(f"adapter_failed@adapter/{ADAPTER}")
    host.run(60)
    assert health(host) is Health.HEALTHY
    happened(host, SILENT)
    host.run(60)
    assert health(host) is Health.FAILURE


def while_away(host: WholeHost, kind: LineKind, *, ago: float, slot: str = "", part: str = "") -> KernelLineEvent:
    """A line that came while no daemon ran."""
    at = Stamp(host.uptime - ago, host.now.wall - ago)
    return KernelLineEvent(at=at, what=kind, slot=slot, part=part, text="x")


@pytest.mark.parametrize("line", [SILENT, HARDWARE])
def test_an_adapter_fails_though_the_daemon_is_away_when_its_driver_had_recovered_it(line: str) -> None:
    host = with_adapter()
    happened(host, line)
    host.run(15)
    host.uptime += 40.0
    host.restart_daemon()
    host.run(60)
    assert health(host) is Health.FAILURE


def test_an_adapter_that_failed_while_no_daemon_ran_fails_unless_it_was_recovered() -> None:
    host = with_adapter()
    host.run(3600, every=60)
    host.restart_daemon()
    host.step(while_away(host, LineKind.ADAPTER_SILENT, ago=1800, slot=ADAPTER))
    host.run(60)
    assert health(host) is Health.FAILURE
    well = with_adapter()
    well.run(3600, every=60)
    well.restart_daemon()
    well.step(
        *(
            while_away(well, kind, ago=1800, slot=ADAPTER)
            for kind in (LineKind.ADAPTER_SILENT, LineKind.ADAPTER_RECOVERED)
        )
    )
    well.run(60)
    assert health(well) is Health.HEALTHY


def test_an_adapter_that_sysfs_does_not_name_may_be_of_any_port() -> None:
    host = WholeHost()
    host.run(60)
    happened(host, SILENT)
    host.run(60)
    assert health(host) is Health.FAILURE


def test_lockups_that_were_over_before_the_daemon_came_are_no_finding() -> None:
    host = WholeHost()
    host.run(60)
    host.step(*(while_away(host, LineKind.SOFT_LOCKUP, ago=2000 - 28 * n, part="nvidia") for n in range(20)))
    host.run(60)
    assert health(host) is Health.HEALTHY


# --- soft lockups


def test_one_soft_lockup_is_no_finding() -> None:
    host = WholeHost()
    host.run(60)
    happened(host, *[LOCKUP] * 64, IN_DRIVER)
    host.run(600)
    assert not [event for event in host.ledger if event.kind == "raised"]


def test_lockups_that_go_on_warn_and_in_a_driver_fail_after_five_minutes() -> None:
    host = WholeHost()
    host.run(60)
    repeated(host, LOCKUP, IN_NFS, every=28, times=30)
    assert [(str(f.key), f.severity) for f in host.findings] == [("soft_lockup@node", "warning")]
    driver = WholeHost()
    driver.run(60)
    repeated(driver, LOCKUP, IN_DRIVER, every=28, times=8)
    assert [(str(f.key), f.severity) for f in driver.findings] == [("soft_lockup.nvidia@node", "warning")]
    repeated(driver, LOCKUP, IN_DRIVER, every=28, times=8)
    assert health(driver) is Health.FAILURE


def test_a_driver_that_was_stuck_stays_a_failure_when_shorter_lockups_follow() -> None:
    host = WholeHost()
    host.run(60)
    repeated(host, LOCKUP, IN_DRIVER, every=28, times=16)
    assert health(host) is Health.FAILURE
    host.run(240)
    repeated(host, LOCKUP, IN_DRIVER, every=28, times=4)
    assert [(str(f.key), f.severity) for f in host.findings] == [("soft_lockup.nvidia@node", "failure")]
    host.reboot()
    host.run(60)
    assert health(host) is Health.HEALTHY


def test_lockups_behind_a_fatal_pcie_error_fail_after_a_minute() -> None:
    host = WholeHost()
    host.run(60)
    happened(host, "pcieport 0000:00:00.0: AER: Uncorrected (Fatal) error received: 0000:00:00.0")
    host.run(120)
    repeated(host, LOCKUP, IN_NFS, every=28, times=4)
    assert health(host) is Health.FAILURE


def test_what_a_boot_takes_a_cpu_for_is_no_finding() -> None:
    host = WholeHost(uptime=20)
    host.run(5)
    repeated(host, LOCKUP, IN_DRIVER, every=25, times=10)
    assert not [event for event in host.ledger if event.kind == "raised"]


def test_a_driver_that_is_stuck_from_the_boot_on_fails_once_the_boot_is_over_for_as_long() -> None:
    host = WholeHost(uptime=20)
    host.run(5)
    repeated(host, LOCKUP, IN_DRIVER, every=25, times=20)
    assert health(host) is Health.WARNING
    repeated(host, LOCKUP, IN_DRIVER, every=25, times=8)
    assert health(host) is Health.FAILURE


# --- NVMe, GSP, GPUs that do not initialise


def test_an_nvme_drive_that_is_gone_warns_until_it_is_back() -> None:
    host = WholeHost()
    host.run(60)
    happened(host, NVME)
    host.run(7200, every=30)
    assert [str(finding.key) for finding in host.findings] == ["nvme_failed.nvme2@node"]
    happened(host, "nvme nvme2: pci function 0000:04:00.0")
    host.run(30)
    assert health(host) is Health.HEALTHY


@pytest.mark.slow
def test_a_late_heartbeat_after_a_resume_is_no_finding_and_one_that_goes_on_warns() -> None:
    host = WholeHost()
    host.run(60)
    repeated(host, HEARTBEAT, HEARTBEAT, every=7200, times=2)
    assert not [event for event in host.ledger if event.kind == "raised"]
    repeated(host, HEARTBEAT, every=15, times=6)
    assert [(str(f.key), f.severity) for f in host.findings] == [("gsp_not_answering@node", "warning")]


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: _kgspRpcRecvPoll: GSP RM / LibOS heartbeat timed out",
        "NVRM: GPU0 _kgspRpcRecvPoll: LibOS heartbeat timed out",
        (
            "NVRM: GPU0 _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs 709957545 heartbeat 105067568 "
            "heartbeatWithOffsetMs 709949520 diff 8025 timeout 5200"
        ),
    ],
)
def test_every_wording_of_a_late_heartbeat_that_goes_on_warns(line: str) -> None:
    host = WholeHost()
    host.run(60)
    repeated(host, line, every=15, times=6)
    assert [(str(f.key), f.severity) for f in host.findings] == [("gsp_not_answering@node", "warning")]


def test_a_gpu_that_likely_needs_a_reset_warns_and_is_a_consequence_of_xid_119() -> None:
    host = WholeHost()
    host.run(60)
    happened(host, advised(1))
    host.run(30)
    assert [(str(f.key), f.severity) for f in host.findings] == [(f"gsp_not_answering@gpu/{slot(1)}", "warning")]
    text = (
        "Timeout after 6s of waiting for RPC response from GPU4 GSP! Expected function 103 (GSP_RM_ALLOC) (0x2081 0x4)."
    )
    happened(host, f"NVRM: Xid (PCI:{slot(1)[:-2]}): 119, pid=2024380, name=nvidia-smi, {text}")
    host.run(30)
    assert [finding.key.code for finding in host.findings] == ["xid"]


def test_a_line_about_a_gpu_that_was_never_here_is_none() -> None:
    host = WholeHost()
    host.run(60)
    happened(host, advised(77))
    host.run(60)
    assert health(host) is Health.HEALTHY


def test_that_a_gpu_did_not_initialise_is_evidence_and_no_finding_by_itself() -> None:
    host = WholeHost()
    host.run(60)
    line = f"NVRM: GPU {slot(1)}: RmInitAdapter failed! (0x25:0x40:1470)"
    happened(host, line)
    host.run(300)
    assert health(host) is Health.HEALTHY
    del host.gpus[1]
    host.run(60)
    (finding,) = host.findings
    assert (finding.key.code, finding.evidence["kernel_line"]) == ("gpu_missing", line)


def test_lines_from_before_the_first_start_are_not_judged() -> None:
    host = WholeHost()
    host.run(60)

    old = KernelLineEvent(at=host.now, what=LineKind.ADAPTER_SILENT, slot=ADAPTER, text="x", history=True)
    host.step(old, replace(old, what=LineKind.NVME_FAILED, slot="", part="nvme0"))
    host.run(300)
    assert health(host) is Health.HEALTHY


def test_a_checkpoint_keeps_what_lines_made() -> None:
    host = with_adapter()
    happened(host, SILENT, NVME)
    host.run(120)
    before = host.state
    host.checkpointed()
    assert durable(host.state) == durable(before)
    happened(host, RECOVERED)
    host.run(60)
    assert [finding.key.code for finding in host.findings] == ["nvme_failed"]
