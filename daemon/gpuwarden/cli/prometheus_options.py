"""The options of commands that query Prometheus: its address, and files with credentials; no option takes a secret."""

from __future__ import annotations

from pathlib import Path

from gpuwarden.cli.parser import Parser, duration

URL = "http://127.0.0.1:9090"
FILES = {
    "token": "a bearer token",
    "basic": "one line USER:PASSWORD",
    "ca": "certificates (PEM) to trust instead of the system's",
}
"""Options that name a file, with the file's content."""


def add_files(parser: Parser) -> None:
    for name, holds in FILES.items():
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
