"""What `gpuwarden service` does."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from gpuwarden import __version__
from gpuwarden.cli.parser import NOT_ALLOWED, UNAVAILABLE, CommandError
from gpuwarden.service.executable import Executables, refusals
from gpuwarden.service.files import SERVICE, local_files, sockets
from gpuwarden.service.installation import Installation, ServiceError, State

_RESPONSE_WITHIN = 120.0


def main(options: argparse.Namespace) -> int:
    executables = Executables.of_this()
    installation = Installation(options.root, local_files(executables.command, executables.python), __version__)
    actions: dict[str, Callable[[], int]] = {
        "show": lambda: _show(installation.states(), executables),
        "install": lambda: _install(options, installation, executables),
        "remove": lambda: _remove(options, installation),
    }
    try:
        return actions[options.action]()
    except ServiceError as error:
        raise CommandError(str(error)) from error
    except PermissionError as error:
        raise CommandError(f"cannot write {error.filename}: run as root", NOT_ALLOWED) from error
    except BrokenPipeError:  # of the output
        raise
    except OSError as error:
        raise CommandError(f"cannot write {error.filename}: {error.strerror}", UNAVAILABLE) from error


def _show(states: dict[str, State], executables: Executables) -> int:
    print(f"starts {executables.command}")
    for path, state in states.items():
        print(f"/{path}: {state}")
    for why in refusals(executables):
        print(f"install would be refused: {why}")
    return 0


def _install(options: argparse.Namespace, installation: Installation, executables: Executables) -> int:
    _as_root()
    if why := refusals(executables):
        raise CommandError("refused, since the service may run as root:\n  " + "\n  ".join(why))
    for path, state in installation.install().items():
        print(f"/{path}: {_DONE[state]}")
    commands = list(_commands())
    if options.no_start or not _systemd_runs(options):
        print("not started; run:", *commands, sep="\n  ")
        return 0
    for command in commands:
        _run(command)
    print(f"{SERVICE} runs; next: gpuwarden doctor")
    return 0


_DONE = {
    State.MISSING: "written",
    State.SAME: "is there already",
    State.OUTDATED: "replaced",
    State.CHANGED: "left as it is: changed by hand",
}
"""Install, depending on the present states. Refuses foreign files."""


def _remove(options: argparse.Namespace, installation: Installation) -> int:
    _as_root()
    installed = installation.installed()  # fails before anything is stopped
    if _systemd_runs(options):
        units = " ".join(
            sorted(Path(path).name for path in installed if path.endswith((".service", ".socket", ".timer")))
        )
        _run(f"systemctl disable --now {units.replace('@.', '@*.')}", needed=False)
    for path, state in installation.remove().items():
        print(f"/{path}: {'left as it is: changed by hand' if state is State.CHANGED else 'removed'}")
    if _systemd_runs(options):
        _run("systemctl daemon-reload", needed=False)
    print(
        "kept: /etc/gpuwarden, /var/lib/gpuwarden, the users. Take gpuwarden's scripts out of slurm.conf: a missing prolog drains the node"
    )
    return 0


def _systemd_runs(options: argparse.Namespace) -> bool:
    """True if systemd runs and the installation is for this root."""
    return bool(options.root == Path("/")) and Path("/run/systemd/system").is_dir()


def _commands() -> Iterator[str]:
    yield "systemd-sysusers /etc/sysusers.d/gpuwarden.conf"
    yield "systemd-tmpfiles --create /etc/tmpfiles.d/gpuwarden.conf"
    yield "systemctl daemon-reload"
    yield f"systemctl enable {SERVICE}"
    yield f"systemctl start {' '.join(sockets())}"
    yield f"systemctl restart {SERVICE}"


def _run(command: str, *, needed: bool = True) -> None:
    print(f"$ {command}", flush=True)
    try:
        done = subprocess.run(shlex.split(command), stdin=subprocess.DEVNULL, timeout=_RESPONSE_WITHIN, check=False)  # noqa: S603 - constants
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandError(f"{command}: {error}; the files are written: run it yourself", UNAVAILABLE) from error
    if done.returncode and needed:
        raise CommandError(f"{command}: exit code {done.returncode}; the files are written, see above", UNAVAILABLE)


def _as_root() -> None:
    if os.geteuid() != 0:
        raise CommandError("run as root: it writes units of systemd", NOT_ALLOWED)
