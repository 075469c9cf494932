"""The cost of `gpuwarden why JOB --prometheus` with 1,000 nodes that each publish 64 jobs, the maximum, in a real Prometheus.

The job had 512 of the nodes; one of them named hardware, the others a fault of another node. The nodes are one target under their own
labels (honor_labels). The whole process is measured, from its start to the table, and `gpuwarden fleet` on the same series.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from bench_fleet import LIMIT, RUNS, configuration, labels, target, whole
from common import spread, table
from support.daemons import children, listening_port
from support.prometheus import prometheus

NODES, JOBS, HAD = 1_000, 64, 512
JOB = 4711


def lines() -> Iterator[str]:
    now = time.time()
    for number in range(NODES):
        of_node = labels(number)
        yield f'gpuwarden_node_info{{{of_node},node="gpu-{number:05}",boot_id="6a2f{number:08}"}} 1'
        for state in ("healthy", "warning", "failure", "unknown"):
            yield f'gpuwarden_node_health{{{of_node},state="{state}"}} {int(state == "healthy")}'
        mine = [JOB] if number < HAD else []
        for job in (*mine, *(100_000 + number * JOBS + n for n in range(JOBS - len(mine)))):
            of_job = f'{of_node},exported_job="slurm/{job}"'
            cause = 'cause="hardware",certainty="certain",code="xid.79",pci_bus_id="0000:4e:00.0"'
            if job == JOB and number:
                cause = 'cause="other_node",certainty="likely",code="NODE_FAIL",pci_bus_id=""'
            yield f'gpuwarden_job_ended_info{{{of_job},{cause},user="",job_name=""}} 1'
            yield f"gpuwarden_job_ended_timestamp_seconds{{{of_job}}} {now - 60.0:.3f}"
            yield f"gpuwarden_job_cause_timestamp_seconds{{{of_job}}} {now - 60.0 - 10.0 * (number == 0):.3f}"


def main() -> int:
    with (
        tempfile.TemporaryDirectory(prefix="gw-", ignore_cleanup_errors=True) as name,
        target(lines(), NODES) as served,
    ):
        folder = Path(name)
        (folder / "prometheus.yml").write_text(configuration(served))
        with prometheus(folder / "prometheus.yml", folder) as server:
            server.wait_query(f"count(gpuwarden_node_info) == {NODES}")
            process = next(pid for pid in children(os.getpid()) if listening_port(pid) == server.port)
            series = server.query('count({__name__=~"gpuwarden.*"})')[0]["value"][1]
            rows, slowest = [], 0.0
            for command, words in (
                ("why", ("why", str(JOB))),
                ("why --json", ("why", str(JOB), "--json")),
                ("fleet", ("fleet",)),
            ):
                runs = [whole(server.port, process, *words, code=0) for _ in range(RUNS)]
                times = [[run.wall for run in runs], [run.own for run in runs], [run.prometheus for run in runs]]
                rows.append([command, f"{runs[0].size / 1e3:.0f} kB", *map(spread, times)])
                slowest = max(slowest, median(times[0]) if command != "fleet" else 0.0)
            title = f"gpuwarden why of a job with {HAD} of {NODES} nodes, {series} series: median (least-most) of {RUNS} runs"
            head = ("what", "output", f"s, whole process (why < {LIMIT:g})", "CPU s of it", "CPU s of Prometheus")
            table(title, head, rows)
    return int(slowest >= LIMIT)


if __name__ == "__main__":
    sys.exit(main())
