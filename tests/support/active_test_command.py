"""`gpuwarden test` with some constants changed, as a process of its own: the program of a worker, and what it inherits of this environment.

ACTIVE_TEST_WORKER    the command of a worker, as JSON; without it the real one
ACTIVE_TEST_KEEP      names of variables that a worker gets all the same: fake libraries are found by them
ACTIVE_TEST_KUBELET   the folder of a pretended kubelet
ACTIVE_TEST_WITHIN    seconds that a worker has at each level
ACTIVE_TEST_APART     seconds between the starts of two workers
ACTIVE_TEST_RESTART   seconds for which a daemon that restarts is asked again to take the results
ACTIVE_TEST_NAME      the name of workers that were left behind: one of another host's, beside which this one runs, is none of this one's
ACTIVE_TEST_NODE      the name of the node's lock: hosts of tests are none of each other's
ACTIVE_TEST_USER      the user that workers run as
ACTIVE_TEST_JOB       not empty: the job of an idle node runs this program, in this environment
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from gpuwarden.cli.main import main
from gpuwarden.features.active_test.idle import job
from gpuwarden.features.active_test.tester import gpu_test, lease, left_behind, lock, pods, run, surroundings, worker
from gpuwarden_collectors.active_test import level


def change() -> None:
    if command := os.environ.get("ACTIVE_TEST_WORKER"):
        worker.COMMAND = tuple(json.loads(command))
    if within := os.environ.get("ACTIVE_TEST_WITHIN"):
        level.WITHIN.update(dict.fromkeys(level.WITHIN, float(within)))
    changed: Any = gpu_test
    changed.APART = float(os.environ.get("ACTIVE_TEST_APART", changed.APART))
    lease.RESTART_WITHIN = float(os.environ.get("ACTIVE_TEST_RESTART", lease.RESTART_WITHIN))
    changed = left_behind
    changed.TESTER = os.environ.get("ACTIVE_TEST_NAME", changed.TESTER)
    lock.NODE = os.environ.get("ACTIVE_TEST_NODE", lock.NODE)
    surroundings.USER = os.environ.get("ACTIVE_TEST_USER", surroundings.USER)
    pods.KUBELET = Path(os.environ.get("ACTIVE_TEST_KUBELET", "/nonexistent"))
    if os.environ.get("ACTIVE_TEST_JOB"):
        passed = [f"{name}={value}" for name, value in os.environ.items() if not name.startswith("SLURM")]
        job.COMMAND = ("/usr/bin/env", *passed, sys.executable, __file__)
    changed = run
    made, names = changed.environment, os.environ.get("ACTIVE_TEST_KEEP", "").split()
    changed.environment = lambda cache: {
        **made(cache),
        **{name: os.environ[name] for name in names if name in os.environ},
    }


if __name__ == "__main__":
    change()
    sys.exit(main())
