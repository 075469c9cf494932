"""Checks Slurm: that it responds, its name of this node, permission to drain it, and the clocks. Reads only."""

from __future__ import annotations

import os
import pwd
import re
import stat
import time
from collections.abc import Mapping
from pathlib import Path

from gpuwarden.base.paths import beside_for_slurm, job_notes
from gpuwarden.base.threads import detached
from gpuwarden.doctor.row import Row, fail, ok, warn
from gpuwarden.features.slurm import refuse_mark
from gpuwarden.features.slurm.settings import settings
from gpuwarden_collectors.host_files import read_text
from gpuwarden_collectors.slurm import nodes
from gpuwarden_collectors.slurm.client import SlurmClient
from gpuwarden_collectors.slurm.errors import SlurmError, UnknownNode
from gpuwarden_collectors.slurm.options import SlurmOptions, conf_path
from gpuwarden_collectors.slurm.settings import read_config

RESPONSE_WITHIN = 12.0
"""Seconds for each call. A call that finds no controller takes 9."""
SKEW_MOST = 5.0
SKEW_BAD = 60.0
_SDIAG_TIME = re.compile(r"^sdiag output at .*\((\d{6,12})\)", re.MULTILINE)
_NO_NODE = (
    "set slurm.node to the NodeName of this host ('scontrol show nodes'); a dynamic node is not in slurm.conf:"
    " start its slurmd -Z first"
)
_AUTH_TYPE = re.compile(r"^\s*AuthType\s*=\s*\"?([\w/]+)", re.MULTILINE | re.IGNORECASE)
_CONF_MOST = 4 << 20  # bytes
_VERSION = re.compile(r"\bVersion=(\S+)")


class SlurmDoctor:
    """Rows about Slurm. `hostname`: of this machine, to find its name in Slurm; `run_dir` and `state_dir` are the
    daemon's. `off_by`: the source of the configuration that has `slurm.enabled = false`; "" if none has, and then a
    Slurm on this host counts as forgotten.
    """

    def __init__(
        self,
        options: SlurmOptions,
        hostname: str,
        run_dir: Path,
        state_dir: Path,
        environment: Mapping[str, str] = os.environ,
        *,
        off_by: str = "",
    ) -> None:
        self._off_by = off_by
        self._options = options
        self._run_dir = run_dir
        self._state_dir = state_dir
        self._environment = environment
        self._client = SlurmClient(
            conf=options.conf,
            folder=options.folder,
            timeout=RESPONSE_WITHIN,
            node=options.node,
            hostname=hostname,
            inherited=environment,
        )
        self._commands = self._client.routine

    async def rows(self) -> list[Row]:
        try:
            return await self._rows()
        finally:
            await self._client.close()

    async def _rows(self) -> list[Row]:
        path, there = await detached("slurm.conf", self._conf)
        if not there:
            if not self._options.enabled:
                return [ok("slurm.conf", "no Slurm on this host")]
            return [fail("slurm.conf", f"{path} does not exist", "set slurm.conf to its path")]
        if self._off_by:
            state = f"disabled: {path} exists but is not used, since slurm.enabled is false ({self._off_by})"
            return [ok("slurm.conf", state)]
        rows = [self._enabled(path)]
        try:
            keys = await read_config(self._commands)
        except SlurmError as error:
            to_do = (
                "check slurmctld, any backup controller ('scontrol ping'), the network, clocks and keys: until this"
                " works the other Slurm rows are missing"
            )
            munge = [await self._munge()] if await detached("slurm.conf", lambda: _uses_munge(path)) else []
            return [*rows, *munge, fail("controller", str(error), to_do)]
        rows.append(ok("controller", "responds"))
        rows += [await self._authority(keys), *await self._node(keys), await self._clock()]
        return [*rows, *await detached("scripts of Slurm", lambda: self._scripts(keys))]

    def _conf(self) -> tuple[Path, bool]:
        """Return the path of slurm.conf, and whether it exists. May hang if it is in a network file system."""
        path = conf_path(self._options, self._environment)
        return path, path.exists()

    def _scripts(self, keys: Mapping[str, str]) -> list[Row]:
        """Return the rows about scripts. May hang, as `_conf`: it reads the programs that slurm.conf names."""
        beside = scripts(keys, self._options, self._run_dir, self._state_dir)
        return [beside, *settings(keys, self._options)]

    async def _read(self, *command: str) -> str:
        return await self._commands.ask(f"cannot read from Slurm ({command[0]})", *command)

    def _enabled(self, path: Path) -> Row:
        if self._options.enabled:
            return ok("slurm.conf", str(path))
        return warn(
            "slurm.conf",
            f"{path}, but slurm.enabled is not set",
            "set slurm.enabled = true: otherwise nothing is drained; or false, if that is intended",
        )

    async def _munge(self) -> Row:
        try:
            await self._read("munge", "--no-input")
        except SlurmError as error:
            return warn("munge", str(error), "start munged and check that its key is that of the cluster")
        return ok("munge", "creates credentials")

    async def _authority(self, keys: Mapping[str, str]) -> Row:
        """Check whether this user may drain nodes: root, SlurmUser and an administrator of slurmdbd may."""
        uid = os.geteuid()
        try:
            user = pwd.getpwuid(uid).pw_name
        except KeyError:
            user = f"uid {uid}"
        slurm_user = keys.get("SlurmUser", "").partition("(")[0]
        if uid == 0 or user == slurm_user:
            return ok("authority", f"{user} may drain nodes")
        level = ""
        if "slurmdbd" in keys.get("AccountingStorageType", ""):
            try:
                level = (await self._read("sacctmgr", "-nP", "show", "user", user, "format=AdminLevel")).strip()
            except SlurmError as error:
                state = f"{user} is neither root nor {slurm_user}; whether it is an administrator is unknown: {error}"
                return warn("authority", state, "check that slurmdbd and its database answer")
        if level.startswith("Admin"):
            return ok("authority", f"{user} is an administrator of slurmdbd and may drain nodes")
        state = f"{user} is neither root nor {slurm_user or 'SlurmUser'}" + (
            f", and {level} of slurmdbd" if level else ""
        )
        to_do = "run gpuwarden as root or SlurmUser, or give it AdminLevel=Administrator (Operator is not enough)"
        return fail("authority", state, to_do)

    async def _node(self, keys: Mapping[str, str]) -> list[Row]:
        try:
            name = await self._commands.node_name()
            node = await nodes.read_node(self._commands, name)
            shown = await self._read("scontrol", "show", "node", name)
        except UnknownNode as error:
            return [fail("node name", str(error), _NO_NODE)]
        except SlurmError as error:
            return [fail("node name", str(error), "set slurm.node, and check that the controller responds")]
        rows = [ok("node name", f"{name}, {node.state}")]
        if not node.has_gpu:
            dynamic = any(flag.startswith("dynamic") for flag in node.flags)
            where = "to --conf of its slurmd -Z" if dynamic else "to its line in slurm.conf"
            to_do = f"add Gres=gpu:N {where}, and gres.conf"
            rows.append(warn("gres", "Slurm has no GPU configured for this node: the GPUs of a job are unknown", to_do))
        mine, theirs = _VERSION.search(shown), keys.get("SLURM_VERSION", "")
        if mine is not None and theirs and mine[1].split(".")[:2] != theirs.split(".")[:2]:
            state = f"slurmd {mine[1]}, slurmctld {theirs}"
            rows.append(
                warn("versions", state, "nothing during an upgrade of the cluster; otherwise install the same version")
            )
        return rows

    async def _clock(self) -> Row:
        """Compare the clock with the controller's; half the duration of the call is the error."""
        before = time.time()
        try:
            output = _SDIAG_TIME.search(await self._read("sdiag"))
        except SlurmError as error:
            return warn("clock", str(error), "check that sdiag can be run")
        if output is None:
            return warn("clock", "sdiag does not show the controller's time", "compare the clocks by hand")
        skew = abs(float(output[1]) - (before + time.time()) / 2)
        if skew > SKEW_BAD:
            return fail(
                "clock",
                f"{skew:.0f} s away from the controller's",
                "synchronise it: munge refuses a difference of some minutes",
            )
        if skew > SKEW_MOST:
            to_do = "synchronise it: these clocks decide the order of drains"
            return warn("clock", f"{skew:.0f} s away from the controller's", to_do)
        return ok("clock", "agrees with the controller's within a few seconds")


def _uses_munge(path: Path) -> bool:
    """Return False if this slurm.conf names another plugin than munge, the default. Includes are not read. May hang."""
    try:
        named = _AUTH_TYPE.findall(read_text(path, _CONF_MOST))
    except OSError:
        return True
    return not named or named[-1].lower() == "auth/munge"


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
