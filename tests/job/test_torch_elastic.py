"""Elastic torchrun on one host, an agent for each of its would-be nodes: they die, leave and join, and the training goes on.

`--nnodes=1:2 --rdzv-backend=c10d --max-restarts=3`, by the script of the examples. Real nodes, GPUs and NCCL are not here.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuwarden_job import REQUEUE, CheckpointStore, Ranks
from support.job_world import free_port, give_notice, until
from support.torch_world import BOUND, OLD_TORCH_WARNS, Node, kill_all_of, require_torch, steps_saved

require_torch()
pytestmark = OLD_TORCH_WARNS


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    kill_all_of(tmp_path)


def saved(tmp_path: Path) -> int:
    """The newest step, 0 if there is none."""
    return ([0, *steps_saved(tmp_path / "saved")])[-1]


def goes_on(tmp_path: Path) -> None:
    before = saved(tmp_path)
    until(lambda: saved(tmp_path) > before, "a later step is saved", BOUND)


def begin_together(*nodes: Node) -> int:
    """The step at which all of them begin, some of them again."""
    before = [len(node.begun) for node in nodes]

    def together() -> bool:
        begun = [node.begun for node in nodes]
        return all(begun) and len({steps[-1] for steps in begun}) == 1 and [len(steps) for steps in begun] != before

    until(together, f"all begin at one step, in {[node.log for node in nodes]}", BOUND)
    return nodes[0].begun[-1]


def two_nodes(tmp_path: Path, port: int) -> tuple[Node, Node]:
    """Return two nodes in training, whose ranks find each other at the first one."""
    head = Node(tmp_path, "head", port)
    until(lambda: listening(port), "the rendezvous is there", BOUND)
    other = Node(tmp_path, "other", port)
    begin_together(head, other)
    goes_on(tmp_path)
    return head, other


def listening(port: int) -> bool:
    rows = [row.split() for name in ("tcp", "tcp6") for row in Path(f"/proc/net/{name}").read_text().splitlines()]
    return any(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_an_agent_and_a_node_die_and_another_joins(tmp_path: Path) -> None:
    port = free_port()
    head, other = two_nodes(tmp_path, port)

    left_behind = other.kill_agent()
    goes_on(tmp_path)
    before = saved(tmp_path)
    third = Node(tmp_path, "third", port)
    assert begin_together(head, third) >= before
    until(lambda: not any(map(alive, left_behind)), "the rank without an agent has left", BOUND)
    goes_on(tmp_path)

    before, begun = saved(tmp_path), len(head.begun)
    third.kill()
    until(lambda: len(head.begun) > begun, "the survivor begins again", BOUND)
    assert head.begun[-1] >= before
    goes_on(tmp_path)

    head.script.terminate()
    assert head.end() == REQUEUE, head.log
    importlib.import_module("torch")
    loaded = CheckpointStore(tmp_path / "saved", ranks=Ranks()).load_latest()
    assert loaded is not None
    assert loaded.state["samples"] == 48 * loaded.step, "each sample once, whatever the number of ranks"


def test_a_node_that_is_taken_away_leaves_for_good_and_the_other_goes_on(tmp_path: Path) -> None:
    """Its agent would start its ranks again there, and each time all ranks everywhere."""
    head, other = two_nodes(tmp_path, free_port())
    before, begun = saved(tmp_path), len(head.begun)
    give_notice(other.run_dir)
    assert other.end() == REQUEUE, other.log
    until(lambda: len(head.begun) > begun, "the other begins again", BOUND)
    assert head.begun[-1] > before
    goes_on(tmp_path)
    assert len(head.begun) == begun + 1


def test_without_the_node_of_the_rendezvous_all_end_and_the_next_start_goes_on(tmp_path: Path) -> None:
    head, other = two_nodes(tmp_path, free_port())
    head.kill()
    assert other.end() == REQUEUE, other.log
    before = saved(tmp_path)
    again = Node(tmp_path, "again", free_port())
    assert begin_together(again) == before
