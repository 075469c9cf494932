"""Twenty nodes of a real Slurm fail by one cause: how many are rebooted together and in a day, and what do the others wait for?

    benchmarks/repair_fleet.py [--nodes 20] [--at-once 2] [--per-day 5] [--kill-every 5]

Each node has its daemon and root's helper of repairs, which has Slurm reboot it. The machine of a node is what runs for it: at its reboot daemon
and slurmd end, -9, and start again on another boot id, with a kernel log that has no failure. `--kill-every`: so often, in seconds, another
daemon is killed, -9, at a random moment, and started again. For root, on a machine that can be discarded.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1] / "tests"))

from common import table
from gpuwarden.features.repair.requirement import QUIET_FOR
from support.daemons import RunningDaemon
from support.repair_helper import Helpers, RepairHost, helpers
from support.slurm import Slurm, running
from support.slurm_hosts import SlurmHost

OFF = 5.0
"""Seconds that a machine is down."""
PATIENCE = 900.0
STEADY = 60.0
"""Seconds for which nothing more must begin once the day's repairs are used up."""
BOOT = "{:08x}-0000-4000-8000-000000000001"
REBOOTS = """#!/bin/sh
# A child of slurmd's, or of a shell of it: slurmd's own command has the node's name.
pid=$PPID node=
while [ -z "$node" ] && [ "$pid" -gt 1 ]; do
    node=$(tr '\\0' '\\n' </proc/$pid/cmdline | sed -n '/^-N$/{n;p;}')
    pid=$(sed -n 's/^PPid:[[:space:]]*//p' /proc/$pid/status)
done
echo x >>"ORDERS/$node"
"""


class Node(SlurmHost):
    """A node with its daemon and root's helper."""

    def __init__(self, folder: Path, slurm: Slurm, name: str, made: Helpers, bounds: str) -> None:
        for part in ("daemon", "root"):
            (folder / part).mkdir(parents=True)
        self.root = RepairHost(folder / "root", made)
        scontrol = self.root.folder / "bin/scontrol"
        scontrol.unlink()
        scontrol.symlink_to(shutil.which("scontrol") or "")
        self.root.settings |= {"slurm_conf": str(slurm.conf), "node": name}
        self.bounds = bounds
        super().__init__(folder / "daemon", slurm, name, gpus=4)
        self.seclude()
        self._boots = 0
        self._boot_id = self.boots(BOOT.format(1))
        self.running: RunningDaemon | None = None

    def configure(self, more: str = "", **words: Any) -> None:
        gate = f'[test]\ngate_socket = "{self.folder}/nobody.sock"\n'
        repair = f'[repair]\nsteps = ["reboot"]\nsocket = "{self.root.tell()}"\n{self.bounds}\n'
        # The bounds of repair are measured, not the breaker's own.
        out = more.replace("[breaker]\n", "[breaker]\ncount = 1000\n")
        super().configure(f"{out}{gate}{repair}", **words)

    @property
    def daemon_now(self) -> RunningDaemon:
        assert self.running is not None
        return self.running

    def begins(self) -> None:
        assert self._processes is not None
        self._processes.read()
        self.running = self.starts()
        self.running.find_port()

    def goes_down(self) -> None:
        self.daemon_now.kill()
        self.slurm.stop(self.node, how=signal.SIGKILL)

    def comes_up(self) -> None:
        self._boots += 1
        self._boot_id.write_text(f"{BOOT.format(self._boots + 1)}\n")
        self.root.set("boot", f"boot-{self._boots + 1}")
        self.kmsg.write_text("")
        self.slurm.start(self.node, booted=True)
        self.begins()

    def waits_for(self) -> str:
        """Return what forbids its repair, as `gpuwarden status` shows it."""
        return str(self.daemon_now.status()["repair"]["text"])


@dataclass
class Seen:
    """What happened to the fleet."""

    together: int = 0
    """The largest number of machines that were down, or ordered to reboot, at the same time."""
    orders: Counter[str] = field(default_factory=Counter)
    up: dict[str, float] = field(default_factory=dict)
    """When a machine was up again."""
    returned: dict[str, float] = field(default_factory=dict)
    """When a node was in service again."""
    kills: int = 0

    @property
    def soonest(self) -> float:
        """The least time from a boot to the return, in seconds: the look before it takes two minutes without an Xid."""
        return min((at - self.up.get(name, at) for name, at in self.returned.items()), default=0.0)


@contextmanager
def fleet(folder: Path, slurm: Slurm, bounds: str) -> Iterator[dict[str, Node]]:
    with ExitStack() as stack:
        nodes = {}
        for name in slurm.names:
            nodes[name] = Node(folder / name, slurm, name, stack.enter_context(helpers()), bounds)
        try:
            for node in nodes.values():
                node.begins()
            for node in nodes.values():
                node.daemon_now.wait_status("healthy")
            yield nodes
        finally:
            for node in nodes.values():
                if node.running is not None:
                    node.running.kill()


def played(nodes: dict[str, Node], orders: Path, slurm: Slurm, *, per_day: int, kill_every: float) -> Seen:
    """Let the machines go down as ordered, until the day's repairs are used up and nothing more begins."""
    seen, down, chance = Seen(), dict[str, float](), random.Random(1)
    end = time.monotonic() + PATIENCE
    steady_until = end
    kill_at = time.monotonic() + chance.uniform(0.0, 2.0 * kill_every) if kill_every else end
    while (now := time.monotonic()) < min(end, steady_until):
        ordered = Counter({path.name: len(path.read_text().split()) for path in orders.iterdir()})
        for name in ordered - seen.orders:
            nodes[name].goes_down()
            down[name] = now
        seen.orders = ordered
        seen.together = max(seen.together, len(down))
        for name in [name for name, since in down.items() if now - since > OFF]:
            nodes[name].comes_up()
            seen.up[name] = time.monotonic()
            del down[name]
        if now > kill_at:
            victim = nodes[chance.choice(sorted(nodes.keys() - down.keys()))]
            victim.daemon_now.kill()
            victim.begins()
            seen.kills += 1
            kill_at = now + chance.uniform(0.0, 2.0 * kill_every)
        for name in nodes.keys() - seen.returned.keys():
            if slurm.state(name) == {"IDLE"}:
                seen.returned[name] = time.monotonic()
        if len(seen.returned) >= per_day and not down and steady_until == end:
            steady_until = time.monotonic() + STEADY
        time.sleep(0.5)
    return seen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--per-day", type=int, default=5)
    parser.add_argument("--kill-every", type=float, default=5.0)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="gw-slurm-", ignore_cleanup_errors=True) as rig,
        tempfile.TemporaryDirectory(prefix="gw-", ignore_cleanup_errors=True) as folder,
    ):
        orders, program = Path(folder, "orders"), Path(folder, "reboot.sh")
        orders.mkdir()
        program.write_text(REBOOTS.replace("ORDERS", str(orders)))
        program.chmod(0o755)
        bounds = f"at_once = {options.at_once}\nper_day = {options.per_day}"
        with (
            running(Slurm(Path(rig), options.nodes, more=f"RebootProgram={program}")) as slurm,
            fleet(Path(folder), slurm, bounds) as nodes,
        ):
            for node in nodes.values():
                node.breaks()
            slurm.wait(lambda: all(node.is_drained() for node in nodes.values()), "all drains")
            seen = played(nodes, orders, slurm, per_day=options.per_day, kill_every=options.kill_every)
            waiting = Counter(node.waits_for() for name, node in nodes.items() if name not in seen.orders)
    twice = [name for name, count in seen.orders.items() if count > 1]
    table(
        f"{options.nodes} nodes, repair.at_once = {options.at_once}, repair.per_day = {options.per_day}",
        ("what", "count"),
        [
            ("rebooted", len(seen.orders)),
            ("rebooted twice", len(twice)),
            ("down at one moment, at most", seen.together),
            ("back in service", len(seen.returned)),
            ("least seconds from its boot to its return", round(seen.soonest)),
            ("daemons killed beside these", seen.kills),
            *((f"waiting: {text}"[:400], count) for text, count in waiting.items()),
        ],
    )
    held = len(seen.orders) == options.per_day and seen.together <= options.at_once and not twice
    tested = seen.soonest >= QUIET_FOR and seen.returned.keys() == seen.orders.keys()
    return 0 if held and tested else 1


if __name__ == "__main__":
    sys.exit(main())
