"""`gpuwarden doctor`: whether it can do its work on this host, and what to change."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from gpuwarden.cli.client import Daemon
from gpuwarden.cli.parser import CommandError, Parser
from gpuwarden.cli.sources import faulty, sources
from gpuwarden.cli.text import clean
from gpuwarden.config import Config, ConfigError, load
from gpuwarden.doctor.row import Grade, Row, fail, ok, warn, worst

HELP = """
Looks at this host and at Slurm, and says what keeps gpuwarden from doing its work and what to change. Changes nothing.

Each row is ok, warn or fail; run it as the user that the daemon runs as.
exit code: 0 all is ok, 1 something warns, 2 something fails

examples:
  gpuwarden doctor
  gpuwarden doctor --json
"""

_EXIT = {Grade.OK: 0, Grade.WARN: 1, Grade.FAIL: 2}


def arguments(parser: Parser) -> None:
    parser.add_config()
    parser.add_run_dir()
    parser.add_json()


def main(options: argparse.Namespace) -> int:
    try:
        config, rows = load(sources(options, os.environ)), [ok("host", "configuration", "read without a fault")]
    except ConfigError as error:
        config = Config()
        told = str(faulty(error)).replace("\n", " ")
        rows = [
            fail("host", "configuration", told, "correct it: gpuwarden config check; all below goes by the defaults")
        ]
    rows += [_daemon(options, config), *_examined(config)]
    if options.json:
        document = {"worst": worst(rows).value, "rows": [asdict(row) for row in rows]}
        print(json.dumps(document, indent=2))
    else:
        print("\n".join(_shown(rows)))
    return _EXIT[worst(rows)]


def _examined(config: Config) -> list[Row]:
    from gpuwarden.doctor.examination import examine  # noqa: PLC0415 - help is told without loading collectors

    return asyncio.run(examine(config))


def _daemon(options: argparse.Namespace, config: Config) -> Row:
    folder = options.run_dir or config.run.dir
    try:
        said = Daemon(folder, folder).ask("status")
    except CommandError as error:
        return warn("host", "daemon", str(error), "start it: systemctl start gpuwarden")
    health = said.get("status", "unknown") if isinstance(said, dict) else "unknown"
    return ok("host", "daemon", f"answers at {folder}: {health}")


def _shown(rows: Sequence[Row]) -> Iterator[str]:
    width = max(len(f"{row.area} {row.check}") for row in rows)
    for row in rows:
        yield f"{row.grade.value:<4}  {f'{row.area} {row.check}':<{width}}  {clean(row.found)}"
        if row.to_do:
            yield f"      {'':<{width}}  to do: {clean(row.to_do)}"
