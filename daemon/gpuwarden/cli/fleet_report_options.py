"""The options of `gpuwarden fleet --report`."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

from gpuwarden.cli.parser import Parser, duration

BY = ("cluster", "rack")
"""Default labels by which a report groups nodes."""


def arguments(parser: Parser) -> None:
    parser.add_argument(
        "--report",
        metavar="T",
        type=duration("10m", "1000d"),
        nargs="?",
        const="30d",
        help="instead of the table: availability, failures, time to repair and GPU-hours lost in the last T (30d), by cause, model, "
        "board and rack",
    )
    parser.add_argument(
        "--until", metavar="TIME", type=_time, help="end of the report, such as 2026-11-01 (UTC), instead of now"
    )
    parser.add_argument(
        "--by",
        metavar="LABEL,…",
        type=lambda text: [name for name in text.split(",") if name],
        help="labels of targets or of gpuwarden_machine_info by which the report groups nodes, beside the model (default: "
        + ",".join(BY)
        + ")",
    )
    parser.add_argument(
        "--html",
        metavar="F",
        type=Path,
        help="write the report to the file F, one HTML page with plots that loads nothing else",
    )


def _time(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected a date or a time such as 2026-11-01 or 2026-11-01T06:00, found {text[:60]!r}"
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
