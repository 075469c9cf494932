"""A machine of the test that is a node of a real Slurm: the daemon as a process, with a pretended driver and a real scheduler."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from support.daemons import FakeHost, RunningDaemon
from support.slurm import Slurm
from support.slurm_processes import SlurmProcesses

REASON = "gpuwarden: failure gpu=3 xid=95 - reset the GPU when it is empty"
_BAD, _SLOT = 3, "0000:42:00.0"  # text pci_bus_id of readings.def


class SlurmHost(FakeHost):
    """Its daemon acts, restores as soon as it may, and lets every node of the three be out at once."""

    def __init__(self, folder: Path, slurm: Slurm, node: str = "n1", *, gpus: int = 8) -> None:
        super().__init__(folder, gpus)
        self.slurm = slurm
        self.node = node
        self._processes: SlurmProcesses | None = None
        self.configure_slurm()

    def seclude(self) -> None:
        """Its daemon sees the processes of its Slurm and no others."""
        self._processes = SlurmProcesses(self.folder / "proc", self.slurm.conf)
        self.proc = self._processes.folder
        self.configure_slurm()

    def configure_slurm(self, *, percent: int = 100, conf: Path | None = None, more: str = "") -> None:
        """`more`: further lines of `[slurm]`."""
        self.configure(
            '[policy]\nrestore_passes = 3\nrestore_after = "0s"\nlook_often = "5s"\n'
            f'[breaker]\npercent = {percent}\nrecount_after = "1s"\n'
            f'[slurm]\nenabled = true\nnode = "{self.node}"\nconf = "{conf or self.slurm.conf}"\n{more}\n'
        )

    @contextmanager
    def acting(self, mode: str = "enforce") -> Iterator[RunningDaemon]:
        with ExitStack() as stack:
            if self._processes is not None:
                self._processes.read()
            daemon = stack.enter_context(self.daemon(more={"GPUWARDEN_MODE": mode}))
            if self._processes is not None:
                stack.enter_context(self._processes.followed())
            yield daemon

    def starts(self, mode: str = "enforce") -> RunningDaemon:
        """A daemon that has hardly begun; the caller ends it."""
        return RunningDaemon(self, more={"GPUWARDEN_MODE": mode})

    def breaks(self) -> None:
        self.xid(_BAD, 95)

    def is_mended(self) -> None:
        self.kernel_line(f"nvidia {_SLOT}: reset done")

    def is_drained(self) -> bool:
        return "DRAIN" in self.slurm.state(self.node)


def remove(folder: Path) -> None:
    """Remove the folder of hosts whose daemons have ended: a rank, or a command that one of them began, may still write there."""
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)


def excluded_by(daemon: RunningDaemon) -> list[str]:
    by: list[str] = daemon.heartbeat()["excluded_by"]
    return by


def acting_of(daemon: RunningDaemon) -> dict[str, Any]:
    shown: dict[str, Any] = daemon.status()["actions"]
    return shown
