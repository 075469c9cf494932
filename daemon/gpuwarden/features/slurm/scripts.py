"""Checks that Slurm's scripts can use their folders, which are next to the daemon's."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path

from gpuwarden.base.paths import beside_for_slurm, job_notes
from gpuwarden.doctor.row import Row, ok, warn
from gpuwarden.features.slurm import refuse_mark
from gpuwarden_collectors.slurm.options import SlurmOptions


def scripts(keys: Mapping[str, str], options: SlurmOptions, run_dir: Path, state_dir: Path) -> Row:
    """Return the row about scripts: they need folders that only slurmd's user, root nearly everywhere, can write."""
    uid = keys.get("SlurmdUser", "root(0)").partition("(")[2].partition(")")[0]
    user = int(uid) if uid.isdecimal() else 0
    for folder in (run_dir.parent, state_dir.parent):
        if fault := _open_to_others(folder, user):
            to_do = "let only root write there, or set run.dir and state.dir: scripts that run as root trust the files there"
            return warn("scripts", fault, to_do)
    notes = job_notes(run_dir)
    if fault := _not_of(notes, user):
        to_do = f"systemd-tmpfiles --create gpuwarden.conf, or: mkdir -p -m 0750 {notes}; until then jobs are found by their processes only"
        return warn("scripts", fault, to_do)
    if options.on_stale == "refuse":
        mark = beside_for_slurm(state_dir) / refuse_mark.NAME
        fault = _not_of(state_dir, user) or _not_of(mark.parent, user) or _not_of(mark, user)
        if fault:
            to_do = "run gpuwarden as the user of slurmd (profile enforce) in mode enforce, and start it once"
            return warn("scripts", f"the prolog does not refuse jobs when the verdict is stale: {fault}", to_do)
    return ok("scripts", f"they write the notes of jobs to {notes}")


def _not_of(path: Path, user: int) -> str:
    try:
        owner = path.stat().st_uid
    except OSError as error:
        return f"{path}: {error.strerror}"
    return "" if owner == user else f"{path} belongs to uid {owner}, slurmd runs as uid {user}"


def _open_to_others(folder: Path, user: int) -> str:
    try:
        status = folder.stat()
    except OSError as error:
        return f"{folder}: {error.strerror}"
    if status.st_uid not in (0, user):
        return f"{folder} belongs to uid {status.st_uid}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"other users may write to {folder} (mode {stat.S_IMODE(status.st_mode):04o})"
    return ""
