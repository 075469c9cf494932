"""Sharded models: what two ranks saved is resumed by one, two or three, and a rank that cannot write costs one save.

FSDP2 and torch.distributed.checkpoint, on CPUs with gloo.
"""

from __future__ import annotations

import importlib
import re
import shutil
from pathlib import Path

import pytest

from support.job_world import ended, start
from support.torch_world import BOUND, TORCHRUN, require_torch, result, steps_saved, torch_environment, training

require_torch()
if not hasattr(importlib.import_module("torch.distributed.fsdp"), "fully_shard"):
    pytest.skip("FSDP2 came with PyTorch 2.6", allow_module_level=True)

FAULTS = """
import gc, resource, signal, sys
import torch
import torch.distributed as dist
from gpuwarden_job import CheckpointStore, Ranks, SaveFailed, Undecodable, sharded_reader, sharded_writer

class Part:
    def __init__(self, rank, value):
        self.name, self.value = f"of {rank}", torch.full((1000,), value)

    def state_dict(self):
        return {self.name: self.value}

    def load_state_dict(self, state):
        self.value = state[self.name]

dist.init_process_group("gloo")
ranks = Ranks.detect()
store = CheckpointStore(sys.argv[1], ranks=ranks, sharded=True)

def save(step):
    store.save_files(sharded_writer(step=step, samples=step * 8, model=Part(ranks.rank, step + ranks.rank / 10)), step)

save(1)
wanted = torch.rand(3)
no_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
if ranks.rank == 1:
    sys.dont_write_bytecode = True  # Python would cut it off at the limit, and keep it
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, no_limit[1]))
try:
    save(2)
    print("saved")
except SaveFailed as error:
    print("SaveFailed:", error)
resource.setrlimit(resource.RLIMIT_FSIZE, no_limit)
try:
    store.load_latest(read=sharded_reader(model=Part(ranks.rank, 0.0), optimizer=Part(ranks.rank, 0.0)))
except Undecodable as error:
    print("Undecodable:", error)
part = Part(ranks.rank, 0.0)
loaded = store.load_latest(read=sharded_reader(model=part))
print("loaded", loaded.state, round(float(part.value[0]) - ranks.rank / 10, 4), torch.equal(torch.rand(3), wanted))
save(3)
print("steps", *(one.step for one in store.saved()))
dist.destroy_process_group()
gc.collect()  # without both a thread of Gloo may abort the interpreter at its end
"""


def sharded(tmp_path: Path, folder: str, ranks: int) -> str:
    launcher = (*TORCHRUN, f"--nproc-per-node={ranks}")
    process = training(tmp_path, folder, 60, *launcher, script="train_fsdp.py", save_every=20)
    code, output = ended(process, BOUND)
    assert code == 0, output
    return output


def test_what_two_ranks_saved_is_resumed_by_any_number_of_them(tmp_path: Path) -> None:
    wanted = sharded(tmp_path, "by 2", 2)
    assert steps_saved(tmp_path / "by 2") == [20, 40, 60]
    shards = sorted(path.name for path in tmp_path.glob("by 2/*-step-40/*.distcp"))
    assert shards == ["__0_0.distcp", "__1_0.distcp"]
    for ranks in (1, 3):
        folder = tmp_path / f"by {ranks}"
        shutil.copytree(next(tmp_path.glob("by 2/*-step-40")), folder / "00000002-step-40")
        output = sharded(tmp_path, folder.name, ranks)
        assert output.count("begins at step 40\n") == ranks
        value, of = [float(result(text).split()[1]) for text in (output, wanted)]
        assert value == pytest.approx(of, rel=1e-6)


def test_a_rank_that_cannot_write_costs_this_save_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "faults.py").write_text(FAULTS)
    process = start(
        *TORCHRUN, "--nproc-per-node=2", tmp_path / "faults.py", tmp_path / "saved",
        run_dir=tmp_path, more=torch_environment(tmp_path),
    )  # fmt: skip
    code, output = ended(process, BOUND)
    assert code == 0, output
    assert len(re.findall(r"SaveFailed: step 2 was not saved in .*rank 1: OSError: .*File too large", output)) == 2, (
        output
    )
    assert output.count("saved were model; pass the same parts, not model, optimizer") == 2, output
    assert output.count("loaded (1, 8) 1.0 True") == 2, output
    assert output.count("steps 1 3") == 2, output
    assert not list(tmp_path.glob("saved/.*")), "nothing is left of the save that failed"
