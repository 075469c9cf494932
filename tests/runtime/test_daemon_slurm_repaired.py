"""A node that was drained, repaired and booted takes work again without a person, whatever Slurm wrote about it meanwhile."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpuwarden.actuators.reconciler import Limits
from gpuwarden.policy.breaker import LARGEST_POOL, spread_of_return
from support.daemons import PATIENCE
from support.pending_drains import Obstacle, SlowHost, drains, holds_back, log_size, obstacle
from support.repairs import RepairedHost
from support.slurm import SLURM_BESIDE, Slurm, require_slurm, running
from support.slurm_hosts import REASON, acting_of

pytestmark = SLURM_BESIDE
TRIED_AGAIN = Limits().away + spread_of_return(LARGEST_POOL)
"""Seconds within which a daemon that has never seen its pool tries a controller again that was away."""


@pytest.fixture
def of_one(request: pytest.FixtureRequest) -> Iterator[Slurm]:
    """A Slurm of one node."""
    require_slurm()
    with (
        tempfile.TemporaryDirectory(prefix="gw-slurm-", ignore_cleanup_errors=True) as folder,
        running(Slurm(Path(folder), nodes=1, return_to_service=request.param)) as slurm,
    ):
        yield slurm


@pytest.fixture
def host(tmp_path: Path, of_one: Slurm) -> RepairedHost:
    return RepairedHost(tmp_path, of_one)


@pytest.mark.slow
@pytest.mark.parametrize(("of_one", "first"), [(0, "gpuwarden"), (2, "slurmd")], indirect=["of_one"])
def test_a_repaired_machine_takes_work_again(host: RepairedHost, of_one: Slurm, first: str) -> None:
    with host.drained_and_off():
        pass
    host.boots_again()
    if first == "slurmd":
        of_one.start("n1", booted=True)
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        if first == "gpuwarden":
            daemon.wait(lambda: "not responding" in str(acting_of(daemon)), "status to say what it waits for")
            assert "DOWN" in of_one.state("n1")
            of_one.start("n1", booted=True)
        host.waits_restored(daemon)
    assert of_one.reason("n1") != REASON
    job = of_one.submit("true", "-w", "n1")
    of_one.wait(lambda: of_one.job_state(job) == "COMPLETED", "a job to run there")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "restarted"), list(zip(Obstacle, (True, False), strict=True)))
def test_a_node_repaired_while_its_drain_could_not_be_written_is_not_drained_afterwards(
    tmp_path: Path, slurm: Slurm, kind: Obstacle, *, restarted: bool
) -> None:
    """The failure falls between two passes of 5 s: the record ends with a line of the kernel log. Either way in which a drain waits, with
    and without a restart: `benchmarks/repair_pending.py`.
    """
    host = SlowHost(tmp_path, slurm)
    host.configure_slurm(percent=25)
    since = log_size(slurm)
    with ExitStack() as stack:
        daemon = stack.enter_context(host.acting())
        daemon.wait_status("healthy")
        with obstacle(slurm, kind, "n2"):
            host.breaks()
            daemon.wait(lambda: holds_back(daemon), "the drain to be wanted")
            if restarted:
                stack.close()  # kill -9
                daemon = stack.enter_context(host.acting())
            host.is_mended()
            daemon.wait_status("healthy")
        daemon.wait_passes(4)
        daemon.wait(lambda: not holds_back(daemon), "the drain to be given up", patience=PATIENCE + TRIED_AGAIN)
        assert drains(slurm, "n1", since) == []
