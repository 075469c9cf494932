"""The driver of an evacuation beside real processes, of which it sees those that it is given."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from gpuwarden.features.evacuation.acknowledgements import Acknowledgements
from gpuwarden.features.evacuation.active_notices import ActiveNotices
from gpuwarden.features.evacuation.driver import Evacuation
from gpuwarden.features.evacuation.job_scan import JobScan
from gpuwarden.features.evacuation.policy.budget import FAILING_GPU
from gpuwarden.features.evacuation.policy.plan import EvacuationSettings
from gpuwarden.features.evacuation.slurm.job_scan import SlurmJobScan
from gpuwarden.health.model import Event, EventKind
from gpuwarden.policy.model import Notice
from gpuwarden.policy.notices import id_of
from gpuwarden_collectors.base import host_clock
from gpuwarden_collectors.receivers.reader import ReceiversReader
from support.ranks import Rank

BOOT = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
PATIENCE = 60.0


class Rig:
    """One process that holds a GPU, all that the driver sees of this machine; what it writes down is on disk when `committed`."""

    def __init__(
        self,
        folder: Path,
        rank: Rank,
        *,
        enforce: bool = True,
        signal_again: bool = False,
        slurm: SlurmJobScan | None = None,
    ) -> None:
        self.proc = proc = folder / "proc"
        proc.mkdir()
        (proc / str(rank.pid)).symlink_to(f"/proc/{rank.pid}")
        self.pid = rank.pid
        self.holders = {rank.pid}
        self.written: list[Event] = []
        self.committed = asyncio.Event()
        self.active = ActiveNotices()
        self.departing = Evacuation(
            EvacuationSettings(signal_again=signal_again, slurm=slurm is not None),
            JobScan(ReceiversReader(proc), slurm, lambda: self.holders),
            Acknowledgements(folder / "run", proc, boot_id=BOOT, clock=host_clock),
            active=lambda _: self.active, enforce=enforce, append=self.append, write=self.append, committed=self._committed, names=False, boot_id=BOOT,
            clock=host_clock,
        )  # fmt: skip
        (folder / "run").mkdir()

    def append(self, events: Iterable[Event]) -> None:
        for event in events:
            self.departing.fold(event)
            self.written.append(event)

    def contains(self, rank: Rank) -> None:
        """A process in a container of Docker's, on the same GPU."""
        folder = self.proc / str(rank.pid)
        folder.mkdir()
        for entry in Path(f"/proc/{rank.pid}").iterdir():
            (folder / entry.name).symlink_to(entry)
        (folder / "cgroup").unlink()
        (folder / "cgroup").write_text(f"0::/system.slice/docker-{'ab' * 32}.scope\n")
        self.holders |= {rank.pid}

    def admits(self, pid: int) -> None:
        (self.proc / str(pid)).symlink_to(f"/proc/{pid}")

    async def child_of(self, parent: subprocess.Popen[str], *, beside: int) -> int:
        """Another one than `beside`, once it catches TERM."""

        def ready() -> list[int]:
            children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
            return [pid for pid in map(int, children) if pid != beside and catches_term(pid)]

        await self.wait(ready, "a new child")
        return ready()[0]

    async def _committed(self) -> bool:
        await self.committed.wait()
        return True

    def acts(self, *notices: Notice, later: Sequence[Notice] = ()) -> None:
        on_gpu = tuple((id_of(notice), frozenset({self.pid})) for notice in notices if notice.kind == FAILING_GPU)
        self.active = ActiveNotices(notices=notices, later=tuple(later), processes=on_gpu)
        self.departing.follow()

    def kinds(self) -> list[str]:
        return [event.kind for event in self.written]

    def results(self) -> list[object]:
        return [event.data["result"] for event in self.written if event.kind == EventKind.SIGNALLED]

    async def wait(self, condition: Callable[[], object], awaited: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                while not condition():
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"waited in vain for {awaited}: {self.written}") from None

    async def writes(self, kind: EventKind) -> Event:
        await self.wait(lambda: kind in self.kinds(), kind)
        return next(event for event in self.written if event.kind == kind)


def catches_term(pid: int) -> bool:
    caught = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> signal.SIGTERM - 1 & 1)


@asynccontextmanager
async def running(rig: Rig) -> AsyncIterator[Rig]:
    rig.departing.run()
    try:
        yield rig
    finally:
        rig.committed.set()
        await rig.departing.stop()
