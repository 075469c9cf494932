"""What a repair is to a scheduler: the node is drained for a failure, its machine is off for longer than SlurmdTimeout, and boots again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.daemons import RunningDaemon
from support.slurm import Slurm
from support.slurm_hosts import REASON, SlurmHost

OFF_AFTER = 5
"""Seconds without an answer after which Slurm sets a node down, while its machine is off. At other times a busy machine has longer."""
BOOTS = ("aaaaaaaa-0000-4000-8000-000000000001", "bbbbbbbb-0000-4000-8000-000000000002")


class RepairedHost(SlurmHost):
    """Its machine can be switched off, and booted."""

    def __init__(self, folder: Path, slurm: Slurm, node: str = "n1") -> None:
        super().__init__(folder, slurm, node, gpus=4)
        self.seclude()
        self._boot_id = self.boots(BOOTS[0])

    @contextmanager
    def drained_and_off(self) -> Iterator[None]:
        """Slurm has set the node down, and within the block the machine is off."""
        with self.acting() as daemon:
            daemon.wait_status("healthy")
            self.breaks()
            daemon.wait(lambda: self.slurm.reason(self.node) == REASON, "the drain")
        self.slurm.stop(self.node)
        patient = self.slurm.slurmd_timeout
        self._sets_down_after(OFF_AFTER)
        self.slurm.wait(lambda: "DOWN" in self.slurm.state(self.node), f"Slurm to find that {self.node} is off")
        self._sets_down_after(patient)
        yield

    def _sets_down_after(self, seconds: int) -> None:
        self.slurm.slurmd_timeout = seconds
        self.slurm.configure()
        self.slurm.scontrol("reconfigure")

    def boots_again(self) -> None:
        """All that the kernel logged is gone with the boot."""
        self._boot_id.write_text(f"{BOOTS[1]}\n")
        self.kmsg.write_text("")

    def is_restored(self) -> bool:
        return self.slurm.state(self.node) == {"IDLE"}

    def waits_restored(self, daemon: RunningDaemon) -> None:
        daemon.wait(self.is_restored, f"the node to come back; it is {self.slurm.show(self.node)}")
