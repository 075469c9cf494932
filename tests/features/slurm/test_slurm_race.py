"""A hundred nodes fail in one moment, on one real controller: read, decide and write is a race, and the budget holds."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.slurm import SLURM_PARTS, Slurm, require_slurm, running
from support.slurm_reconciler import reasons_written

pytestmark = SLURM_PARTS

NODES, PROCESSES, BUDGET = 100, 5, 10


@pytest.fixture
def cluster() -> Iterator[Slurm]:
    """A hundred nodes whose slurmd never answered; they drain as others do."""
    require_slurm()
    with (
        tempfile.TemporaryDirectory(prefix="gw-slurm-", ignore_cleanup_errors=True) as folder,
        running(Slurm(Path(folder), nodes=0, phantoms=NODES, slurmd_timeout=3600)) as slurm,
    ):
        yield slurm


def drained(slurm: Slurm) -> int:
    output = slurm.command("sinfo", "--noheader", "--Node", "--partition=gpu", "--Format=StateComplete:0")
    return sum("drain" in line for line in output.splitlines())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_hundred_nodes_that_fail_at_once_end_within_the_budget(cluster: Slurm) -> None:
    size = NODES // PROCESSES
    environment = {**cluster.environment, "PYTHONPATH": os.pathsep.join(sys.path)}
    racers = [
        subprocess.Popen(
            [sys.executable, "-m", "support.slurm_racer", str(cluster.conf), str(first), str(first + size - 1)],
            env=environment, stdout=subprocess.PIPE, text=True,
        )
        for first in range(1, NODES, size)
    ]  # fmt: skip
    output = "".join(racer.communicate(timeout=240)[0] for racer in racers).splitlines()
    kept = [line for line in output if " done" in line]
    wrote = sum(bool(reasons_written(cluster, f"f{n}")) for n in range(1, NODES + 1))
    assert len(output) == NODES
    assert 1 <= drained(cluster) <= BUDGET
    assert drained(cluster) == len(kept)
    assert all("breaker is open" in line for line in output if line not in kept)
    assert wrote > BUDGET, "nobody raced: this proves nothing"
