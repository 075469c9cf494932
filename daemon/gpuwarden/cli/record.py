"""`gpuwarden record`: the collectors' readings, into a file."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from gpuwarden.base.paths import make_private
from gpuwarden.cli.client import Daemon, NoDaemon
from gpuwarden.cli.parser import TRY_AGAIN, CommandError, Parser, duration, folder
from gpuwarden.cli.sources import configuration
from gpuwarden.config.model import Config

HELP = """
Writes a trace of the readings of this node's GPUs, PCI bus and kernel log. `gpuwarden replay` judges it, here or on another
host, by the same rules or others. A running daemon supplies its own readings, so that the GPUs are not read twice; without a
daemon, and with --simulate, this command reads them itself.

--anonymise substitutes other names for UUIDs, serial numbers, pids, boot ids, users, jobs, file servers and the name of
this host, and leaves out the output of site checks; a name gets the same substitute throughout a trace. PCI addresses, mount
points, models and versions stay.

exit code: 0 at the end of its time or after SIGINT or SIGTERM; 73 when the file cannot be written; 69, 75 or 77 when the
daemon is gone, busy or does not allow it

examples:
  gpuwarden record -o node7.trace --for 1h
  gpuwarden record -o for-the-vendor.trace --anonymise --for 10m
  gpuwarden record -o try.trace --simulate 8 --for 1m
"""

CANNOT_CREATE = 73  # EX_CANTCREAT of sysexits.h


def arguments(parser: Parser) -> None:
    parser.add_argument("-o", "--output", metavar="F", type=Path, required=True, help="the file to create (gzip)")
    parser.add_argument(
        "--for",
        metavar="DURATION",
        dest="seconds",
        type=duration(),
        help="how long to record (default: until interrupted)",
    )
    parser.add_argument(
        "--anonymise", action="store_true", help="replace the names of boards, processes, users and hosts"
    )
    parser.add_config()
    parser.add_simulate()
    parser.add_run_dir()
    parser.add_argument(
        "--state-dir", metavar="D", type=folder, help="directory of the ledger (default: /var/lib/gpuwarden)"
    )


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
    """False if none runs."""
    from gpuwarden.cli.record_through import RecordingEnded, record_through  # noqa: PLC0415 - not needed without a daemon

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
    from gpuwarden.oneshot.record import RecordError, record  # noqa: PLC0415 - a fault in the configuration is reported before asyncio is loaded

    try:
        record(config, options.output, options.seconds, anonymise=options.anonymise)
    except RecordError as error:
        raise CommandError(f"the recording ended early: {error}", CANNOT_CREATE) from error
