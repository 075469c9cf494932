"""What `gpuwarden run` does."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import replace
from pathlib import Path

from gpuwarden.base.paths import LEDGER, make_private
from gpuwarden.base.sd_notify import ServiceManager
from gpuwarden.cli.parser import CommandError
from gpuwarden.cli.sources import configuration, faulty, loaded, sources
from gpuwarden.cli.web_config import check_web_config
from gpuwarden.config.last_good import NoneKept, keep, kept
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
    yield "These GPUs are SIMULATED. In another terminal:"
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


def start_configuration(options: argparse.Namespace, environment: MutableMapping[str, str]) -> Config:
    """Raises CommandError. An interactive command fails at a fault; so does a pod, which stops its rollout."""
    if options.simulate is not None or not environment.get("NOTIFY_SOCKET"):
        config = configuration(options, environment, secure=make_private)
        check_web_config(config)
        return config
    origin = sources(options, environment)
    try:
        read = origin.with_files_read()
        config = loaded(read)
    except ConfigError as error:
        config = _last_good(origin, error)
        _check_web_config(config, origin)
        return config
    _check_web_config(config, origin)
    remember(read)
    return config


def _check_web_config(config: Config, origin: Sources) -> None:
    """Fail for a fault of the web-config file only at the first start ever; later ones serve nothing until it is fixed.

    Raises CommandError.
    """
    try:
        check_web_config(config)
    except CommandError as fault:
        try:
            kept(origin)
        except NoneKept:
            raise fault from None
        print(f"gpuwarden: {fault}\n  started without its web server", file=sys.stderr)


def remember(read: Sources) -> None:
    """Keep a copy of the files as the last good ones. Prints an error, because the daemon works without."""
    try:
        keep(read, read.files or ())
    except OSError as error:
        print(f"gpuwarden: the last good configuration is not kept: {error}", file=sys.stderr)


def _last_good(origin: Sources, error: ConfigError) -> Config:
    fault = str(faulty(error))
    try:
        config = loaded(kept(origin))
    except NoneKept as none:
        raise CommandError(f"{fault}\n  and there is no last good configuration to start with: {none}") from error
    except ConfigError as older:
        raise CommandError(f"{fault}\n  and the last good one does not fit this version: {older}") from error
    print(f"gpuwarden: {fault}\n  started with the last good configuration", file=sys.stderr)
    return replace(config, fault=" ".join(fault.split()))
