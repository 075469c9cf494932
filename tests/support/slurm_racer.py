"""A process in which gpuwarden fails on many nodes at once: python -m support.slurm_racer CONF FIRST LAST

Writes a line for each node with what came of it, when all of its nodes have settled.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from gpuwarden.features.slurm.node_actuator import SlurmActuator
from gpuwarden_collectors.base import host_clock
from gpuwarden_collectors.slurm.client import SlurmClient
from gpuwarden_collectors.slurm.options import SlurmOptions
from support.slurm_reconciler import a_reconciler, exclude


async def fail(conf: Path, node: str) -> str:
    """Make one attempt to drain the node at once: no chance spreads the attempts."""
    options = SlurmOptions(enabled=True, node=node, conf=conf, timeout=120.0)
    client = SlurmClient(conf=options.conf, timeout=options.timeout, node=node)
    actuator = SlurmActuator(options, client, clock=host_clock)
    outcome, _ = await a_reconciler(actuator, recount_after=2.0).attempt(exclude(key=node))
    return f"{node} {outcome.result} {outcome.text}"


async def main(conf: str, first: str, last: str) -> None:
    nodes = [f"f{number}" for number in range(int(first), int(last) + 1)]
    print(*await asyncio.gather(*(fail(Path(conf), node) for node in nodes)), sep="\n")  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
