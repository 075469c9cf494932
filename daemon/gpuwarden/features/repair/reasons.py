"""The explanations of the words that status shows about repairs."""

from __future__ import annotations

REASONS = {
    "repair": {
        "meaning": "gpuwarden repairs this node by the steps that repair.steps allows: one step for a finding at a time, two within a day, then a person",
        "waiting": "a precondition does not hold: status and `gpuwarden repair FINDING --dry-run` name each one",
        "needs an operator": "the steps that are known and allowed were tried within a day, or refused three times, and the finding remains",
        "after a step": "the node returns once its GPUs, links and remapped rows read well and no Xid came for 2 minutes, and once a test passed where this host can test",
        "to do": "read the finding's runbook; gpuwarden repair FINDING orders a step; gpuwarden restore brings the node back",
    }
}
