"""Checks Slurm's settings that the hooks and the gate need: one row each. `scontrol show config` gives the keys."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from gpuwarden.doctor.row import Row, fail, ok, warn
from gpuwarden_collectors.host_files import read_text
from gpuwarden_collectors.slurm.options import SlurmOptions
from gpuwarden_collectors.slurm.settings import release_of, value_of

_SCRIPT_MAX = 256 * 1024  # bytes
_MATCHES_MAX = 64
OLDEST = (22, 5)
EPILOG_TEST = "gpuwarden-slurm-epilog-test"
EPILOG_TEST_LEAST = 60
"""Seconds: twice the longest run of the script."""
_UNLIMITED = 65534
"""Value that Slurm shows for an unset PrologEpilogTimeout."""


def settings(keys: Mapping[str, str], options: SlurmOptions) -> Iterator[Row]:
    yield version(keys.get("SLURM_VERSION", ""))
    yield health_check(keys, options)
    yield from prolog(keys, options)
    yield epilog(keys)
    yield from epilog_test(keys)
    yield tracking(keys)


def version(text: str) -> Row:
    release = release_of(text)
    if release is None:
        return warn("version", f"cannot parse {text[:40]!r}", "check that Slurm is 22.05 or later")
    if release < OLDEST:
        return fail("version", text, "upgrade Slurm: gpuwarden supports 22.05 and later")
    return ok("version", text)


def health_check(keys: Mapping[str, str], options: SlurmOptions) -> Row:
    program, interval = value_of(keys, "HealthCheckProgram"), _number(keys.get("HealthCheckInterval", ""))
    states = keys.get("HealthCheckNodeState", "ANY").upper()
    to_do = "set HealthCheckProgram to gpuwarden-slurm-healthcheck, HealthCheckInterval=300, HealthCheckNodeState=ANY"
    needed = options.drain_by == "hook"
    if not program or not interval:
        if needed:
            return fail("HealthCheckProgram", 'not set or interval 0, and drain_by = "hook" needs it', to_do)
        return warn("HealthCheckProgram", "not set: Slurm does not notice when the daemon is down", to_do)
    if not _runs("gpuwarden-slurm-healthcheck", program):
        grade = fail if needed else warn
        return grade(
            "HealthCheckProgram",
            f"{program} does not call gpuwarden-slurm-healthcheck",
            "call gpuwarden-slurm-healthcheck from that program",
        )
    if "ANY" not in states.split(","):
        text = f"{program} every {interval} s, but HealthCheckNodeState={states}"
        return warn(
            "HealthCheckProgram", text, "set HealthCheckNodeState=ANY: otherwise busy or drained nodes are not checked"
        )
    return ok("HealthCheckProgram", f"{program} every {interval} s")


def prolog(keys: Mapping[str, str], options: SlurmOptions) -> Iterator[Row]:
    programs = value_of(keys, "Prolog")
    if not _runs("gpuwarden-slurm-prolog", programs):
        state = f"{programs or 'not set'}: a job may start on a GPU that failed a moment ago, and jobs are found by their processes only"
        yield warn("Prolog", state, "add gpuwarden-slurm-prolog to Prolog")
        return
    yield ok("Prolog", programs)
    flags = value_of(keys, "PrologFlags").lower()
    if "alloc" in flags or "contain" in flags:
        yield ok("PrologFlags", flags)
    else:
        state = f"{flags or 'none'}: on the other nodes of a job the prolog runs only with the first step"
        yield warn("PrologFlags", state, "add Alloc to PrologFlags")
    if "nohold_on_prolog_fail" in value_of(keys, "SchedulerParameters").lower():
        yield ok("SchedulerParameters", "nohold_on_prolog_fail")
    else:
        state = (
            "no nohold_on_prolog_fail: a job that the prolog refuses is requeued and held until a person releases it"
        )
        yield fail("SchedulerParameters", state, "add nohold_on_prolog_fail to SchedulerParameters")
    if options.on_stale == "refuse":
        state = 'on_stale = "refuse": a daemon that is down makes Slurm itself drain the node with "Prolog error"'
        yield warn("on_stale", state, 'check that this is intended; with "ignore" jobs start instead')


def epilog(keys: Mapping[str, str]) -> Row:
    programs = value_of(keys, "Epilog")
    if _runs("gpuwarden-slurm-epilog", programs):
        return ok("Epilog", programs)
    state = f"{programs or 'not set'}: a process that holds a GPU after its job is not detected"
    return warn("Epilog", state, "add gpuwarden-slurm-epilog to Epilog")


def epilog_test(keys: Mapping[str, str]) -> Iterator[Row]:
    """Yield the row about the test in the epilog, none if it is not used. Its own limit must end it before Slurm's,
    which drains the node.
    """
    programs = value_of(keys, "Epilog")
    if not _runs(EPILOG_TEST, programs):
        return
    limits = {key: _number(keys.get(key, "")) for key in ("PrologEpilogTimeout", "EpilogTimeout")}
    short = {key: limit for key, limit in limits.items() if 0 < limit < EPILOG_TEST_LEAST and limit != _UNLIMITED}
    if short:
        key, limit = next(iter(short.items()))
        state = f"{key}={limit}: Slurm may end {EPILOG_TEST}, and drain the node for that"
        yield fail("epilog test", state, f"set {key} to {EPILOG_TEST_LEAST} or more, or remove the script from Epilog")
    elif not _runs("gpuwarden-slurm-prolog", value_of(keys, "Prolog")):
        yield warn(
            "epilog test",
            f"{EPILOG_TEST} tests nothing without the prolog's notes",
            "add gpuwarden-slurm-prolog to Prolog",
        )
    else:
        yield ok("epilog test", EPILOG_TEST)


def tracking(keys: Mapping[str, str]) -> Row:
    kind = value_of(keys, "ProctrackType")
    if "cgroup" in kind:
        return ok("ProctrackType", kind)
    state = f"{kind or 'unknown'}: processes that leave their job's tree are neither ended nor attributed to it"
    return warn("ProctrackType", state, "use proctrack/cgroup")


def _number(text: str) -> int:
    match = re.match(r"\d{1,9}", text)
    return int(match[0]) if match is not None else 0


def _runs(script: str, programs: str) -> bool:
    """Return True if the script is named itself, by a pattern (`/etc/slurm/prolog.d/*`), as the target of a link, or in
    a readable script.
    """
    name = re.compile(rf"{re.escape(script)}(?![\w-])")
    for program in map(str.strip, programs.split(",")):
        if name.search(program):
            return True
        for path in islice(_matching(program), _MATCHES_MAX):
            if name.search(path.resolve().name):
                return True
            if os.access(path, os.R_OK) and path.is_file() and name.search(read_text(path, _SCRIPT_MAX)):
                return True
    return False


def _matching(program: str) -> Iterator[Path]:
    """Yield the files that match, as Slurm expands Prolog and Epilog like a shell."""
    path = Path(program)
    return path.parent.glob(path.name) if path.is_absolute() and path.name else iter(())
