"""The command line as people use it: a process of its own, in an environment of its own."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuwarden.cli.parser import TRY_AGAIN

PATIENCE = 150.0
"""Seconds after which a test gives up on a command; nothing is asserted about how much of it is used."""
USER = pwd.getpwuid(os.geteuid()).pw_name
"""Who gives the commands of a test."""
COMMAND = (sys.executable, "-m", "gpuwarden")
SMALL_FILES = ("env", "PYTHONDONTWRITEBYTECODE=1", "prlimit", "--fsize=512")
"""Before a command that may write no more into a file. Bytecode it must not write at all: Python keeps what the limit cuts off, and every later
import of that module fails.
"""


def environment(temporary: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Nothing of the host's GPUWARDEN_* variables, nor of a pod's; simulations live below `temporary`."""
    dropped = ("GPUWARDEN_", "KUBERNETES_SERVICE_HOST")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return {**kept, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(temporary), **(more or {})}


def gpuwarden(
    *words: str | Path,
    temporary: Path,
    more: Mapping[str, str] | None = None,
    command: Sequence[str] = COMMAND,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *map(str, words)],
        env=environment(temporary, more), capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=cwd,
    )  # fmt: skip


def answered(
    *words: str | Path, temporary: Path, more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Give an order to a daemon, or ask it. What a busy daemon or disk did not take in time is given again, as the answer says."""
    end = time.monotonic() + PATIENCE
    while (done := gpuwarden(*words, temporary=temporary, more=more)).returncode == TRY_AGAIN:
        assert time.monotonic() < end, done.stderr
    return done


def options(**chosen_options: object) -> Namespace:
    """Return the options that the parsers of `run` and `check` make of these arguments and no others."""
    none = ("config", "simulate", "listen", "state_dir", "run_dir", "mode")
    return Namespace(**{**dict.fromkeys(none), **chosen_options})
