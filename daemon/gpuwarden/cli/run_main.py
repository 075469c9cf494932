"""What `gpuwarden run` does."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpuwarden.base.paths import LEDGER
from gpuwarden.base.sd_notify import ServiceManager
from gpuwarden.cli.parser import CommandError
from gpuwarden.cli.sources import configuration, faulty, loaded, sources
from gpuwarden.cli.start_configuration import remember, start_configuration
from gpuwarden.cli.web_config import check_web_config
from gpuwarden.config.model import Config, ConfigError
from gpuwarden.config.sources import Sources
from gpuwarden.engine.reload import ReloadError
from gpuwarden.ledger.errors import LedgerError, LedgerOfAnotherMajor
from gpuwarden.ledger.reader import read_only
from gpuwarden.runtime.serve import serve


def main(options: argparse.Namespace) -> int:
    supervised = bool(os.environ.get("NOTIFY_SOCKET"))
    try:
        config = start_configuration(options, os.environ)
        refuse_another_major(config.state.dir / LEDGER)
    except CommandError:
        ServiceManager.of(os.environ).turn_away()
        raise
    if options.simulate is not None:
        print(*next_steps(config, os.environ), sep="\n", flush=True)

    return serve(config, lambda: _again(options, supervised=supervised))


def _again(options: argparse.Namespace, *, supervised: bool) -> Config:
    """Read the configuration again. Raises ReloadError."""
    try:
        config, read = _read_again(options)
        check_web_config(config)
    except CommandError as error:
        raise ReloadError(str(error)) from error
    if supervised and read is not None:
        remember(read)
    return config


def _read_again(options: argparse.Namespace) -> tuple[Config, Sources | None]:
    """Return the configuration from the present files. Raises CommandError if it has a fault."""
    if options.simulate is not None:
        return configuration(options, os.environ), None
    try:
        read = sources(options, os.environ).with_files_read()
        return loaded(read), read
    except ConfigError as error:
        raise faulty(error) from error


WITHIN = 2.0
"""Time limit in seconds. With a hung disk the daemon starts anyway, judges from memory, and reports it."""


def refuse_another_major(path: Path) -> None:
    """Raises CommandError for another major version. The daemon runs with any other error of the ledger."""
    refused: list[LedgerOfAnotherMajor] = []
    thread = threading.Thread(target=_check, args=(path, refused), name="ledger version", daemon=True)
    thread.start()
    thread.join(WITHIN)
    if refused:
        raise CommandError(str(refused[0]))


def _check(path: Path, refused: list[LedgerOfAnotherMajor]) -> None:
    try:
        read_only(path).close()
    except LedgerOfAnotherMajor as error:
        refused.append(error)
    except LedgerError:
        return


CONTAINER = "container"
"""Environment variable that systemd and the image (packaging/Dockerfile) set in a container."""


def next_steps(config: Config, environment: Mapping[str, str]) -> Iterator[str]:
    """Yields lines about how to try a simulation."""
    command = _command(environment)
    folder = shlex.quote(str(config.run.dir))
    yield "These GPUs are SIMULATED: no scheduler, notification, cloud notice or check of the host is used."
    yield "In another terminal:"
    yield f"  {command} status --run-dir {folder}"
    yield f"  {command} inject --run-dir {folder} --gpu 0 lost"
    if port := config.publish.listen.port:
        yield f"  curl -s http://localhost:{port}/heartbeat"


def _command(environment: Mapping[str, str]) -> str:
    """The command as it was called, or its bare name if the shell finds it.

    In a container it starts with `docker exec`; the default hostname there identifies the container.
    """
    name = Path(sys.argv[0]).name
    command = name if shutil.which(name, path=environment.get("PATH", "")) else shlex.quote(sys.argv[0])
    return f"docker exec {os.uname().nodename} {command}" if environment.get(CONTAINER) else command
