"""Do repaired nodes come back, and do drains of Slurm's own stay?

    benchmarks/repair_nodes.py --return-to-service 0 --nodes 10 --rounds 2
    benchmarks/repair_nodes.py --slurmdbd     # with accounting in a MariaDB
    PYTHONPATH=tests .venv/bin/python -m support.newer_slurm .venv/bin/python benchmarks/repair_nodes.py     # the same on Slurm 24.11

In each round every node fails, is drained, is off for longer than SlurmdTimeout and boots again; then Slurm drains it itself, because a GPU is
missing when slurmd registers, and an operator runs `gpuwarden restore`. For root, on a machine that can be discarded.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1] / "tests"))

from support.repairs import RepairedHost
from support.slurm import GPUS, Slurm, running
from support.slurm_accounting import AccountedSlurm

OFF_AFTER = 12
"""Seconds: SlurmdTimeout. A machine that runs many nodes answers late."""
PATIENCE = 120.0
STEADY = 15.0
"""Seconds in which a drain of Slurm's own must stand: three looks of the daemon."""


@dataclass
class Result:
    nodes: int = 0
    restored: int = 0
    lifted: list[str] = field(default_factory=list)


def a_round(slurm: Slurm, folder: Path, result: Result) -> None:
    hosts = []
    for name in slurm.names:
        (folder / name).mkdir()
        hosts.append(RepairedHost(folder / name, slurm, name))
    with ExitStack() as stack:
        daemons = [stack.enter_context(host.acting()) for host in hosts]
        for host, daemon in zip(hosts, daemons, strict=True):
            daemon.wait_status("healthy")
            host.breaks()
        slurm.wait(lambda: all(host.is_drained() for host in hosts), "all drains")
    slurm.stop(*slurm.names)
    slurm.wait(lambda: all("DOWN" in slurm.state(name) for name in slurm.names), "Slurm to find that they are off")
    for host in hosts:
        host.boots_again()
    slurm.start(*slurm.names, booted=True)
    with ExitStack() as stack:
        for host in hosts:
            stack.enter_context(host.acting())
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and not all(host.is_restored() for host in hosts):
            time.sleep(0.5)
        result.nodes += len(hosts)
        result.restored += sum(host.is_restored() for host in hosts)
        drained_by_slurm(slurm, hosts, result)


def drained_by_slurm(slurm: Slurm, hosts: Sequence[RepairedHost], result: Result) -> None:
    for gpus in (GPUS - 1, GPUS):
        slurm.stop(*slurm.names)
        slurm.plug(gpus)
        slurm.start(*slurm.names)
        slurm.wait(lambda: all(host.is_drained() for host in hosts), "Slurm to drain them")
    time.sleep(STEADY)
    for host in hosts:
        host.command("restore", "--run-dir", host.run_dir)
    result.lifted += [f"{host.node}: {slurm.show(host.node)}" for host in hosts if not host.is_drained()]
    for name in slurm.names:
        slurm.scontrol("update", f"NodeName={name}", "State=RESUME", check=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--return-to-service", dest="when", type=int, default=0, choices=(0, 1, 2))
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--slurmdbd", action="store_true", help="with accounting; needs slurmdbd and mariadb-server")
    options = parser.parse_args()
    result, kind = Result(), AccountedSlurm if options.slurmdbd else Slurm
    for _ in range(options.rounds):
        with (
            tempfile.TemporaryDirectory(prefix="gw-slurm-", ignore_cleanup_errors=True) as rig,
            tempfile.TemporaryDirectory(prefix="gw-", ignore_cleanup_errors=True) as folder,
            running(kind(Path(rig), options.nodes, slurmd_timeout=OFF_AFTER, return_to_service=options.when)) as slurm,
        ):
            version = slurm.command("slurmctld", "-V").strip()
            a_round(slurm, Path(folder), result)
    print(
        f"{version}{', slurmdbd' * options.slurmdbd}, ReturnToService={options.when}: {result.restored} of {result.nodes} repaired nodes restored; "
        f"drains of Slurm's own lifted: {len(result.lifted)} of {result.nodes}"
    )
    print(*result.lifted, sep="\n")
    return 0 if result.restored == result.nodes and not result.lifted else 1


if __name__ == "__main__":
    sys.exit(main())
