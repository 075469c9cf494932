"""docs/collectors.md: the collectors of the host from their specs, the others, which run each in a way of its own, from here."""

from __future__ import annotations

from typing import Any

from gpuwarden_collectors.registry import HOST_COLLECTORS

HEAD = """\
# Collectors

For administrators: what gpuwarden reads, how often, and what bounds a source that hangs. A collector is a file or folder in `collectors/`, a
table in the configuration and a value of the metric label `collector`:

```toml
[collectors.nvml]
interval = "5s"
[collectors.storage]
enabled = false
```

"""
TAIL = """
Sources of termination notices are in [termination.md](termination.md). How old each reading may be is in [metrics.md](metrics.md).
"""
GPUS = (
    ("`nvml`", "the NVIDIA driver through nvidia-ml-py: about 140 readings and 18 links per GPU, processes, MIG, Xid events", "every 5 s",
     "a worker process with a deadline of 10 s (60 s for initialisation); then SIGTERM, after 5 s SIGKILL, at most three in 30 min"),
    ("`kernel_log`", "`/dev/kmsg`: Xids in all forms, SXids, PCIe errors, resets; where it may not be opened [syslog(2)](kubernetes.md#kernel-log-without-devkmsg)",
     "as lines come; by syslog(2) every 2 s", "non-blocking reads, a hundred records at a time; resumes by (boot id, sequence)"),
    ("`pci`", "sysfs: which NVIDIA functions exist, whether they respond, link, AER counters", "every 10 s; at once when NVML misses a GPU",
     "a thread with a deadline"),
    ("`dcgm`", "a running nv-hostengine through pydcgm: health watches, status of each GPU, fields that only DCGM has; see [dcgm.md](dcgm.md)",
     "every 15 s", "a worker process with a deadline, as for `nvml`"),
)  # fmt: skip
OTHERS = (
    ("`jobs`", "Slurm jobs on this node and their GPUs, where `[slurm]` is enabled: cgroups, environments, `scontrol listpids`", "every 15 s",
     "a thread with a deadline; at most two queries to the controller in four hours"),
    ("`pods`", "containers of Kubernetes with GPUs, where `kubernetes.pod_labels` is set: kubelet's list, over its Unix socket ([kubernetes.md](kubernetes.md#labels-of-pods))", "every 10 s",
     "gRPC, with a deadline of 2 s and at most 4 MiB"),
    ("`containers`", "containers with GPUs that opt in to `job_stalled`, where `jobs.stalled_containers` is set: their cgroups and environments, labels of Docker's API", "every 15 s",
     "a thread with a deadline"),
    ("`plugin`", "[site checks](site-checks.md): any program with Nagios exit codes, such as NHC", "as configured",
     "at most three at a time; SIGTERM, after 2 s SIGKILL, for all that the check started"),
)  # fmt: skip


def collectors(made: str, table: Any) -> str:
    """`made`: the note that the page is generated; `table` writes rows below their head."""
    host = [
        (f"`{spec.name}`", spec.source, f"every {spec.options().interval:g} s", spec.limits) for spec in HOST_COLLECTORS
    ]
    rows = (*GPUS, *host, *OTHERS)
    return f"{HEAD}{made}\n{table(('collector', 'source', 'when', 'what bounds it'), rows)}{TAIL}"
