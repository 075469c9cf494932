"""Implementation of `gpuwarden why`: asks the daemon, else the ledger, within 5 s; with --prometheus asks that."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from gpuwarden.cli.client import CONTROL, DEADLINE, JOB, Daemon, NoDaemon
from gpuwarden.cli.parser import NOT_ALLOWED, CommandError
from gpuwarden.features.why.text import lines, short

Document = dict[str, Any]
_LONGEST = 400
"""Most characters of JOB that are sent."""


def main(options: argparse.Namespace) -> int:
    if options.job is not None and len(options.job) > _LONGEST:
        raise CommandError(f"expected the name of a job, found {len(options.job)} characters")
    if options.prometheus is not None:
        from gpuwarden.features.why.fleet import shown  # noqa: PLC0415 - a job on its node asks no Prometheus

        print(shown(options))
        return 0
    document = _from_daemon(options) if options.state_dir is None else _from_ledger(options.state_dir, options.job)
    if options.json:
        print(json.dumps(document))
    elif options.short:
        print(short(document))
    else:
        print("\n".join(lines(document)))
    return 0


def _from_daemon(options: argparse.Namespace) -> Document:
    """Ask on the control socket, which shows all jobs; without access, on the job socket. Raises CommandError."""
    until = time.monotonic() + DEADLINE
    asked = {"job": options.job, "hint": os.environ.get("SLURM_JOB_ID", "")[:16]}
    try:
        try:
            return _answer(options.run_dir, CONTROL, until, asked)
        except CommandError as error:
            if not isinstance(error, NoDaemon) and error.code != NOT_ALLOWED:
                raise
        return _answer(options.run_dir, JOB, until, asked)
    except NoDaemon as error_of_daemon:
        if options.job is None:
            raise
        try:
            return _from_ledger(None, options.job)
        except CommandError as error:
            raise CommandError(f"{error_of_daemon}, and {error}", error.code) from error


def _answer(run_dir: Path | None, socket: str, until: float, asked: Document) -> Document:
    left = max(until - time.monotonic(), 0.1)
    document: Document = Daemon.chosen(run_dir, deadline=left, socket=socket).call("why", **asked)
    return document


def _from_ledger(state_dir: Path | None, job: str | None) -> Document:
    """Return the record of a job in the ledger. Raises CommandError."""
    if job is None:
        raise CommandError("without a daemon name the job, as in gpuwarden why 4711 --state-dir D")
    from gpuwarden.features.why.offline import record_in  # noqa: PLC0415 - SQLite and cattrs are for this case only

    return record_in(state_dir, job)
