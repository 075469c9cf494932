"""The user that jobs of idle tests run as: may this process submit as it, and does the daemon accept its results?"""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path

from gpuwarden.features.active_test.testers import BELIEVED


class NoSuchSubmitter(Exception):  # noqa: N818 - of the configuration or of who calls
    """Jobs cannot be submitted as this user. The message says why and what to do."""


def submits_as(name: str, euid: int) -> tuple[str, ...]:
    """Return sbatch's options for that user; none if this process already runs as it. Raises NoSuchSubmitter.

    They are numeric: a job belongs to a uid, which must mean the same user on every host.
    """
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise NoSuchSubmitter(
            f"test.slurm_user {name!r} is no user of this host: create it with the same uid on every host, or set root"
        ) from None
    if user.pw_uid not in (0, euid) and name not in BELIEVED:
        raise NoSuchSubmitter(
            f"test.slurm_user is {name!r}, whose results the daemon does not accept: set root or gpuwarden"
        )
    if user.pw_uid == euid:
        return ()
    if euid != 0:
        raise NoSuchSubmitter(f"uid {euid} cannot submit a job of {name}: run it as root or as {name}")
    return f"--uid={user.pw_uid}", f"--gid={user.pw_gid}"


def no_access(name: str, run_dir: Path, group: str) -> str:
    """Return why that user may not use the control socket in `run_dir`; empty if it may. `group`: of the socket."""
    user = pwd.getpwnam(name)
    try:
        daemon = run_dir.stat().st_uid
    except OSError as error:
        return f"no daemon has run here ({run_dir}: {error.strerror})"
    if user.pw_uid in (0, daemon):
        return ""
    try:
        allowed = grp.getgrnam(group).gr_gid if group else None
    except KeyError:
        allowed = None
    if allowed in os.getgrouplist(name, user.pw_gid):
        return ""
    return f"{name} may not use the control socket: set control.group to a group of {name}, such as {name}"
