"""`gpuwarden test`: an active test of this node's GPUs."""

from __future__ import annotations

from gpuwarden.cli.parser import Parser
from gpuwarden_collectors.active_test.level import Level

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

MAIN = "gpuwarden.features.active_test.command_main"


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
