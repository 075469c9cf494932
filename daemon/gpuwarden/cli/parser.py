"""The parser, exit codes and errors of all verbs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from gpuwarden.base.durations import parse_duration

# sysexits.h
USAGE, UNAVAILABLE, CANNOT_CREATE, TRY_AGAIN, NOT_ALLOWED = 64, 69, 73, 75, 77

HEALTH_CODES = {"healthy": 0, "warning": 1, "failure": 2}
UNKNOWN = 3  # any other health, or none

_SIMULATED_MAX = 64  # more than any host has


class CommandError(Exception):
    """Ends the command with `code`. The message has the failed action and the remedy."""

    def __init__(self, message: str, code: int = USAGE) -> None:
        super().__init__(message)
        self.code = code


class Parser(argparse.ArgumentParser):
    """An argparse parser that exits with 64 on bad usage, because 2 means that GPUs have failed."""

    def __init__(self, prog: str, description: str, epilog: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: {message}\n")

    def add_run_dir(self) -> None:
        self.add_argument(
            "--run-dir",
            metavar="D",
            type=folder,
            help="run directory of the daemon (default: $GPUWARDEN_RUN_DIR, else /run/gpuwarden)",
        )

    def add_json(self) -> None:
        self.add_argument("--json", action="store_true", help="JSON instead of text")

    def add_config(self) -> None:
        self.add_argument(
            "--config",
            metavar="F",
            type=Path,
            help="configuration file; conf.d/*.toml beside it is read too (default: /etc/gpuwarden/gpuwarden.toml)",
        )

    def add_simulate(self) -> None:
        self.add_argument(
            "--simulate",
            metavar="N",
            type=_count,
            help=f"1 to {_SIMULATED_MAX} simulated GPUs instead of this host's; reads neither /etc/gpuwarden nor "
            "GPUWARDEN_* variables, writes to a folder of this user below the temporary directory, and uses no scheduler, "
            "notification, cloud notice or check of the host, even if --config has one",
        )


def duration(least: str = "0s", most: str = "36500d") -> Callable[[str], float]:
    """Return an argparse type for durations, in seconds, within these bounds."""

    def parse(text: str) -> float:
        try:
            seconds = parse_duration(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        if not parse_duration(least) <= seconds <= parse_duration(most):
            raise argparse.ArgumentTypeError(f"expected {least} to {most}, found {text!r}")
        return seconds

    return parse


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 3 and 0 < int(text) <= _SIMULATED_MAX):
        raise argparse.ArgumentTypeError(f"expected 1 to {_SIMULATED_MAX}, found {text!r}")
    return int(text)


def folder(text: str) -> Path:
    """Return an absolute path; a relative one starts at the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("expected a folder, found nothing")
    return Path(text).absolute()
