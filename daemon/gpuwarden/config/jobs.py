"""The keys of `[jobs]`: how jobs are signalled before their machine ends, what is done with them then, and when one is stalled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Literal

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.options import Misfit, bounded
from gpuwarden_collectors.receivers.facts import SIGNALS

SignalName = Literal["TERM", "USR1", "USR2", "HUP", "none"]
RULES_MOST = 64


@dataclass(frozen=True, slots=True)
class JobRule:
    """The signal for some jobs. A rule must give `partition`, `name` or both; the first rule that matches a job decides."""

    signal: Literal["", "TERM", "USR1", "USR2", "HUP", "none"] = ""
    """The signal for jobs that match this rule. Required."""
    partition: str = ""
    """The rule matches jobs of this partition. Empty: of any partition."""
    name: str = ""
    """The rule matches jobs with this name, a shell pattern. Empty: with any name."""


@dataclass(frozen=True, slots=True)
class JobOptions:
    """How jobs are signalled and requeued before their machine ends ([termination.md](../use/termination.md)), and when a job counts as stalled."""

    signal: SignalName = "TERM"
    """The signal for jobs that declare none and match no rule. Only ranks that have a handler for it get it."""
    rules: Mapping[str, JobRule] = field(default_factory=dict)
    requeue: bool = True
    """Requeue a job that has saved, or whose time is up, if Slurm allows it."""
    final_node_state: Literal["none", "down", "power_down"] = "none"
    """The state that this node is set to in Slurm shortly before its end, so that Slurm at once gives up a job that still hangs there."""
    failing_gpu: Literal["ignore", "signal", "requeue"] = "ignore"
    """What to do with jobs on a GPU that failed, once the node is excluded for it: nothing, signal them, or signal and requeue them."""
    signal_again: bool = False
    """If the daemon was killed while it sent a signal, so that it is unknown whether the ranks got it: send it once more. Ranks that have
    acknowledged get none."""
    stalled_after: float = bounded(
        240.0, 60.0, 3600.0, "barriers take a minute, and NCCL's watchdog ends a job after 10"
    )
    """For how long all GPUs of a job on this node must be busy without progress before the finding `job_stalled` ([slurm.md](../use/slurm.md#jobs-that-stall))."""
    stalled_containers: bool = False
    """Watch containers and pods that opt in for stalls, too ([slurm.md](../use/slurm.md#jobs-that-stall))."""
    docker: Path = Path("/run/docker.sock")
    """The socket of Docker or Podman, from which the labels of containers are read."""


def job_misfits(jobs: JobOptions) -> Iterator[Misfit]:
    """Yield values that have the right type but are invalid, by their keys."""
    if len(jobs.rules) > RULES_MOST:
        yield ("jobs.rules",), f"expected at most {RULES_MOST} rules, found {len(jobs.rules)}"
    for name, rule in jobs.rules.items():
        if not rule.signal:
            yield (f"jobs.rules.{name[:40]}.signal",), f"expected one of {', '.join(SIGNALS)}, none: the jobs' signal"
        if not rule.partition and not rule.name:
            all_jobs = f"a rule for all jobs is jobs.signal, one of {', '.join(SIGNALS)}, none"
            yield (f"jobs.rules.{name[:40]}",), f"expected partition or name: {all_jobs}"
