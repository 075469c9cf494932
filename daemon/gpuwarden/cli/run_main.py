"""What `gpuwarden run` does."""

from __future__ import annotations

import argparse
import os

from gpuwarden.base.paths import LEDGER
from gpuwarden.base.sd_notify import ServiceManager
from gpuwarden.cli.ledger_version import refuse_another_major
from gpuwarden.cli.next_steps import next_steps
from gpuwarden.cli.parser import CommandError
from gpuwarden.cli.sources import configuration, faulty, loaded, sources
from gpuwarden.cli.start_configuration import remember, start_configuration
from gpuwarden.cli.web_config import check_web_config
from gpuwarden.config.model import Config, ConfigError
from gpuwarden.config.sources import Sources
from gpuwarden.engine.reload import ReloadError
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
