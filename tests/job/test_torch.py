"""The example with PyTorch, really run: alone, under torchrun, interrupted and resumed. Any CPU build will do.

PyTorch is not among the requirements of the tests, for its size. Debian's python3-torch is enough.
"""

from __future__ import annotations

import importlib.util
import re
import signal
import subprocess
from pathlib import Path

import pytest

from gpuwarden_job import REQUEUE, CheckpointStore, Ranks
from support.job_world import EXAMPLES, ended, free_port, give_notice, start, until

if importlib.util.find_spec("torch") is None:
    message = "PyTorch is not here: job/examples/train_torch.py was NOT run"
    print(message)  # noqa: T201 - a skip should be seen
    pytest.skip(message, allow_module_level=True)

TRAINING = EXAMPLES / "train_torch.py"
# As PyTorch 1.13 spells it; its default for redirects does not work on Python 3.11.
TORCHRUN = ("-W", "ignore", "-m", "torch.distributed.run", "--redirects=2", "--tee=1", "--max_restarts=0")


def training(
    tmp_path: Path, name: str, steps: int, *launcher: str | Path, run_dir: Path | None = None
) -> subprocess.Popen[str]:
    words = ("--folder", tmp_path / name, "--steps", str(steps), "--save-every", "50", "--markers", tmp_path / "marks")
    first = launcher or ("-W", "ignore")
    more = {"OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    return start(*first, TRAINING, *words, run_dir=run_dir or tmp_path / "run", more=more)


def steps_saved(folder: Path) -> list[int]:
    return [one.step for one in CheckpointStore(folder, ranks=Ranks()).saved()]


def result(output: str) -> str:
    found = re.search(r"result \S+ at step \d+", output)
    assert found is not None, output
    return found[0]


def test_a_training_that_was_killed_ends_with_the_same_loss(tmp_path: Path) -> None:
    code, wanted = ended(training(tmp_path, "whole", 300))
    assert code == 0, wanted
    process = training(tmp_path, "killed", 300)
    until(lambda: steps_saved(tmp_path / "killed") or process.poll() is not None, "a checkpoint")
    process.kill()
    ended(process)
    code, output = ended(training(tmp_path, "killed", 300))
    assert code == 0, output
    assert result(output) == result(wanted)


@pytest.mark.parametrize("launcher", ["alone", "torchrun"])
def test_a_notice_makes_all_ranks_save_one_step_and_leave_and_the_next_start_goes_on_there(
    tmp_path: Path, launcher: str
) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    ranks = 2 if launcher == "torchrun" else 1
    with_ranks = (*TORCHRUN, "--nproc_per_node=2", f"--master_port={free_port()}") if ranks == 2 else ()
    process = training(tmp_path, "saved", 10**9, *with_ranks, run_dir=run_dir)
    until(lambda: steps_saved(tmp_path / "saved") or process.poll() is not None, "a periodic checkpoint")
    give_notice(run_dir)
    code, output = ended(process)
    assert code == (REQUEUE if ranks == 1 else 1), output
    assert len(list((tmp_path / "marks").iterdir())) == ranks
    (run_dir / "notice.json").unlink()
    last = steps_saved(tmp_path / "saved")[-1]
    process = training(tmp_path, "saved", last + 20, *with_ranks, run_dir=run_dir)
    code, output = ended(process)
    assert code == 0, output
    assert output.count(f"begins at step {last}\n") == ranks
    assert f"at step {last + 20}" in result(output)


def test_torchrun_hands_a_termination_to_its_ranks_and_they_save(tmp_path: Path) -> None:
    process = training(tmp_path, "saved", 10**9, *TORCHRUN, "--nproc_per_node=2", f"--master_port={free_port()}")
    until(lambda: steps_saved(tmp_path / "saved") or process.poll() is not None, "a periodic checkpoint")
    before = steps_saved(tmp_path / "saved")[-1]
    process.send_signal(signal.SIGTERM)
    code, output = ended(process)
    assert code != 0, output
    assert steps_saved(tmp_path / "saved")[-1] > before
