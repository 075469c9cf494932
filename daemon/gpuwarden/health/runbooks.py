"""Location of each condition's runbook: a page of docs/use/runbooks and a section. A test requires exactly one entry.

A few conditions have a separate page, named after their alert, because it fires earlier or requires something other
than a repair. All others are sections of a page about one part of a node. Facts of a finding are generated.
"""

from __future__ import annotations

import re

from gpuwarden.features import parts
from gpuwarden_collectors.dataclass import dataclass, replace

RUNBOOKS = "https://github.com/gpuwarden/gpuwarden/blob/main/docs/use/runbooks"
"""A placeholder: set your URL of docs/use/runbooks with `publish.runbooks` and `tools/rules.py --runbooks`."""

UNKNOWN_RUNBOOK = "GpuwardenNodeUnknown.md"

OWN_FAILURES = {
    "gpu_missing": "GpuwardenGpuMissing",
    "driver_unresponsive": "GpuwardenDriverUnresponsive",
    "memory_degrading": "GpuwardenMemoryDegrading",
}
"""By check: the separate alert for its failures."""
OWN_WARNINGS = {
    "lemon_node": "GpuwardenLemonNode",
    "row_remap_pending": "GpuwardenRowRemapPending",
    "ecc_correctable_rate": "GpuwardenEccCorrectableTrend",
    "gpu_slow": "GpuwardenGpuSlow",
    "gpu_misconfigured": "GpuwardenGpuMisconfigured",
    "job_stalled": "GpuwardenJobStalled",
}
"""By check: the separate alert for its warnings."""
OWN = OWN_FAILURES | OWN_WARNINGS


@dataclass(frozen=True, slots=True)
class Page:
    """A page about one part of a node. `families`: regular expressions of codes that have no row in the table of conditions."""

    name: str
    checks: tuple[str, ...]
    families: tuple[str, ...] = ()
    family_section: str = ""
    """Anchor of the section about these families."""


_PAGES = (
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
    Page("active-tests", ()),
    Page("heat-and-power", ("thermal_limit", "thermal_slowdown", "gpu_idle_hot", "power_brake")),
    Page("nvlink", ("nvlink_down", "nvlink_never_up", "nvlink_link_errors", "nvlink_errors", "fabric_unhealthy", "sxid")),
    Page("pcie", ("pcie_link_degraded", "pcie_replay_rate", "pcie_aer_fatal", "adapter_pcie_degraded")),
    Page(
        "driver",
        (
            "driver_slow", "driver_not_loaded", "driver_library_mismatch", "device_permission", "nvml_unavailable", "vgpu_unlicensed", "dcgm_unresponsive",
            "dcgm_impaired", "dcgm_disagrees",
        ),
        families=("dcgm_.+",), family_section="codes-of-dcgm",
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
        families=("plugin_.+",), family_section="site-checks",
    ),
    Page(
        "gpuwarden",
        (
            "collector_failed", "ledger_unavailable", "output_failed", "actuator_refused", "actuator_unreachable",
            "exclusion_stuck", "notification_refused", "web_config_faulty", "config_faulty", "feature_failed",
        ),
    ),
)  # fmt: skip
_OF_FEATURES = {code: page for feature in parts("conditions").values() for code, page in feature.RUNBOOKS.items()}
PAGES = tuple(
    replace(page, checks=(*page.checks, *(code for code, name in _OF_FEATURES.items() if name == page.name)))
    for page in _PAGES
)


def page_of(check: str) -> str:
    """Return the name of the page without its extension; "README" for a code without a page."""
    if (own := OWN.get(check)) is not None:
        return own
    return next((page.name for page in PAGES if check in page.checks or _in_family(page, check)), "README")


def place(check: str) -> str:
    """Return the path of the runbook of a finding, below the folder of runbooks."""
    page = next((page for page in PAGES if check not in page.checks and _in_family(page, check)), None)
    if page is not None and check not in OWN:
        return f"{page.name}.md#{page.family_section}"
    return f"{page_of(check)}.md" if check in OWN else f"{page_of(check)}.md#{check}"


def address(check: str, folder: str = RUNBOOKS) -> str:
    """Return the URL of the runbook of a finding. `folder`: the URL of all runbooks."""
    return f"{folder}/{place(check)}"


def _in_family(page: Page, check: str) -> bool:
    listed = any(check in other.checks for other in PAGES)
    return not listed and any(re.fullmatch(family, check) for family in page.families)
