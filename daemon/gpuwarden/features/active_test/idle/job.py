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
"""Seconds from its submission in which the job starts or is removed by the controller, whether or not anything here still runs."""
START = 30.0
"""Seconds from the start of the job to that of the test, on a host that is slow."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_JOURNAL = "/run/systemd/journal/stdout"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleJob:
    """The job to submit. `identity`: options of sbatch for its user."""

    node: str
    gpus: int
    """Number of GPUs that Slurm has."""
    partition: str
    level: Level
    parallel: int
    """GPUs that are tested at once."""
    config: Path | None
    """The configuration file that was named; None: the usual one."""
    run_dir: Path
    """Run directory of the daemon that gets the results."""
    account: str = ""
    """Empty: the default one."""
    qos: str = ""
    """Empty: the default one."""
    identity: tuple[str, ...] = ()

    @property
    def minutes(self) -> int:
        return minutes(self.level, self.gpus, self.parallel)

    def command(self) -> list[str]:
        """Command line of sbatch.

        The controller itself removes a job that has not started in time (--deadline), and never starts one a second time.
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
        """Command line that submits nothing and only checks whether the job would be accepted."""
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
        """The batch script.

        It uses `exec`, so that the signal of a preemption reaches the test itself, which ends at once and reports; a shell in between would
        die first, and the test be killed unfinished. The output goes to the journal, where there is one.
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
    """The time limit of a job: what a test takes at most, rounded up."""
    return math.ceil((START + longest(level, gpus, parallel)) / 60)
