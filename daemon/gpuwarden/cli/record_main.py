"""What `gpuwarden record` does."""

from __future__ import annotations

import argparse
import os

from gpuwarden.base.paths import make_private
from gpuwarden.cli.client import Daemon, NoDaemon
from gpuwarden.cli.parser import CANNOT_CREATE, TRY_AGAIN, CommandError
from gpuwarden.cli.record_through import RecordingEnded, record_through
from gpuwarden.cli.sources import configuration
from gpuwarden.config.model import Config
from gpuwarden.oneshot.record import RecordError, record


def main(options: argparse.Namespace) -> int:
    config = configuration(options, os.environ, secure=make_private)
    try:
        if not (options.simulate is None and _through_daemon(options, config)):
            _alone(options, config)
    except FileExistsError as error:
        raise CommandError(
            f"{options.output} exists already: name another file, or remove it", CANNOT_CREATE
        ) from error
    except OSError as error:
        raise CommandError(f"cannot write {options.output}: {error.strerror}", CANNOT_CREATE) from error
    return 0


def _through_daemon(options: argparse.Namespace, config: Config) -> bool:
    """Record through the running daemon. Returns False if no daemon runs."""
    if options.output.exists():
        raise FileExistsError
    daemon = Daemon.chosen(config.run.dir)
    try:
        first = daemon.call("record")
    except NoDaemon:
        return False
    hosts = (config.node, os.uname().nodename) if options.anonymise else None
    try:
        record_through(daemon, first, options.output, options.seconds, hosts=hosts)
    except RecordingEnded as error:
        raise CommandError(f"the recording ended early: {error}", TRY_AGAIN) from error
    return True


def _alone(options: argparse.Namespace, config: Config) -> None:

    try:
        record(config, options.output, options.seconds, anonymise=options.anonymise)
    except RecordError as error:
        raise CommandError(f"the recording ended early: {error}", CANNOT_CREATE) from error
