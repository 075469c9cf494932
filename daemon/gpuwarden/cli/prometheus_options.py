"""The options of commands that query Prometheus: its address, and files with credentials. None takes a secret itself."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwarden.cli.parser import CommandError, Parser, duration
from gpuwarden.cli.text import clean

if TYPE_CHECKING:  # it loads TLS, which a command without Prometheus does not need
    from gpuwarden.prometheus.access import Access

URL = "http://127.0.0.1:9090"
_FILES = {
    "token": "a bearer token",
    "basic": "one line USER:PASSWORD",
    "ca": "certificates (PEM) to trust instead of the system's",
}
"""Options that name a file, and what it holds."""


def add_files(parser: Parser) -> None:
    for name, holds in _FILES.items():
        parser.add_argument(
            f"--{name}-file",
            metavar="F",
            type=Path,
            help=f"file with {holds} (default: $PROMETHEUS_{name.upper()}_FILE)",
        )


def add_timeout(parser: Parser, counted: str) -> None:
    parser.add_argument(
        "--timeout",
        metavar="T",
        type=duration("100ms", "7d"),
        default="30s",
        help=f"time limit for {counted} (default: 30s)",
    )


def prometheus_access(options: argparse.Namespace, environment: Mapping[str, str]) -> Access:
    """Return how the options and the environment reach Prometheus. Raises CommandError."""
    from gpuwarden.prometheus.access import AccessError, Hints, access  # noqa: PLC0415 - as above

    hints = Hints(
        address="is the address right? --prometheus URL, or PROMETHEUS_URL",
        credentials="give --token-file or --basic-file",
        time="--timeout allows more",
    )
    variables = {name: environment.get(f"PROMETHEUS_{name.upper()}_FILE") for name in _FILES}
    given = {name: getattr(options, f"{name}_file") for name in _FILES}
    chosen = {name: given[name] or (Path(variable) if variable else None) for name, variable in variables.items()}
    if given["token"] or given["basic"]:  # options override the environment
        chosen |= {name: given[name] for name in ("token", "basic")}
    try:
        return access(options.prometheus or environment.get("PROMETHEUS_URL") or URL, **chosen, hints=hints)
    except AccessError as error:
        raise CommandError(clean(str(error))) from error
