"""Which alert a finding has, and which page of docs/runbooks explains it. Each condition is here once; a test holds that.

A few have an alert of their own, since it comes earlier or asks for something else than repair: its page has its name. All others
come with `GpuwardenNodeFailure` or `GpuwardenNodeWarning`, whose address leads to the page of the part that is concerned, and there to
the section of the finding. What a section says of the finding itself is made from the table of conditions (`runbook_pages.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

NODE_FAILURE, NODE_WARNING = "GpuwardenNodeFailure", "GpuwardenNodeWarning"

OWN_FAILURES = {
    "gpu_missing": "GpuwardenGpuMissing",
    "driver_unresponsive": "GpuwardenDriverUnresponsive",
    "memory_degrading": "GpuwardenMemoryDegrading",
}
"""By check, the alert that failures of it have of their own."""
OWN_WARNINGS = {
    "lemon_node": "GpuwardenLemonNode",
    "row_remap_pending": "GpuwardenRowRemapPending",
    "ecc_correctable_rate": "GpuwardenEccCorrectableTrend",
    "gpu_slow": "GpuwardenGpuSlow",
    "gpu_misconfigured": "GpuwardenGpuMisconfigured",
    "job_stalled": "GpuwardenJobStalled",
}
"""The same of warnings."""
OWN = OWN_FAILURES | OWN_WARNINGS


@dataclass(frozen=True, slots=True)
class Page:
    """A page about one part of a node. `families`: regular expressions of codes that have no row in the table of conditions."""

    name: str
    checks: tuple[str, ...]
    families: tuple[str, ...] = ()


PAGES = (
    Page(
        "gpu",
        (
            "xid", "gpu_unresponsive", "gpu_reset_required", "gpu_readings_lost", "gpu_recovery_action", "gsp_not_answering",
            "inforom_invalid", "gpu_held_after_job",
        ),
    ),
    Page(
        "gpu-memory",
        (
            "ecc_uncorrectable", "row_remap_failed", "row_remap_overdue", "row_remaps_many", "gpu_repair_pending",
            "memory_unrepairable", "sram_threshold", "retired_pages",
        ),
    ),
    Page("active-tests", ("test_failed", "test_hung", "gpu_sm_slow", "gpu_bandwidth_low")),
    Page("heat-and-power", ("thermal_limit", "thermal_slowdown", "power_brake")),
    Page("nvlink", ("nvlink_down", "nvlink_link_errors", "nvlink_errors", "fabric_unhealthy", "sxid")),
    Page("pcie", ("pcie_link_degraded", "pcie_replay_rate", "pcie_aer_fatal", "adapter_pcie_degraded")),
    Page(
        "driver",
        (
            "driver_not_loaded", "driver_library_mismatch", "device_permission", "nvml_unavailable", "dcgm_unresponsive",
            "dcgm_impaired", "dcgm_disagrees",
        ),
        families=("dcgm_.+",),
    ),
    Page(
        "network",
        ("infiniband_down", "infiniband_flapping", "infiniband_rate_low", "infiniband_errors", "adapter_failed"),
    ),
    Page("storage", ("disk_full", "mount_missing", "mount_hung", "mount_read_only", "nvme_failed")),
    Page(
        "host",
        (
            "inventory_incomplete", "memory_low", "memory_ecc_uncorrectable", "process_hung", "soft_lockup", "service_down",
            "plugin_failed",
        ),
        families=("plugin_.+",),
    ),
    Page(
        "gpuwarden",
        (
            "collector_failed", "ledger_unavailable", "output_failed", "actuator_refused", "actuator_unreachable",
            "notification_refused", "web_config_faulty", "config_outdated",
        ),
    ),
)  # fmt: skip


def alert_of(check: str, severity: str) -> str:
    """The alert of a finding of `warning` or `failure`: a site may have given it another severity than the table."""
    own, rest = (OWN_FAILURES, NODE_FAILURE) if severity == "failure" else (OWN_WARNINGS, NODE_WARNING)
    return own.get(check, rest)


def page_of(check: str) -> str:
    """The name of the page, without its ending."""
    return OWN.get(check) or next(page.name for page in PAGES if check in page.checks)


def address() -> str:
    """Of the section about a finding, below the folder of runbooks; a template of Prometheus for alerts with the label `check`."""
    pages = {page.name: "|".join((*page.checks, *page.families)) for page in PAGES}
    pages |= {alert: check for check, alert in OWN.items()}
    found = "{{ else if ".join(f'match "^(?:{checks})$" $labels.check }}}}{name}' for name, checks in pages.items())
    return f"{{{{ if {found}{{{{ else }}}}README{{{{ end }}}}.md#{{{{ $labels.check }}}}"
