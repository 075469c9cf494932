"""The keys of `[slurm]`: this node's name, the access to Slurm, and the partitions of the breaker's budget."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.options import bounded
from gpuwarden_collectors.slurm.errors import TIMEOUT

_CONFS = (Path("/etc/slurm/slurm.conf"), Path("/run/slurm/conf/slurm.conf"), Path("/etc/slurm-llnl/slurm.conf"))
"""The default paths; the second is used on a host that fetches its configuration from the controller."""


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """Slurm ([slurm.md](../use/slurm.md))."""

    enabled: bool = False
    """Drain this node in Slurm, and resume it when it returns."""
    node: str = ""
    """NodeName of this host. Empty: the environment variable SLURMD_NODENAME, else the output of `scontrol show aliases HOSTNAME`;
    for a dynamic node (`slurmd -Z`) the hostname, if the controller has a node of that name that booted when this machine did."""
    conf: Path | None = None
    """Path of slurm.conf. Not set: where Slurm's commands find it."""
    folder: Path | None = None
    """The folder of `scontrol`, `sinfo`, `squeue`, `sacct` and `sdiag`. Not set: as found in PATH."""
    partitions: tuple[str, ...] = ()
    """Partitions whose nodes share the breaker's budget. Empty: the largest partition that this node is in."""
    timeout: float = bounded(
        TIMEOUT, 1.0, 120.0, "a controller that hangs is given up after MessageTimeout, 10s by default"
    )
    """Time limit of a call of one of Slurm's commands."""
    detail: Literal["none", "comment", "extra"] = "none"
    """The node's field for details that do not fit into the reason, unless that field is in use."""
    drain_by: Literal["daemon", "hook"] = "daemon"
    """What starts a drain. `daemon`: the daemon, when it finds a failure. `hook`: the daemon, but only if HealthCheckProgram has requested it within
    the last two minutes.
    """
    on_stale: Literal["ignore", "refuse"] = "ignore"
    """If the verdict is missing or old: `ignore` starts jobs, `refuse` makes the prolog refuse them, after which Slurm itself drains the node
    ([slurm.md](../use/slurm.md#the-scripts)).
    """
    jobs: bool = True
    """Read which Slurm jobs are on this node, and on which GPUs."""
    jobs_interval: float = bounded(
        15.0, 1.0, 120.0, "a process that still holds a GPU after its job must be found before the next job starts"
    )
    """Time between two reads of the jobs."""
    job_mapping_dir: Path | None = None
    """Folder in which to write the jobs of each GPU, for dcgm-exporter's `--hpc-job-mapping-dir`. Not set: not written."""


def conf_path(options: SlurmOptions, environment: Mapping[str, str]) -> Path:
    """The path of slurm.conf, or the first default path."""
    configured = options.conf or (Path(environment["SLURM_CONF"]) if environment.get("SLURM_CONF") else None)
    return configured or next((path for path in _CONFS if path.exists()), _CONFS[0])
