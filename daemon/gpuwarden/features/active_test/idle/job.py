"""The job that tests a node: how it is submitted, what it runs, how long it may take."""

from __future__ import annotations

import math
import shlex
import sys
from pathlib import Path

from gpuwarden.features.active_test.tester.rounds import longest
from gpuwarden.features.active_test.testers import JOB_NAME
from gpuwarden_collectors.active_test.level import Level
from gpuwarden_collectors.dataclass import dataclass

COMMAND: tuple[str, ...] = (sys.executable, "-P", "-m", "gpuwarden")
STARTED_WITHIN = 120
"""Seconds from its submission to the start of the job; then the controller removes it, without help from this host."""
START = 30.0
"""Seconds from the start of the job to the start of the test, on a slow host."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_JOURNAL = "/run/systemd/journal/stdout"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleJob:
    """The job to submit. `identity`: options of sbatch for its user."""

    node: str
    gpus: int
    """Number of GPUs of the node in Slurm."""
    partition: str
    level: Level
    parallel: int
    """GPUs that are tested at once."""
    config: Path | None
    """The configuration file named on the command line; None: the default file."""
    run_dir: Path
    """Run directory of the daemon that gets the results."""
    account: str = ""
    """Empty: the default account."""
    qos: str = ""
    """Empty: the default QOS."""
    identity: tuple[str, ...] = ()

    @property
    def minutes(self) -> int:
        return minutes(self.level, self.gpus, self.parallel)

    def command(self) -> list[str]:
        """Return the command line of sbatch.

        The controller removes a job that has not started in time (--deadline), and never starts one a second time
        (--no-requeue).
        """
        return [
            "sbatch",
            "--parsable",
            f"--job-name={JOB_NAME}",
            *self.options(),
            f"--deadline=now+{self.minutes * 60 + STARTED_WITHIN}seconds",
            f"--wrap={self.script()}",
        ]

    def trial(self) -> list[str]:
        """Return a command line that submits nothing and only checks whether the job would be accepted."""
        return ["sbatch", "--test-only", *self.options(), "--wrap=true"]

    def options(self) -> list[str]:
        named = (("account", self.account), ("qos", self.qos))
        return [
            *self.identity,
            f"--partition={self.partition}",
            *(f"--{key}={value}" for key, value in named if value),
            f"--nodelist={self.node}",
            "--nodes=1",
            "--ntasks=1",
            "--exclusive",
            f"--gres=gpu:{self.gpus}",
            "--mem=0",
            "--no-requeue",
            f"--time={self.minutes}",
            "--export=NIL",
            "--chdir=/",
            "--input=/dev/null",
            "--output=/dev/null",
        ]

    def script(self) -> str:
        """Return the batch script.

        It uses `exec`, so that the signal of a preemption reaches the test itself, which then ends at once and reports.
        A shell in between would end first, and the test would be killed before it reports. Output goes to the journal,
        if there is one.
        """
        config = () if self.config is None else ("--config", str(self.config))
        arguments = ("test", "--of-idle-job", f"--level={self.level.value}", f"--run-dir={self.run_dir}", *config)
        test = shlex.join((*COMMAND, *arguments))
        return (
            f"PATH={_PATH}; export PATH\n"
            f"if [ -S {_JOURNAL} ] && command -v systemd-cat >/dev/null; then exec systemd-cat --identifier={JOB_NAME} {test}; fi\n"
            f"exec {test}\n"
        )


def minutes(level: Level, gpus: int, parallel: int) -> int:
    """Return the time limit of a job in minutes: the longest that a test may take, rounded up."""
    return math.ceil((START + longest(level, gpus, parallel)) / 60)
