"""Whether the jobs that run on a GPU that failed go on."""

from __future__ import annotations

from gpuwarden.health.conditions import condition
from gpuwarden.health.gpu.detectors import DRAIN_AND_RESET
from gpuwarden.health.model import Finding


def jobs_go_on(finding: Finding) -> bool:
    """True if jobs on the GPU work, worse at most: the failure only keeps new ones away."""
    row = condition(finding.key.code)
    drains = finding.key.code == "gpu_recovery_action" and finding.evidence.get("value") == DRAIN_AND_RESET
    return drains or (row is not None and row.jobs_go_on)
