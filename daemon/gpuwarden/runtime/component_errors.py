"""Who says of each component of the daemon why it does not work."""

from __future__ import annotations

from collections.abc import Callable

from gpuwarden.collect.collectors import Readers
from gpuwarden.config.model import Config
from gpuwarden.engine.enforcement import Enforcement
from gpuwarden.health.components import Component, ComponentErrors
from gpuwarden.ledger.ledger import Ledger
from gpuwarden.publish.files.verdict import VerdictFile
from gpuwarden.publish.metrics.exposition import Holder
from gpuwarden.publish.web.pages import Web
from gpuwarden.runtime.jobs import Jobs
from gpuwarden.runtime.kubernetes_condition import KubernetesConditions
from gpuwarden.runtime.slurm_hooks import SlurmHooks
from gpuwarden_collectors.facts import Stamp


def component_errors(
    *,
    ledger: Ledger,
    readers: Readers,
    holder: Holder,
    verdict: VerdictFile,
    jobs: Jobs,
    slurm: SlurmHooks,
    enforcement: Enforcement,
    kubernetes: KubernetesConditions,
    web: Web,
    config: Callable[[], Config],
) -> ComponentErrors:
    """`config`: the one that is in force."""

    def kernel_log(now: Stamp) -> str:
        seen = readers.kernel_log_observation(now)
        return "" if seen is None else seen.error

    return ComponentErrors(
        {
            Component.LEDGER: ledger.error,
            Component.KERNEL_LOG: kernel_log,
            Component.JOB_LABELS: lambda _: holder.job_labels_error(),
            Component.VERDICT: verdict.error,
            Component.NOTICE: jobs.error,
            Component.SLURM: slurm.error,
            Component.ACTUATOR: lambda _: "; ".join(filter(None, (enforcement.error(), kubernetes.error()))),
            Component.ACTUATOR_AWAY: lambda _: enforcement.away(),
            Component.NOTIFY: lambda _: enforcement.notify_error(),
            Component.WEB: web.error,
            Component.CONFIG: lambda _: "; ".join(config().ignored),
        }
    )
