"""Runs one program for an archive, which may hang with the driver: nothing waits for it beyond its deadline.

It runs in a session of its own and, as root on a host with systemd, in a transient scope, so that all processes that it
starts end with the scope. At the deadline all of them are killed. A process in D state cannot be killed: it is left
behind, and named.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.host_files import text_or_empty
from gpuwarden_collectors.plugin.run import Process, Run, run

_SYSTEMD = Path("/run/systemd/system")
"""Exists if systemd is the first process: sd_booted(3)."""
_FOLDERS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_FILE_MOST = 64 << 20
"""Most bytes of one file that a program may write."""
_MEMORY_MOST = "1G"
_AFTER = 30
"""Seconds after the deadline at which systemd ends a scope that gpuwarden could not end, or that outlived it."""
_NO_SCOPE = (
    b"Unknown assignment",
    b"Failed to start transient scope",
    b"Failed to connect to bus",
    b"Failed to create bus",
)
"""Errors of systemd-run when it starts nothing, such as before 244, which has no time limit for a scope."""
_LIMITED = 'ulimit -f "$0" && exec "$@"'
_BLOCK = 512
"""Bytes of a block for ulimit -f, POSIX."""
_STDERR_SHOWN = 200
LEFT: list[Process] = []
"""Processes that could not be ended. They are kept, since nothing may wait for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The result of a program."""

    output: bytes = b""
    """The first bytes that it wrote to its standard output."""
    why: str = ""
    """Why the output is incomplete; empty if it is complete."""
    stderr: str = ""
    """Its standard error, after a colon; empty if there is none."""
    absent: bool = False
    """The program is not installed."""
    seconds: float = 0.0
    """How long it ran."""


async def program(
    command: Sequence[str], *, name: str, deadline: float, most: int, fine: frozenset[int] = frozenset({0})
) -> Done:
    """Run a program; return at most `most` bytes of its output. `fine`: exit codes of success. Raises nothing."""
    environment = surroundings(os.environ)
    executable = shutil.which(command[0], path=environment["PATH"])
    if executable is None:
        return Done(why=f"{command[0]} is not installed", absent=True)
    began = time.monotonic()
    limited = ("/bin/sh", "-c", _LIMITED, str(_FILE_MOST // _BLOCK), executable, *command[1:])
    done = Run(None, error="not run")
    for scope in dict.fromkeys((_scope(name, deadline, environment), ())):
        done = await run((*scope, *limited), environment, deadline, kept=most + 1, whole=True, left=LEFT.append)
        if not (scope and done.exit_code and done.stderr.startswith(_NO_SCOPE)):
            break
    why, stderr = done.error, _text_of(done.stderr)
    if done.left is not None:
        why = f"{why}: it is left behind, in state {_state(done.left.pid)}"
    elif done.exit_code is not None and done.exit_code not in fine:
        why = f"exit code {done.exit_code}{stderr}"
    if len(done.stdout) > most:
        why = "; ".join(filter(None, (f"only the first {most} bytes are kept", why)))
    return Done(output=done.stdout[:most], why=why, stderr=stderr, seconds=time.monotonic() - began)


def surroundings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of programs: only a search path, and a locale that others can read."""
    return {"PATH": environment.get("PATH") or _FOLDERS, "LC_ALL": "C", "HOME": "/"}


def _scope(name: str, deadline: float, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command that starts a program in a unit of its own; empty without systemd or root."""
    starter = shutil.which("systemd-run", path=environment["PATH"])
    if starter is None or os.geteuid() != 0 or not _SYSTEMD.is_dir():
        return ()
    unit = f"gpuwarden-bundle-{os.getpid()}-{name}"
    limits = (f"RuntimeMaxSec={deadline + _AFTER:.0f}", f"MemoryMax={_MEMORY_MOST}", "TasksMax=512")
    options = ("--scope", "--quiet", "--collect", f"--unit={unit}", *(f"--property={limit}" for limit in limits))
    return (starter, *options, "--")


def _state(pid: int) -> str:
    """Return the state of a process as in proc(5); `?` if it is not known."""
    return text_or_empty(Path(f"/proc/{pid}/stat")).rpartition(") ")[2][:1] or "?"


def _text_of(stderr: bytes) -> str:
    text = " ".join(stderr.decode("utf-8", "replace").split())[:_STDERR_SHOWN]
    return f": {text}" if text else ""
