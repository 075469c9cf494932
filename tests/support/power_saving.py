"""A Slurm that switches machines off and on, and reboots them: its programs note whom they were called for, and the test does the rest."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.daemons import RunningDaemon
from support.repairs import BOOTS, RepairedHost
from support.slurm import Slurm, running

PROGRAMS = ("SuspendProgram", "ResumeProgram", "RebootProgram")


@contextmanager
def power_saving(folder: Path) -> Iterator[Slurm]:
    """Run a Slurm of one node that is switched off only by command."""
    lines = ["SuspendTime=86400", "SuspendTimeout=5", "ResumeTimeout=300"]
    for name in PROGRAMS:
        program = folder / name
        program.write_text(f"#!/bin/sh\necho called >>{program}.calls\n")
        program.chmod(0o755)
        lines.append(f"{name}={program}")
    with running(Slurm(folder, nodes=1, more="\n".join(lines))) as slurm:
        time.sleep(1.0)  # Slurm keeps the second of its start: what is drained in it might have been lost at a restart
        yield slurm


def calls(slurm: Slurm, program: str) -> int:
    file = slurm.folder / f"{program}.calls"
    return len(file.read_text().splitlines()) if file.exists() else 0


class SwitchedHost(RepairedHost):
    """Its machine is switched off and on by Slurm."""

    def __init__(self, folder: Path, slurm: Slurm) -> None:
        super().__init__(folder, slurm)
        self._boots = 0

    def powers_down(self) -> None:
        """Slurm switches the node off: its machine and the daemon still run."""
        self.slurm.scontrol("update", f"NodeName={self.node}", "State=POWER_DOWN")
        self.slurm.wait(lambda: calls(self.slurm, "SuspendProgram"), "SuspendProgram to be called")

    def is_switched_on(self) -> None:
        """Its machine is off, Slurm wants it back, and its kernel boots: slurmd is not there yet."""
        self.slurm.stop(self.node)
        self.slurm.wait(lambda: "POWERED_DOWN" in self.slurm.state(self.node), "Slurm to count it as switched off")
        self.slurm.scontrol("update", f"NodeName={self.node}", "State=POWER_UP")
        self.slurm.wait(lambda: calls(self.slurm, "ResumeProgram"), "ResumeProgram to be called")
        self.boots_again()

    def boots_again(self) -> None:
        """Boot the machine in a later second than Slurm ordered it: a boot in the same one is none (src/slurmctld/node_mgr.c, waiting_for_node_boot)."""
        time.sleep(1.0)
        super().boots_again()
        self._boots += 1
        self._boot_id.write_text(f"{BOOTS[1][:-1]}{self._boots + 2}\n")


def state_of(daemon: RunningDaemon) -> str:
    """Return Slurm's state of the node as the daemon knows it."""
    (scheduler,) = daemon.status()["actions"]["schedulers"]
    return str(scheduler.get("state", ""))
