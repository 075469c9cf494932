"""Where things are on a host: the real places, and those of a simulation, which never touches a real one."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

CONFIG_FILE = Path("/etc/gpuwarden/gpuwarden.toml")
RUN_DIR = Path("/run/gpuwarden")
STATE_DIR = Path("/var/lib/gpuwarden")
LEDGER = "ledger.db"  # in the state directory

RUN_DIR_VARIABLE = "GPUWARDEN_RUN_DIR"


class PlaceRefused(Exception):  # noqa: N818 - a decision
    """A folder that is not safe to use. The message says why and what to do."""


def run_dir(environment: Mapping[str, str]) -> Path:
    """Where verbs look for the daemon unless told otherwise."""
    return Path(environment.get(RUN_DIR_VARIABLE) or RUN_DIR)


def marker_path(run_dir: Path, actuator: str) -> Path:
    """Where an actuator that has no place of its own for its marker says that this node is held out."""
    return run_dir / "excluded" / actuator


def beside_for_slurm(folder: Path) -> Path:
    """The folder beside the run or state directory that only the user of Slurm's scripts (root) writes, in every profile."""
    return folder.with_name(f"{folder.name}-slurm")


def job_notes(run_dir: Path) -> Path:
    """Where prolog and epilog leave a note of each job."""
    return beside_for_slurm(run_dir) / "jobs"


def simulation_home(environment: Mapping[str, str]) -> Path:
    """The folder of this user for simulated GPUs, below the temporary directory: in it `run` and `state`."""
    temporary = Path(environment.get("TMPDIR") or "/tmp")  # noqa: S108 - made sure of by `check_private`
    return temporary.absolute() / f"gpuwarden-{os.getuid()}"


def is_real(folder: Path) -> bool:
    """Whether `folder` is, or is in, a place of the daemon that looks after real GPUs."""
    resolved = folder.resolve()
    return any(resolved.is_relative_to(real.resolve()) for real in (CONFIG_FILE.parent, RUN_DIR, STATE_DIR))


def make_private(folder: Path) -> None:
    """Make the folder, for this user alone. Raises PlaceRefused if somebody else made it first."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise PlaceRefused(f"cannot make {folder}: {error.strerror}; give --run-dir and --state-dir") from error
    check_private(folder)


def check_private(folder: Path) -> None:
    """Raises PlaceRefused if others could have put something into `folder`. One that does not exist is fine."""
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise PlaceRefused(f"cannot look at {folder}: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode):
        why = "it is no folder"
    elif status.st_uid != os.getuid():
        why = f"it belongs to user {status.st_uid}"
    elif status.st_mode & 0o077:
        why = f"others may enter it (mode {stat.S_IMODE(status.st_mode):04o})"
    else:
        return
    raise PlaceRefused(f"{folder} is not safe to use: {why}; remove it, or give --run-dir and --state-dir")
