"""For the tests that need PyTorch, which have an environment of their own: `make test-torch`.

PyTorch is not among the requirements of the tests, for its size. Elsewhere these tests are skipped, and fail in CI.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpuwarden_job import CheckpointStore, Ranks
from support.job_world import EXAMPLES, JOB, ROOT, STARTED, environment, start

BOUND = 240.0  # s, for what takes ten seconds on an idle machine: each process imports PyTorch
TORCHRUN = (
    "-W",
    "ignore",
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--tee=3",
    "--max-restarts=0",
)
OLD_TORCH_WARNS = pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")  # 2.1, of its own doing
# Quicker than by default: a node that has been silent for 5 s is dead, and 3 s are enough for another to join.
_QUICK = "keep_alive_interval=1,keep_alive_max_attempt=5,last_call_timeout=3"


def require_torch() -> None:
    """Skips the module, or fails it in CI; the end of the run names the command."""
    if importlib.util.find_spec("torch") is not None:
        return
    message = "PyTorch is not installed: the job library was NOT tried with it"
    print(message)  # noqa: T201 - a skip should be seen
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message, allow_module_level=True)


def torch_environment(tmp_path: Path, *, numpy: bool = True) -> dict[str, str]:
    """Return the additional environment of a PyTorch process. Without `numpy` it cannot be imported, as where it is not installed."""
    more = {"OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path), "PYTHONWARNINGS": "ignore", "PYTHONUNBUFFERED": "1"}
    if not numpy:
        (tmp_path / "without").mkdir(exist_ok=True)
        (tmp_path / "without" / "numpy.py").write_text("raise ModuleNotFoundError('not installed')\n")
        more["PYTHONPATH"] = os.pathsep.join(map(str, (tmp_path / "without", JOB, ROOT / "tests")))
    return more


def training(
    tmp_path: Path, folder: str, steps: int, *launcher: str, script: str = "train_torch.py", save_every: int = 50,
    run_dir: Path | None = None, numpy: bool = True,
) -> subprocess.Popen[str]:  # fmt: skip
    """An example, alone or under `launcher`."""
    words = ("--folder", tmp_path / folder, "--steps", str(steps), "--save-every", str(save_every))
    return start(
        *launcher, EXAMPLES / script, *words, "--markers", tmp_path / "marks",
        run_dir=run_dir or tmp_path / "run", more=torch_environment(tmp_path, numpy=numpy),
    )  # fmt: skip


def steps_saved(folder: Path) -> list[int]:
    return [checkpoint.step for checkpoint in CheckpointStore(folder, ranks=Ranks()).saved()]


def result(output: str) -> str:
    match = re.search(r"result \S+ at step \d+", output)
    assert match is not None, output
    return match[0]


class Node:
    """One node of an elastic training: the script of the examples, its agent of torchrun, and one rank."""

    def __init__(self, tmp_path: Path, name: str, port: int) -> None:
        self.run_dir = tmp_path / f"run-{name}"
        self._log = tmp_path / f"{name}.log"
        more = {
            **torch_environment(tmp_path), "RUN": "job", "HEAD": f"127.0.0.1:{port}", "CONF": _QUICK, "GPUS": "1",
            "MARKS": str(tmp_path / f"marks-{name}"),
        }  # fmt: skip
        self._environment = environment(self.run_dir, more)
        self._environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{self._environment['PATH']}"
        words = [EXAMPLES / "torchrun" / "elastic.sh", "--folder", tmp_path / "saved", "--steps", "1000000000"]
        with self._log.open("w") as log:
            self.script = subprocess.Popen(
                [*map(str, words), "--save-every", "50"], env=self._environment, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
        STARTED.append(self.script)

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def begun(self) -> list[int]:
        """The steps at which its rank has begun, so far."""
        return [int(step) for step in re.findall(r"begins at step (\d+)", self.log)]

    @property
    def agent(self) -> int:
        return next(pid for pid in _children(self.script.pid) if "torchrun" in _command(pid))

    @property
    def ranks(self) -> list[int]:
        return [pid for pid in _children(self.agent) if "train_torch" in _command(pid)]

    def kill_agent(self) -> list[int]:
        """The ranks that it leaves behind."""
        agent, ranks = self.agent, self.ranks
        os.kill(agent, signal.SIGKILL)
        return ranks

    def kill(self) -> None:
        """Kill all processes at once, as the end of the node does."""
        for pid in [self.script.pid, self.agent, *self.ranks]:
            os.kill(pid, signal.SIGKILL)

    def end(self) -> int:
        try:
            return self.script.wait(BOUND)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {BOUND:g} s: {self.log}") from None


def kill_all_of(folder: Path) -> None:
    """Agents and ranks are in sessions of their own, and outlive the script that a test started."""
    mark = str(folder).encode()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if int(path.name) != os.getpid() and mark in (path / "environ").read_bytes():
                os.kill(int(path.name), signal.SIGKILL)
        except OSError:
            continue


def _children(pid: int) -> list[int]:
    try:
        return [
            int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()
        ]
    except OSError:
        return []


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""
