"""The keys of `[jobs]`: how jobs are signalled before their machine ends, what is done with them then, and when one is stalled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import translate
from pathlib import Path
from typing import Literal

from gpuwarden.policy.evacuation.delivery import DeliveryRules, SiteRule
from gpuwarden.policy.evacuation.plan import EvacuationSettings
from gpuwarden_collectors.options import Misfit, bounded
from gpuwarden_collectors.receivers.facts import SIGNALS

SignalName = Literal["TERM", "USR1", "USR2", "HUP", "none"]
RULES_MOST = 64


@dataclass(frozen=True, slots=True)
class JobRule:
    """The signal for some jobs. It must name a partition or a job; the first rule that fits counts."""

    signal: Literal["", "TERM", "USR1", "USR2", "HUP", "none"] = ""
    """What its jobs get. It must be given."""
    partition: str = ""
    """Jobs of this partition. Empty: of any."""
    name: str = ""
    """Jobs of this name, a pattern as in a shell. Empty: any."""


@dataclass(frozen=True, slots=True)
class JobOptions:
    """How jobs are signalled before their machine ends, what becomes of them then ([termination.md](termination.md)), when one is stalled."""

    signal: SignalName = "TERM"
    """For jobs that declare none and that no rule is for. It goes to ranks that catch it and to nothing else."""
    rules: Mapping[str, JobRule] = field(default_factory=dict)
    requeue: bool = True
    """A job that saved, or whose time is up, is requeued where Slurm allows it."""
    last_words: Literal["none", "down", "power_down"] = "none"
    """The state that Slurm is given for this node in its last seconds, so that a job that still hangs there is given up at once."""
    failing_gpu: Literal["ignore", "signal", "requeue"] = "ignore"
    """What becomes of jobs on a GPU that failed, once the node is excluded for it."""
    signal_again: bool = False
    """Send the signal once more to ranks of which it is not known whether they got it, since the daemon was killed while it sent it.
    Ranks that have acknowledged get none."""
    stalled_after: float = bounded(
        240.0, 60.0, 3600.0, "barriers take a minute, and NCCL's watchdog ends a job after 10"
    )
    """For how long all GPUs of a job must be busy and idle at once before it is `job_stalled` ([conditions.md](conditions.md))."""
    stalled_containers: bool = False
    """Containers and pods that opt in are watched for stalls, too ([slurm.md](slurm.md))."""
    docker: Path = Path("/run/docker.sock")
    """The socket from which the labels of containers are read."""


def evacuation_settings(jobs: JobOptions, *, slurm: bool, approve: bool = False) -> EvacuationSettings:
    """`slurm`: a controller is configured. `approve` as in EvacuationSettings."""
    rules = tuple(
        SiteRule(signal=rule.signal.upper(), partition=rule.partition, name=translate(rule.name) if rule.name else "")
        for rule in jobs.rules.values()
    )
    return EvacuationSettings(
        delivery=DeliveryRules(default=jobs.signal.upper(), rules=rules), requeue=jobs.requeue,
        final_node_state=jobs.last_words, requeue_for_gpu=jobs.failing_gpu == "requeue", slurm=slurm,
        approve=approve, signal_again=jobs.signal_again,
    )  # fmt: skip


def job_misfits(jobs: JobOptions) -> Iterator[Misfit]:
    """Values that are of the right kind and yet wrong, by their keys."""
    if len(jobs.rules) > RULES_MOST:
        yield ("jobs.rules",), f"expected at most {RULES_MOST} rules, found {len(jobs.rules)}"
    for name, rule in jobs.rules.items():
        if not rule.signal:
            yield (f"jobs.rules.{name[:40]}.signal",), f"expected one of {', '.join(SIGNALS)}, none: what its jobs get"
        if not rule.partition and not rule.name:
            all_jobs = f"a rule for all jobs is jobs.signal, one of {', '.join(SIGNALS)}, none"
            yield (f"jobs.rules.{name[:40]}",), f"expected partition or name: {all_jobs}"
