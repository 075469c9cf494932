"""`gpuwarden test`: an active test of this node's GPUs."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpuwarden.base.background import boottime
from gpuwarden.cli.client import Daemon
from gpuwarden.cli.parser import TRY_AGAIN, UNAVAILABLE, UNKNOWN, CommandError, Parser
from gpuwarden.cli.sources import configuration
from gpuwarden.cli.text import clean
from gpuwarden.config.model import Config
from gpuwarden.features.active_test.options import ActiveTestOptions
from gpuwarden_collectors.active_test.level import Level

if TYPE_CHECKING:  # loaded only once the configuration is known to have no fault
    from gpuwarden.features.active_test.tester.report import Report

HELP = """
Tests the GPUs of this node: memory with patterns, compute with known results, PCIe, reads between GPUs. A GPU that is in use
is not tested.

levels: gate, a moment; quick, some seconds; standard, about a minute, with reads between GPUs. quick and standard need all
memory and refuse to run where a job could get a GPU during the test: exclude or drain the node first, or run the test in an
exclusive job with all GPUs. gate runs there too, and leaves 2 GiB of memory free.

--submit tests nothing by itself: it submits an exclusive Slurm job in test.partition that tests this node while it is idle and
that every other job preempts. There is at most one such job for each node, test.at_once in the fleet, and one in test.every.
gpuwarden-test.timer runs it on each node. Its exit code is 0 when a job was submitted, 3 when no test is wanted now, 64 when the
setup is incomplete; it prints the reason.

exit code: 0 nothing found, which does not prove that the GPUs are healthy; 1 warning; 2 failure; 3 no verdict (busy, disturbed,
interrupted, unsupported and others: the output shows which); 64 when an option or the configuration has a fault. With several
GPUs the worst result decides: failure, no verdict, warning, nothing found

examples:
  gpuwarden test --level gate
  gpuwarden exclude --reason "testing" && gpuwarden test --level standard
  gpuwarden test --gpu 3 --gpu 0000:4e:00.0 --json
  srun --exclusive --gres=gpu:8 gpuwarden test
  gpuwarden test --submit
"""


def arguments(parser: Parser) -> None:
    parser.add_argument(
        "--level",
        choices=[level.value for level in Level],
        help="how much is tested (default: quick; with --submit: test.level)",
    )
    parser.add_argument(
        "--gpu",
        metavar="G",
        action="append",
        default=[],
        help="test only this GPU: UUID, index or PCI address; may be repeated (default: all)",
    )
    parser.add_json()
    parser.add_argument(
        "--i-know-nobody-is-here",
        action="store_true",
        help="test all memory on a host without a scheduler; you make sure that nobody starts work",
    )
    parser.add_argument(
        "--submit", action="store_true", help="submit a Slurm job that tests this node while it is idle, then exit"
    )
    parser.add_argument(
        "--of-idle-job",
        action="store_true",
        help="for that job: test only if a test is due and fewer than test.at_once nodes are being tested",
    )
    parser.add_argument(
        "--of-ended-job",
        action="store_true",
        help="for Slurm's epilog: test at level gate those GPUs of the ended job that are due",
    )
    parser.add_config()
    parser.add_run_dir()


def main(options: argparse.Namespace) -> int:
    options.simulate = None
    config = configuration(options, os.environ)
    if options.submit:
        from gpuwarden.features.active_test.idle.command import submit  # noqa: PLC0415 - it loads what a test does not need

        return submit(options, config, daemon_call(config))
    options.level = Level.GATE.value if options.of_ended_job else options.level or Level.QUICK.value
    from gpuwarden.features.active_test.tester.report import document  # noqa: PLC0415 - a fault in the configuration is reported before asyncio is loaded
    from gpuwarden.features.active_test.tester.text import shown  # noqa: PLC0415

    report = _report(options, config)
    if options.json:
        print(json.dumps(document(report), indent=2))
    else:
        print("\n".join(map(clean, shown(report))))
    return report.verdict.exit_code


def _report(options: argparse.Namespace, config: Config) -> Report:
    import asyncio  # noqa: PLC0415 - as above

    from gpuwarden.features.active_test.idle.wanted import CannotSubmit, NotNow, need_turn, of_ended_job  # noqa: PLC0415
    from gpuwarden.features.active_test.tester.ended_job import NoEndedJob, ended_job  # noqa: PLC0415 - as above
    from gpuwarden.features.active_test.tester.host_order import NoSuchOrder, order_of  # noqa: PLC0415 - as above
    from gpuwarden.features.active_test.tester.lease import DaemonUnreached  # noqa: PLC0415
    from gpuwarden.features.active_test.tester.run import ActiveTest  # noqa: PLC0415
    from gpuwarden.features.active_test.tester.selection import UnknownGpu  # noqa: PLC0415
    from gpuwarden_collectors.slurm.options import conf_path  # noqa: PLC0415

    async def run() -> Report:
        order = order_of(
            config,
            options.level,
            options.gpu,
            daemon_call(config),
            _progress(),
            nobody_here=options.i_know_nobody_is_here,
        )
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
    """A verb of the daemon, with the errors that the test knows."""
    from gpuwarden.features.active_test.tester.lease import DaemonAway, DaemonUnreached  # noqa: PLC0415 - as above

    daemon = Daemon.chosen(config.run.dir)

    def call(verb: str, **arguments: object) -> Any:
        try:
            return daemon.call(verb, **arguments)
        except CommandError as error:
            kind = DaemonAway if error.code in (UNAVAILABLE, TRY_AGAIN) else DaemonUnreached
            raise kind(str(error)) from error

    return call


def _progress() -> Callable[[int, str], None]:
    """Lines on a terminal; nothing where nobody watches."""
    if not sys.stderr.isatty():
        return lambda _index, _phase: None
    return lambda index, phase: print(f"GPU {index}: {clean(phase)}", file=sys.stderr, flush=True)
