"""docs/reference/collectors.md: the host collectors from their specs; the others, each of which runs in its own way, from here."""

from __future__ import annotations

from typing import Any

from gpuwarden_collectors.registry import HOST_COLLECTORS

HEAD = """\
# Collectors

For administrators: what gpuwarden reads, how often, and what limits the effect of a source that hangs. Each collector has a value of the metric label
`collector` and, except `jobs`, `workloads`, `pods` and `containers`, a table `[collectors.NAME]` in the configuration:

```toml
[collectors.nvml]
interval = "5s"
[collectors.storage]
enabled = false
```

"""
TAIL = """
Sources of termination notices: [termination.md](../use/termination.md#sources). The age of each reading: [metrics.md](metrics.md).
"""
GPUS = (
    ("`nvml`", "the NVIDIA driver, through nvidia-ml-py: about 140 readings and 18 links per GPU, processes, MIG, Xid events", "every 5 s",
     "a worker process with a deadline of 10 s (60 s for initialisation), then SIGTERM, 5 s later SIGKILL; at most three kills in 30 min"),
    ("`kernel_log`", "`/dev/kmsg`: Xids in all formats, SXids, PCIe errors, resets, processes killed for lack of memory; if it cannot be opened, [syslog(2)](../use/kubernetes.md#kernel-log-without-devkmsg)",
     "as lines arrive; with syslog(2) every 2 s", "non-blocking reads, a hundred records at a time; after a restart it continues at the last (boot id, sequence number)"),
    ("`pci`", "sysfs: NVIDIA functions, whether they respond, their links and AER counters", "every 10 s; at once when NVML misses a GPU",
     "a thread with a deadline"),
    ("`dcgm`", "a running nv-hostengine, through pydcgm: health watches, status of each GPU, fields that only DCGM has; see [dcgm.md](../use/dcgm.md)",
     "every 15 s", "a worker process with a deadline, as for `nvml`"),
)  # fmt: skip
OTHERS = (
    ("`jobs`", "if `[slurm]` is enabled: Slurm jobs on this node and their GPUs, from cgroups, environments and `scontrol listpids`", "every 15 s",
     "a thread with a deadline; at most two queries to the controller in four hours, and one for each job that ended, by its first node, 30 an hour"),
    ("`workloads`", "what runs on the GPUs: Slurm jobs, containers, pods and other sessions, by the cgroups of processes with an open GPU; how many the kernel killed for lack of memory", "every 5 s",
     "a thread with a deadline; 4,096 processes, 256 workloads, of these 64 sessions of one user"),
    ("`pods`", "if `kubernetes.pod_labels` is set: Kubernetes containers with GPUs, from kubelet's Unix socket ([kubernetes.md](../use/kubernetes.md#labels-of-pods))", "every 10 s",
     "gRPC, with a deadline of 2 s and at most 4 MiB"),
    ("`containers`", "if `jobs.stalled_containers` is set: containers with GPUs that opt in to `job_stalled`, from their cgroups, their environments and labels in Docker's API", "every 15 s",
     "a thread with a deadline"),
    ("`plugin`", "[site checks](../use/site-checks.md): any program with Nagios exit codes, such as NHC", "as configured",
     "at most three at a time; at the timeout SIGTERM, 2 s later SIGKILL, for all processes that the check started"),
)  # fmt: skip


def collectors(made: str, table: Any) -> str:
    """`made`: the note that the page is generated; `table` writes rows below their head."""
    host = [
        (f"`{spec.name}`", spec.source, f"every {spec.options().interval:g} s", spec.limits) for spec in HOST_COLLECTORS
    ]
    rows = (*GPUS, *host, *OTHERS)
    return f"{HEAD}{made}\n{table(('collector', 'source', 'when', 'limits'), rows)}{TAIL}"
