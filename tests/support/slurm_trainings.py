"""A training on two nodes of a real Slurm, whose ranks write down what they live through (see saving_rank.py)."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from support.slurm import Slurm
from support.whole_lines import whole_lines

_SUPPORT = Path(__file__).parent
_RANK = _SUPPORT / "saving_rank.py"
_JOB = Path(__file__).parents[2] / "job"


class Training:
    """Two ranks on two of the three nodes; `answers` False: they do not find the daemon, and have its signal only.

    `declares`: the signal that it asks for, which with another one than TERM distinguishes the daemon's from Slurm's. `agrees`: the ranks answer for each other, else each
    for itself. `takes`: seconds that the save of each takes; `after`: what each does then; `then`: what the batch script does
    once they have ended. `waits`: the ranks begin only with `begins`.

    The ranks save at a signal, not at the notice before it: with the signal the daemon knows their job. A rank that acknowledges earlier gives up
    after three seconds, in which a busy machine may not have read the jobs.
    """

    def __init__(
        self,
        slurm: Slurm,
        *,
        answers: bool = True,
        declares: str = "",
        agrees: bool = False,
        takes: tuple[float, float] = (0.0, 0.0),
        after: str = "",
        then: str = "",
        name: str = "training",
        waits: bool = False,
    ) -> None:
        self.slurm = slurm
        self.folder = slurm.folder / "jobs" / name
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(mode=0o777)
        self.folder.chmod(0o777)
        run = f"{slurm.folder}/{'hosts' if answers else 'nowhere'}/$SLURMD_NODENAME/run"
        words = f"{sys.executable} {_RANK} {self.folder}"
        step = f"srun --input none bash -c 'GPUWARDEN_RUN_DIR={run} exec {words}'"
        variables = {
            "PYTHONPATH": f"{_JOB}:{_SUPPORT.parent}", "PYTHONDONTWRITEBYTECODE": "1", "TAKES": ",".join(map(str, takes)),
            "GPUWARDEN_SIGNAL": declares, "POLL": "60", "AGREE": str(self.folder / "agree") if agrees else "", "AFTER": after,
        }  # fmt: skip
        exported = " ".join(f"{name}={value}" for name, value in variables.items() if value)
        before = f"until [ -e {self.folder}/go ]; do sleep 0.1; done; " if waits else ""
        script = f"export {exported}; {before}{step}" + (f"; {then}" if then else "")
        self.job = slurm.submit(script, "--nodes=2", "--ntasks-per-node=1", user="")
        if waits:
            slurm.wait(lambda: slurm.job_state(self.job) == "RUNNING", "its batch script to begin")
        else:
            self.begins()

    def begins(self) -> None:
        """Both ranks do, the first time."""
        (self.folder / "go").touch()
        self.slurm.wait(
            lambda: len(self.reported("begins")) == 2, f"both ranks to begin: {self.slurm.output(self.job)}"
        )

    def reported(self, event: str, *ranks: int) -> list[dict[str, Any]]:
        logs = [whole_lines(self.folder / f"log.{n}") for n in ranks or (0, 1)]
        return [
            reported for log in logs for line in log.splitlines() if (reported := json.loads(line))["what"] == event
        ]

    def signals(self, rank: int) -> list[str]:
        """The names of those that it got, Slurm's among them: SIGTERM, once or more, for what it requeues."""
        return [reported["name"] for reported in self.reported("signal", rank)]

    def nodes(self) -> set[str]:
        return {reported["node"] for reported in self.reported("begins")}

    def cut_off(self) -> list[int]:
        """The ranks of the first run whose save is not whole, those that never began one among them."""
        return [rank for rank in (0, 1) if not any(report["run"] == 0 for report in self.reported("wrote", rank))]
