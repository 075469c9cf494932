"""`gpuwarden inject`: faults for simulated GPUs. A daemon with real GPUs refuses."""

from __future__ import annotations

import argparse

from gpuwarden.cli.client import order
from gpuwarden.cli.parser import Parser
from gpuwarden_collectors.nvml.simulated_faults import FAULTS

HELP = """
Injects a fault into a simulated GPU (gpuwarden run --simulate N), to see how the daemon judges it. Real GPUs are never
touched, and nothing is written to the kernel log.

examples:
  gpuwarden inject --gpu 3 xid 79            GPU 3 falls off the bus: the node is a failure
  gpuwarden inject --gpu 0 pcie-width 4      a warning, after 4 minutes
  gpuwarden inject driver-gone
  gpuwarden inject --gpu 3 clear             ends the faults of one GPU
  gpuwarden inject clear                     ends all

Once its faults are cleared, a GPU answers again. A latched failure, such as that of an Xid, also needs gpuwarden ack FINDING.
"""


def arguments(parser: Parser) -> None:
    parser.add_argument(
        "--gpu", metavar="N", type=int, help="number of the simulated GPU; not for faults of the driver"
    )
    parser.add_argument(
        "fault", metavar="FAULT", nargs="+", help="the fault, and its number if it takes one (see below)"
    )
    parser.add_run_dir()
    faults = {f"{name} {kind.parameter}".strip(): kind.help for name, kind in FAULTS.items()}
    listed = "\n".join(f"  {name:<22} {text}" for name, text in (faults | {"clear": "faults end"}).items())
    parser.epilog = f"{parser.epilog}\n\nfaults:\n{listed}"


def main(options: argparse.Namespace) -> int:
    return order(options, "inject", fault=options.fault, gpu=options.gpu)
