"""`gpuwarden slurm`: what the scripts that Slurm runs hand over, and who is on which GPU."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from gpuwarden.cli.client import Daemon, NoDaemon
from gpuwarden.cli.parser import TRY_AGAIN, UNAVAILABLE, CommandError, Parser
from gpuwarden.cli.text import clean, table

HELP = """
Slurm's jobs and hooks.

jobs         who is on which GPU
look         have the daemon look at everything now, as the epilog does
healthcheck  what HealthCheckProgram hands over: the daemon is told that Slurm wants it to act; where it does not answer,
             the node is drained if [slurm] on_stale is "drain", after stale_grace, in mode enforce, within the breaker

examples:
  gpuwarden slurm jobs
  gpuwarden slurm jobs --json
  gpuwarden slurm healthcheck --node "$SLURMD_NODENAME"
"""


def arguments(parser: Parser) -> None:
    parser.add_argument("action", choices=("jobs", "look", "healthcheck"), help="one of the above")
    parser.add_argument("--node", metavar="NAME", default="", help="what Slurm calls this node (default: [slurm] node)")
    parser.add_run_dir()
    parser.add_config()
    parser.add_json()


def main(options: argparse.Namespace) -> int:
    daemon = Daemon.chosen(options.run_dir, os.environ)
    match options.action:
        case "look":
            print(clean(daemon.ask("look")))
        case "healthcheck":
            print(clean(_healthcheck(daemon, options)))
        case _:
            document = daemon.ask("slurm_jobs")
            print(json.dumps(document, indent=2) if options.json else "\n".join(_shown(document)))
    return 0


def _shown(document: dict[str, Any]) -> Iterator[str]:
    if not document["known"]:
        yield "nobody reads the jobs of this node: see [slurm] enabled and jobs"
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


def _healthcheck(daemon: Daemon, options: argparse.Namespace) -> str:
    try:
        return str(daemon.ask("slurm_healthcheck"))
    except NoDaemon as error:
        why = str(error)
    except CommandError as error:
        if error.code != TRY_AGAIN:
            raise
        why = str(error)
    return f"{why}; {_without_daemon(options)}"


def _without_daemon(options: argparse.Namespace) -> str:
    """What was done, or why nothing was."""
    from gpuwarden.cli.sources import faulty, sources  # noqa: PLC0415 - only where the daemon does not answer
    from gpuwarden.config import ConfigError, load  # noqa: PLC0415

    try:
        config = load(sources(options, os.environ))
    except ConfigError as error:
        raise faulty(error) from error
    slurm = config.slurm
    if not slurm.enabled:
        return "nothing done: [slurm] enabled is false"
    if slurm.on_stale != "drain":
        return 'nothing done: [slurm] on_stale is not "drain"'
    from gpuwarden.silent import check  # noqa: PLC0415
    from gpuwarden_collectors.slurm.nodes import is_node_name  # noqa: PLC0415

    if options.node and not is_node_name(options.node):
        raise CommandError(f"--node: expected the NodeName of one node, found {options.node[:60]!r}")
    try:
        return asyncio.run(check(replace(config, slurm=replace(slurm, node=options.node or slurm.node))))
    except OSError as error:
        why = f"cannot note in {config.state.dir} since when the daemon is silent: {error.strerror or error}"
        raise CommandError(f"nothing done: {why}; make room there, or mend state.dir", UNAVAILABLE) from error
