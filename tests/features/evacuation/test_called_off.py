"""Which notice stands when others are called off, moved or announced beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwarden.features.evacuation.policy.budget import FAILING_GPU
from gpuwarden.policy.model import Notice
from support.evacuations import announced, stamp
from support.slurm import Slurm
from support.slurm_executor import ExecutorRig

GPU_3 = announced(None, source="gpu-3", kind=FAILING_GPU)
GPU_5 = announced(None, source="gpu-5", kind=FAILING_GPU)
SPOT, LATER = announced(120.0), announced(120.0 + 400.0)
OTHER = announced(500.0, source="operator")
IN_THE_LAST_SECOND = stamp(1_119.0)
"""Of SPOT."""


@pytest.mark.parametrize(
    ("before", "then", "stands"),
    [
        ((SPOT,), (), False),
        ((SPOT, OTHER), (OTHER,), True),
        ((GPU_3, GPU_5), (GPU_5,), False),
        ((GPU_3, SPOT), (SPOT,), False),
        ((GPU_3, GPU_5), (GPU_3,), True),
    ],
    ids=["called off", "another announces the same end", "another GPU still fails", "the machine still ends", "its GPU still fails"],
)  # fmt: skip
def test_a_notice_stands_for_as_long_as_the_end_or_the_fault_of_that_gpu_is_announced(
    tmp_path: Path, before: tuple[Notice, ...], then: tuple[Notice, ...], stands: bool
) -> None:
    rig = ExecutorRig(Slurm(tmp_path), tmp_path, now=IN_THE_LAST_SECOND)
    rig.announces(*before)
    assert rig.executor._goes_on(before[0])
    rig.announces(*then)
    assert rig.executor._goes_on(before[0]) == stands


@pytest.mark.parametrize(
    ("then", "now"),
    [((), False), ((OTHER,), False), ((LATER, OTHER), False), ((SPOT,), True)],
    ids=["called off", "another is farther away", "moved away", "stands"],
)
def test_an_end_is_now_only_if_it_is_announced_for_now_itself(
    tmp_path: Path, then: tuple[Notice, ...], now: bool
) -> None:
    rig = ExecutorRig(Slurm(tmp_path), tmp_path, now=IN_THE_LAST_SECOND)
    rig.announces(SPOT, OTHER)
    assert rig.executor._ends_now(SPOT)
    rig.announces(*then)
    assert rig.executor._ends_now(SPOT) == now
