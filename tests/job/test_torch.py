"""The example with PyTorch, really run: alone, under torchrun, interrupted and resumed. Any CPU build will do."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from gpuwarden_job import REQUEUE
from support.fake_nvml_library import BUILDS, built
from support.job_world import ended, free_port, give_notice, start, until
from support.torch_world import BOUND, TORCHRUN, require_torch, result, steps_saved, torch_environment, training

require_torch()

SLOW_THREADS = Path(__file__).parents[1] / "support" / "slow_threads"
AGREE = """
import sys
import torch.distributed as dist
from gpuwarden_job import Ranks

dist.init_process_group("gloo")
ranks = Ranks.detect()
print("agreed on", [ranks.largest(number + ranks.rank) for number in range(4)])
if sys.argv[1:] == ["destroy"]:
    dist.destroy_process_group()
"""
LOADING = """
import os, time
import torch
from gpuwarden_job import CheckpointGuard, Ranks, leave

class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        return torch.zeros(1)

os.setpgid(0, 0)  # a job of its own
with CheckpointGuard(ranks=Ranks()) as guard:
    loader = torch.utils.data.DataLoader(Samples(), num_workers=2, worker_init_fn=guard.keep_worker)
    for step, _ in enumerate(loader):
        if step == 3:
            os.system("kill -TERM 0")  # from another process: a worker takes the rank's own SIGTERM for its end
        time.sleep(0.2)  # long enough for the end of a worker to be raised here
        if guard.check(step):
            print("saves")
            leave(guard)
"""


@pytest.mark.parametrize("numpy", [True, False], ids=["numpy", "without numpy"])
def test_a_training_that_was_killed_ends_with_the_same_loss(tmp_path: Path, numpy: bool) -> None:
    """A checkpoint saved with numpy is resumed without it, too."""
    code, wanted = ended(training(tmp_path, "whole", 300), BOUND)
    assert code == 0, wanted
    process = training(tmp_path, "killed", 300)
    until(lambda: steps_saved(tmp_path / "killed") or process.poll() is not None, "a checkpoint", BOUND)
    process.kill()
    ended(process)
    code, output = ended(training(tmp_path, "killed", 300, numpy=numpy), BOUND)
    assert code == 0, output
    assert result(output) == result(wanted)


@pytest.mark.parametrize("launcher", ["alone", "torchrun"])
def test_a_notice_makes_all_ranks_save_one_step_and_leave_and_the_next_start_goes_on_there(
    tmp_path: Path, launcher: str
) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    ranks = 2 if launcher == "torchrun" else 1
    with_ranks = (*TORCHRUN, "--nproc-per-node=2") if ranks == 2 else ()
    process = training(tmp_path, "saved", 10**9, *with_ranks, run_dir=run_dir)
    until(lambda: steps_saved(tmp_path / "saved") or process.poll() is not None, "a periodic checkpoint", BOUND)
    give_notice(run_dir)
    code, output = ended(process, BOUND)
    assert code == (REQUEUE if ranks == 1 else 1), output
    assert len(list((tmp_path / "marks").iterdir())) == ranks
    (run_dir / "notice.json").unlink()
    last = steps_saved(tmp_path / "saved")[-1]
    process = training(tmp_path, "saved", last + 20, *with_ranks, run_dir=run_dir)
    code, output = ended(process, BOUND)
    assert code == 0, output
    assert output.count(f"begins at step {last}\n") == ranks
    assert f"at step {last + 20}" in result(output)


def test_torchrun_hands_a_termination_to_its_ranks_and_they_save(tmp_path: Path) -> None:
    process = training(tmp_path, "saved", 10**9, *TORCHRUN, "--nproc-per-node=2")
    until(lambda: steps_saved(tmp_path / "saved") or process.poll() is not None, "a periodic checkpoint", BOUND)
    before = steps_saved(tmp_path / "saved")[-1]
    process.send_signal(signal.SIGTERM)
    code, output = ended(process, BOUND)
    assert code != 0, output
    assert steps_saved(tmp_path / "saved")[-1] > before


@pytest.mark.parametrize("groups", ["destroy", "keep"])
def test_ranks_that_end_right_after_they_agreed_end_well(tmp_path: Path, groups: str) -> None:
    """The threads of Gloo are held up, as by a busy host: they let go of the tensor when the interpreter is about to end."""
    flags = ("-std=gnu11", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror")
    slow = built(SLOW_THREADS, BUILDS.parent / "slow_threads" / "slow_threads.so", flags)
    (tmp_path / "agree.py").write_text(AGREE)
    more = {"LD_PRELOAD": str(slow), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = [
        start(
            tmp_path / "agree.py", groups, run_dir=tmp_path, more={**torch_environment(tmp_path), **more, "RANK": rank}
        )
        for rank in "01"
    ]
    for process in processes:
        code, output = ended(process, BOUND)
        assert (code, output) == (0, "agreed on [1, 2, 3, 4]\n")


def test_a_signal_to_all_processes_of_a_job_with_a_data_loader_still_lets_it_save(tmp_path: Path) -> None:
    """Slurm without control groups, systemd, and a shell signal all processes of a job, and not its ranks alone."""
    code, output = ended(start("-c", LOADING, run_dir=tmp_path, more=torch_environment(tmp_path)), BOUND)
    assert (code, output.strip().splitlines()[-1]) == (REQUEUE, "saves"), output
