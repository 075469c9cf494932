"""What the configuration means for an evacuation."""

from __future__ import annotations

from fnmatch import translate

from gpuwarden.config.model import Config
from gpuwarden.features.evacuation.azure_approval import AzureApproval
from gpuwarden.features.evacuation.policy.delivery import DeliveryRules, SiteRule
from gpuwarden.features.evacuation.policy.plan import EvacuationSettings
from gpuwarden_collectors.cloud.metadata import Metadata
from gpuwarden_collectors.cloud.registry import AZURE


def settings(config: Config) -> EvacuationSettings:
    """Return how jobs are signalled and requeued by `[jobs]`, and whether an end may be approved early."""
    jobs, azure = config.jobs, config.termination.of(AZURE)
    rules = tuple(
        SiteRule(signal=rule.signal.upper(), partition=rule.partition, name=translate(rule.name) if rule.name else "")
        for rule in jobs.rules.values()
    )
    return EvacuationSettings(
        delivery=DeliveryRules(default=jobs.signal.upper(), rules=rules),
        requeue=jobs.requeue,
        final_node_state=jobs.final_node_state,
        requeue_for_gpu=jobs.failing_gpu == "requeue",
        slurm=config.slurm.enabled,
        approve=azure.approve,
        signal_again=jobs.signal_again,
    )


def approval(config: Config) -> AzureApproval | None:
    """Return the client for early approval (Azure scheduled events); None unless it is enabled."""
    azure = config.termination.of(AZURE)
    if not azure.approve:
        return None
    return AzureApproval(Metadata(azure.endpoint or AZURE.endpoint, azure.timeout))
