"""The explanations of the words that status shows about exclusions."""

from __future__ import annotations

from gpuwarden.health.runbooks import RUNBOOKS

REASONS = {
    "budget_unknown": {
        "meaning": "the nodes that are out for failures cannot be counted, so no node is taken out for a failure: this one stays in service",
        "because": "what counts (Slurm, Kubernetes or Prometheus) does not answer, knows only a part of the nodes, has another clock, or is not configured: status shows which",
        "retried": "after 1 to 15 minutes",
        "to do": "gpuwarden exclude --reason T takes this node out now, whatever the count; gpuwarden doctor checks what counts",
        "runbook": f"{RUNBOOKS}/GpuwardenBreakerOpen.md",
    },
}
