"""The implementation of `gpuwarden test`."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpuwarden.base.background import boottime
from gpuwarden.cli.client import Daemon
from gpuwarden.cli.parser import TRY_AGAIN, UNAVAILABLE, UNKNOWN, CommandError
from gpuwarden.cli.sources import configuration, filed_run_dir
from gpuwarden.cli.text import clean
from gpuwarden.config.model import Config
from gpuwarden.features.active_test.idle.command import submit
from gpuwarden.features.active_test.idle.wanted import CannotSubmit, NotNow, need_turn, of_ended_job
from gpuwarden.features.active_test.options import ActiveTestOptions
from gpuwarden.features.active_test.tester.ended_job import NoEndedJob, ended_job
from gpuwarden.features.active_test.tester.host_order import NoSuchOrder, order_of
from gpuwarden.features.active_test.tester.lease import DaemonAway, DaemonUnreached
from gpuwarden.features.active_test.tester.report import Report, document
from gpuwarden.features.active_test.tester.run import ActiveTest
from gpuwarden.features.active_test.tester.selection import UnknownGpu
from gpuwarden.features.active_test.tester.text import shown
from gpuwarden_collectors.active_test.level import Level
from gpuwarden_collectors.slurm.options import conf_path


def main(options: argparse.Namespace) -> int:
    options.simulate = None
    config = configuration(options, os.environ)
    if options.submit:
        return submit(options, config, daemon_call(config))
    options.level = Level.GATE.value if options.of_ended_job else options.level or Level.QUICK.value

    report = _report(options, config)
    if options.json:
        print(json.dumps(document(report), indent=2))
    else:
        print("\n".join(map(clean, shown(report))))
    return report.verdict.exit_code


def _report(options: argparse.Namespace, config: Config) -> Report:
    async def run() -> Report:
        order = order_of(
            config,
            options.level,
            options.gpu,
            daemon_call(config),
            _progress(),
            nobody_here=options.i_know_nobody_is_here,
        )
        order = replace(order, configured_run_dir=filed_run_dir(options))
        try:
            if options.of_idle_job:
                await need_turn(order, config.of(ActiveTestOptions))
            if options.of_ended_job:
                job = ended_job(os.environ, config.run.dir, conf_path(config.slurm, os.environ), boottime)
                order = await of_ended_job(order, config.of(ActiveTestOptions), job)
            return await ActiveTest(order).run()
        finally:
            if order.asked.slurm is not None:
                await order.asked.slurm.close()

    try:
        return asyncio.run(run())
    except (UnknownGpu, NoSuchOrder) as error:
        raise CommandError(str(error)) from error
    except (NotNow, NoEndedJob, CannotSubmit, DaemonUnreached) as error:
        raise CommandError(f"not tested: {error}", UNKNOWN) from error


def daemon_call(config: Config) -> Callable[..., Any]:
    """Return a function that calls a verb of the daemon and raises the errors that the test handles."""
    daemon = Daemon.chosen(config.run.dir)

    def call(verb: str, **arguments: object) -> Any:
        try:
            return daemon.call(verb, **arguments)
        except CommandError as error:
            kind = DaemonAway if error.code in (UNAVAILABLE, TRY_AGAIN) else DaemonUnreached
            raise kind(str(error)) from error

    return call


def _progress() -> Callable[[int, str], None]:
    """Return a function that prints progress on a terminal, and nothing if stderr is no terminal."""
    if not sys.stderr.isatty():
        return lambda _index, _phase: None
    return lambda index, phase: print(f"GPU {index}: {clean(phase)}", file=sys.stderr, flush=True)
