"""The judge goes by the values of facts: whether two passes share objects makes no difference."""

from __future__ import annotations

import pickle
from random import Random

import pytest

from evaluate.classes import CLASSES
from evaluate.node import Node
from gpuwarden.health.judge import Step
from gpuwarden.replay.replay import Replay
from gpuwarden.trace.records import Record

STORIES = (
    "GPU gone from NVML only", "NVLink down", "NVLink errors, 2 a minute", "PCIe replays, 10 a second", "Xid 95",
    "driver unloaded for good", "DCGM: memory beyond repair (52)", "GPU lost by DCGM alone", "InfiniBand adapter gone",
    "InfiniBand port flaps", "shared file system not mounted", "main memory loses data", "fabric manager failed",
    "service restarts for ever", "site check tells nothing",
)  # fmt: skip


def story(fault: str) -> list[Record]:
    """Return a story with every collector: from half a minute after a boot through the fault, its repair and the time after."""
    records: list[Record] = []
    node = Node(records.append, Random(fault), gpus=2, dcgm=True, beside=True)
    node.start_daemon(remembers=False)
    node.run(120.0)
    row = next(row for row in CLASSES if row.name == fault)
    node.go(row.strike(node, 1))
    node.run(700.0 + row.after)
    node.repair()
    node.start_daemon()
    node.run(400.0)
    return records


def steps(records: list[Record], *, shared: bool) -> list[Step]:
    """Return the steps. Without `shared` no two passes have an object in common, as if each came over a wire."""
    replay = Replay()
    return [step for r in records for step in replay.take(r if shared else pickle.loads(pickle.dumps(r)))]


@pytest.mark.slow
@pytest.mark.parametrize("fault", STORIES)
def test_shared_facts_make_the_same_steps_as_copies_of_them(fault: str) -> None:
    records = story(fault)
    replayed = steps(records, shared=True)
    assert replayed == steps(records, shared=False)
    assert any(event.kind == "raised" for step in replayed for event in step.events)
