"""The implementation of `gpuwarden slurm`."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from typing import Any

from gpuwarden.base.paths import job_notes
from gpuwarden.cli.client import Daemon
from gpuwarden.cli.text import clean, table
from gpuwarden_collectors.slurm.jobs_register import tidy


def main(options: argparse.Namespace) -> int:
    daemon = Daemon.chosen(options.run_dir)
    match options.action:
        case "look":
            try:
                print(clean(daemon.call("look")))
            finally:
                tidy(job_notes(daemon.path.parent), time.clock_gettime(time.CLOCK_BOOTTIME))
        case "healthcheck":
            print(clean(daemon.call("slurm_healthcheck")))
        case _:
            document = daemon.call("slurm_jobs")
            print(json.dumps(document, indent=2) if options.json else "\n".join(_shown(document)))
    return 0


def _shown(document: dict[str, Any]) -> Iterator[str]:
    if not document["known"]:
        yield "the jobs of this node are not read: see [slurm] enabled and jobs"
        return
    head = ("GPU", "SLOT", "HEALTH", "JOB", "USER", "PROCESSES", "")
    yield from table(head, [row for gpu in document["gpus"] for row in _rows(gpu)])


def _rows(gpu: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    index = "-" if gpu["index"] is None else str(gpu["index"])
    begin = (index, gpu["pci_bus_id"], gpu["health"])
    if not gpu["jobs"]:
        yield (*begin, "-", "", "", "")
    for job in gpu["jobs"]:
        user = clean(job["user"] or ("" if job["uid"] is None else f"uid {job['uid']}"))
        pids = " ".join(map(str, job["pids"][:8]))
        yield (*begin, str(job["job"]), user, pids, "held after its end" if job["ended"] else "")
