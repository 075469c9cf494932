"""A node of a real Slurm whose partition `gwtest` is for tests of idle nodes: what submits them, and what they run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from support.active_test_hosts import ActiveHost, CudaHost
from support.daemons import PATIENCE, Json
from support.slurm import GPUS, Slurm

PREEMPTION = "PreemptType=preempt/partition_prio\nPreemptMode=CANCEL\n"
USERS = "PartitionName=gpu Nodes=ALL Default=YES PriorityTier=1 PreemptMode=OFF"
TESTS = "PartitionName=gwtest Nodes=ALL PriorityTier=0 PreemptMode=CANCEL GraceTime=0 Hidden=YES"
NAME = "--name=gpuwarden-test"


def idle_slurm(folder: Path) -> Slurm:
    """Two nodes that stay on, and f1, which nobody answers for and power saving switches off. Whoever wakes a node leaves `resumed`."""
    wake = folder / "wake"
    wake.write_text(f"#!/bin/sh\necho $1 >>{folder}/resumed\n")
    wake.chmod(0o755)
    saving = (
        f"SuspendProgram=/bin/true\nResumeProgram={wake}\nSuspendTime=86400\nSuspendTimeout=1\nSuspendExcNodes=n1,n2\n"
    )
    return Slurm(folder, nodes=2, phantoms=1, more=PREEMPTION + saving, partitions=(USERS, TESTS))


class IdleNode(ActiveHost):
    """A node of which the daemon has no result: it is due for a test."""

    def __init__(self, folder: Path, slurm: Slurm, node: str = "n1") -> None:
        super().__init__(folder, GPUS)
        make_idle(self, slurm, node)


class IdleCudaNode(CudaHost):
    """The same with real workers, on fake libraries."""

    def __init__(self, folder: Path, slurm: Slurm) -> None:
        super().__init__(folder, GPUS)
        make_idle(self, slurm, "n1")


def make_idle(
    host: ActiveHost, slurm: Slurm, node: str, more: str = "", *, commands: Path | None = None, user: str = "root"
) -> None:
    """`more`: lines of `[test]`. `commands`: the folder of Slurm's commands."""
    folder = f'folder = "{commands}"\n' if commands else ""
    host.configure(
        f'[slurm]\nenabled = true\nnode = "{node}"\ntimeout = "20s"\nconf = "{slurm.conf}"\n{folder}'
        f'[test]\nenabled = true\npartition = "gwtest"\nslurm_user = "{user}"\nlevel = "quick"\n{more}'
    )
    host.more |= {"PATH": slurm.environment["PATH"], "SLURM_CONF": str(slurm.conf), "ACTIVE_TEST_JOB": "1"}


def submit(host: ActiveHost, *words: str) -> tuple[int, Json]:
    """Exit code and answer of `gpuwarden test --submit`; of a refusal the text."""
    process = host.begin("--submit", "--json", *words)
    stdout, stderr = process.communicate(timeout=PATIENCE)
    return process.returncode, json.loads(stdout) if stdout else {"job": None, "text": stderr}


def jobs(slurm: Slurm) -> Sequence[str]:
    """Return the ids of test jobs that Slurm still has, whatever their state."""
    return slurm.command("squeue", "--noheader", "--all", NAME, "--format=%A").split()
