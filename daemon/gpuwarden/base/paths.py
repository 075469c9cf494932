"""Paths on a host: those of a real daemon, and those of a simulation, which are separate."""

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


class UnsafeFolder(Exception):  # noqa: N818 - a decision
    """A folder that is not safe to use. The message has the reason and the remedy."""


def run_dir(environment: Mapping[str, str]) -> Path:
    """The daemon's run directory that commands use without `--run-dir`."""
    return Path(environment.get(RUN_DIR_VARIABLE) or RUN_DIR)


def marker_path(run_dir: Path, actuator: str) -> Path:
    """The default path of an actuator's marker of this node's exclusion."""
    return run_dir / "excluded" / actuator


def beside_for_slurm(folder: Path) -> Path:
    """The folder next to the run or state directory that, in every profile, only root (Slurm's scripts) can write."""
    return folder.with_name(f"{folder.name}-slurm")


def job_notes(run_dir: Path) -> Path:
    """Folder in which prolog and epilog leave a note of each job."""
    return beside_for_slurm(run_dir) / "jobs"


def bundles(state_dir: Path) -> Path:
    """Folder of the archives that root makes at failures. Root owns it, but not always the state directory."""
    return state_dir.with_name(f"{state_dir.name}-bundles")


def black_box(state_dir: Path) -> Path:
    """Folder of the black box: its ring, and frozen copies."""
    return state_dir / "black-box"


def kernel_cache(state_dir: Path) -> Path:
    """Folder of the driver's cache of compiled kernels for the workers of `gpuwarden test`.

    It belongs to their user, independent of the owner of the state directory.
    """
    return state_dir.with_name(f"{state_dir.name}-test")


def simulation_home(environment: Mapping[str, str]) -> Path:
    """Folder of this user for simulated GPUs in the temporary directory, with `run` and `state`."""
    temporary = Path(environment.get("TMPDIR") or "/tmp")  # noqa: S108 - checked by `check_private`
    return temporary.absolute() / f"gpuwarden-{os.getuid()}"


def is_real(folder: Path) -> bool:
    """Return True if `folder` is, or is in, a folder of the daemon that manages real GPUs."""
    resolved = folder.resolve()
    return any(resolved.is_relative_to(real.resolve()) for real in (CONFIG_FILE.parent, RUN_DIR, STATE_DIR))


def make_private(folder: Path) -> None:
    """Make the folder, accessible only by this user. Raises UnsafeFolder if another user made it first."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UnsafeFolder(f"cannot make {folder}: {error.strerror}; give --run-dir and --state-dir") from error
    check_private(folder)


def check_private(folder: Path) -> None:
    """Raises UnsafeFolder if other users can write to `folder`. Accepts a missing folder."""
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise UnsafeFolder(f"cannot stat {folder}: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode):
        why = "it is not a folder"
    elif status.st_uid != os.getuid():
        why = f"it belongs to user {status.st_uid}"
    elif status.st_mode & 0o077:
        why = f"others may enter it (mode {stat.S_IMODE(status.st_mode):04o})"
    else:
        return
    raise UnsafeFolder(f"{folder} is not safe to use: {why}; remove it, or give --run-dir and --state-dir")
