"""The real daemon, Slurm, root's helper and the service of the return gate: drained, reset, looked at, tested, and only then back in service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.daemons import RunningDaemon
from support.fake_cuda_library import MEMORY, FakeCuda
from support.repair_helper import RepairHost, helpers
from support.return_gates import BAD, GatedHost
from support.slurm import SLURM_BESIDE, Slurm, running

pytestmark = [*SLURM_BESIDE, pytest.mark.slow]
RESET = "reset 00000000:28:00.0"
LOOKED_WITHIN = 600.0
"""Seconds for the two minutes without an Xid, and the test after them."""
STORY = ("excluded", "repair_begun", "repair_ended", "gate_begun", "gate_ended", "restored")


class Node(GatedHost):
    """A node of a Slurm with two GPUs, which root's helper resets and real workers test on the compiled CUDA library."""

    def __init__(self, folder: Path, slurm: Slurm, name: str, stack: ExitStack) -> None:
        for part in ("daemon", "root"):
            (folder / part).mkdir(parents=True)
        self.root = RepairHost(folder / "root", stack.enter_context(helpers()))
        self.name = name
        scheduler = f'[breaker]\npercent = 100\nrecount_after = "1s"\n[slurm]\nenabled = true\nnode = "{name}"\nconf = "{slurm.conf}"\n'
        super().__init__(folder / "daemon", 2, scheduler)
        self.fake = self.root.fake
        self.gated += f'[repair]\nsteps = ["reset_gpu"]\nat_once = 2\nsocket = "{self.root.tell()}"\n'
        # Slurm keeps work away, so that all memory is tested.
        self.cuda: FakeCuda = self.with_cuda().add(f"memory {MEMORY}")
        self.root.tell()  # of the library that has moved
        self.more |= {"PATH": slurm.environment["PATH"], "SLURM_CONF": str(slurm.conf)}
        self.serve()

    def spoils_memory(self) -> None:
        self.cuda.add("stuck 4096 3 1")


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Slurm]:
    folder = tmp_path / "slurm"
    folder.mkdir()
    tmp_path.chmod(0o755)
    with running(Slurm(folder, nodes=2, gpus=2)) as cluster:
        yield cluster


def story(daemon: RunningDaemon) -> list[str]:
    """Return what was done to the node, with how it ended."""
    events = json.loads(daemon.get("/v1/events?since=0")[1])["events"]
    recorded = [(event["kind"], event["data"]) for event in events if event["kind"] in STORY]
    return [" ".join(filter(None, (kind, data.get("outcome"), data.get("result")))) for kind, data in recorded]


def test_a_node_whose_gpu_was_reset_is_tested_before_it_returns_and_one_that_fails_the_test_stays_out(
    tmp_path: Path, slurm: Slurm
) -> None:
    with ExitStack() as stack:
        nodes = [Node(tmp_path / name, slurm, name, stack) for name in ("n1", "n2")]
        good, bad = nodes
        bad.spoils_memory()
        for node in nodes:
            stack.callback(node.end)
        well, badly = (stack.enter_context(node.acting()) for node in nodes)
        for daemon in (well, badly):
            daemon.wait_status("healthy")
        for node in nodes:
            node.xid(BAD, 95)
        slurm.wait(lambda: all("DRAIN" in slurm.state(node.name) for node in nodes), "the drains")
        waiting = slurm.submit("true", "-w", "n1")
        for daemon, node in ((well, good), (badly, bad)):
            daemon.wait(lambda node=node: RESET in node.root.effects, "the reset")
            node.kernel_line("nvidia 0000:28:00.0: reset done")
        well.wait(lambda: "restored" in story(well), "the return", patience=LOOKED_WITHIN)
        slurm.wait(lambda: slurm.job_state(waiting) == "COMPLETED", "the job on the node that is back")
        before = ["excluded", "repair_begun", "repair_ended done", "gate_begun"]
        assert story(well) == [*before, "gate_ended passed", "restored"]
        badly.wait(lambda: "gate_ended failed" in story(badly), "the test of the other", patience=LOOKED_WITHIN)
        badly.wait_status("failure", "test_failed.memory")
        badly.wait_passes(10)
        assert story(badly) == [*before, "gate_ended failed"]
        assert slurm.state("n2") == {"IDLE", "DRAIN"}
        assert [node.root.effects.count(RESET) for node in nodes] == [1, 1]
