"""What `gpuwarden doctor` does."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from gpuwarden.cli.client import Daemon
from gpuwarden.cli.parser import NOT_ALLOWED, CommandError
from gpuwarden.cli.sources import faulty, loaded, sources
from gpuwarden.cli.text import clean
from gpuwarden.config.model import Config, ConfigError
from gpuwarden.doctor.as_daemon import become_daemon, become_user_of_unit, let_read
from gpuwarden.doctor.examination import examine
from gpuwarden.doctor.row import Grade, Row, fail, ok, warn, worst
from gpuwarden.doctor.running import Running, daemon
from gpuwarden.doctor.unit import identity

_EXIT = {Grade.OK: 0, Grade.WARN: 1, Grade.FAIL: 2}


def main(options: argparse.Namespace) -> int:
    try:
        config = loaded(sources(options, os.environ))
        rows = [ok("configuration", "read without a fault")]
    except ConfigError as error:
        config = Config()
        text = str(faulty(error)).replace("\n", " ")
        rows = [fail("configuration", text, "correct it (gpuwarden config check); the rows below use the defaults")]
    running = _running(options.run_dir or config.run.dir)
    rows.append(daemon(running, config))
    if options.state_dir is None:
        config = _with_state_of(running, config)

    try:
        if running.status:
            become_daemon(running.pid, running.uid)
        else:
            become_user_of_unit(identity())
    except (OSError, LookupError, ValueError) as error:
        to_do = "run the doctor as the daemon's user: the rows below are about root"
        rows.append(warn("user", f"cannot judge as the daemon's user: {error}", to_do))
    rows[0] = _read_again(options, rows[0])
    rows += asyncio.run(examine(config, running))
    if options.json:
        document = {"worst": worst(rows).value, "rows": [asdict(row) for row in rows]}
        print(json.dumps(document, indent=2))
    else:
        print("\n".join(_shown(rows)))
    return _EXIT[worst(rows)]


def _with_state_of(running: Running, config: Config) -> Config:
    """Return the configuration with the state directory of the running daemon, which an option of its unit may name."""
    folder = running.status.get("state_dir")
    return replace(config, state=replace(config.state, dir=Path(folder))) if isinstance(folder, str) else config


def _read_again(options: argparse.Namespace, row: Row) -> Row:
    """The row about the configuration, read again with the daemon's rights, which may be less than root's."""
    _layers, faults = sources(options, os.environ).read()
    if row.grade is not Grade.OK or not faults:
        return row
    text = "; ".join(map(str, faults))
    return fail("configuration", f"uid {os.geteuid()}, the daemon's user: {text}", f"{let_read()}; gpuwarden reload")


def _running(folder: Path) -> Running:
    """The listening process and its status."""
    daemon = Daemon(folder, folder)
    status, why, refused = None, f"the process that answers at {folder} is not gpuwarden of this version", False
    try:
        status = daemon.call("status")
    except CommandError as error:
        why, refused = str(error), error.code == NOT_ALLOWED
    pid, uid = daemon.peer()
    if not isinstance(status, dict):
        return Running(folder=folder, status={}, pid=pid, uid=uid, why=why, refused=refused)
    return Running(folder=folder, status=status, pid=pid, uid=uid)


def _shown(rows: Sequence[Row]) -> Iterator[str]:
    width = max(len(f"{row.area} {row.check}") for row in rows)
    for row in rows:
        yield f"{row.grade.value:<4}  {f'{row.area} {row.check}':<{width}}  {clean(row.found)}"
        if row.to_do:
            yield f"      {'':<{width}}  to do: {clean(row.to_do)}"
