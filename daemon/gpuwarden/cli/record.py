"""`gpuwarden record`: what the collectors see, into a file."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from gpuwarden.cli.parser import CommandError, Parser, folder
from gpuwarden.cli.sources import configuration
from gpuwarden.durations import parse_duration
from gpuwarden.places import make_private

HELP = """
Writes a trace of what this node's GPUs, PCI bus and kernel log say, for `gpuwarden replay` to judge: here or elsewhere,
now or by other rules. It reads for itself, beside a daemon or without one.

--anonymise puts other names in the place of UUIDs, serial numbers, pids, boot ids and the name of this host; the same
name gets the same one throughout a trace. PCI addresses, models and versions stay.

exit code: 0 at the end of its time or after SIGINT or SIGTERM; 73 when the file cannot be written

examples:
  gpuwarden record -o node7.trace --for 1h
  gpuwarden record -o for-the-vendor.trace --anonymise --for 10m
  gpuwarden record -o try.trace --simulate 8 --for 1m
"""

CANNOT_CREATE = 73  # EX_CANTCREAT of sysexits.h


def arguments(parser: Parser) -> None:
    parser.add_argument("-o", "--output", metavar="F", type=Path, required=True, help="a new file, gzipped")
    parser.add_argument(
        "--for", metavar="DURATION", dest="seconds", type=_duration, help="how long (default: until interrupted)"
    )
    parser.add_argument("--anonymise", action="store_true", help="name no board, process or host")
    parser.add_config()
    parser.add_simulate()
    parser.add_argument(
        "--state-dir", metavar="D", type=folder, help="where the ledger is (default: /var/lib/gpuwarden)"
    )


def _duration(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main(options: argparse.Namespace) -> int:
    config = configuration(options, os.environ, secure=make_private)
    from gpuwarden.record import RecordError, record  # noqa: PLC0415 - a fault in the configuration is told before asyncio is loaded

    try:
        record(config, options.output, options.seconds, anonymise=options.anonymise)
    except FileExistsError as error:
        raise CommandError(
            f"{options.output} is there already: name another file, or remove it", CANNOT_CREATE
        ) from error
    except OSError as error:
        raise CommandError(f"cannot write {options.output}: {error.strerror}", CANNOT_CREATE) from error
    except RecordError as error:
        raise CommandError(f"the recording ended early: {error}", CANNOT_CREATE) from error
    return 0
