"""What a death of a job is: how it is brought about, and the cause that must be named.

Each is played on a real node of a real Slurm (`support.death_rig`) beside the others of its node, so that what ends one job happens near
another that it did not end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpuwarden.features.why.model import Cause, Certainty
from support.daemons import slots
from support.death_rig import GPUS, DyingNode, DyingNodes, Job

UNEXPLAINED = (Cause.JOB, Cause.NOT_SEEN)
"""Of a job that ended by itself without a sign: its own exit code, or nothing that this node saw."""
BUSY = "busy"
"""The kind of nodes that have nothing but faults of GPUs, of which there are as many as are needed."""
NO_HARDWARE = tuple(cause for cause in Cause if cause is not Cause.HARDWARE)


@dataclass(slots=True)
class Stage:
    """Where a death is played: a node, and all others by their kind."""

    rig: DyingNodes
    node: DyingNode
    others: Mapping[str, DyingNode]
    rows: threading.Barrier
    """Of the rows that are played on this node at once."""

    def together(self, act: Callable[[], object] = lambda: None) -> None:
        """Wait for all rows of the node, and do this once; they all ask for the same."""
        if self.rows.wait() == 0:
            act()
        self.rows.wait()

    def play(self, death: Death, jobs: Sequence[Job]) -> Played:
        """Play it. If it goes wrong, the rows that wait for it do not wait for ever."""
        try:
            return death.play(self, *jobs)
        except BaseException:
            if death.meets:
                self.rows.abort()
            raise

    def job(self, gpus: int = 1, *options: str, user: str = "nobody") -> Job:
        """Another job than those that the row has."""
        return self.rig.job(self.node, gpus=gpus, user=user, options=options)

    def ends(self, job: Job, order: str = "exit 1") -> Job:
        """Have the job end, and wait until it has."""
        job.does(order)
        return self.gone(job)

    def gone(self, job: Job) -> Job:
        self.rig.wait(job.has_ended, f"{job.name} to end")
        return job

    def finds(self, code: str, slot: str = "") -> None:
        self.node.its_daemon.wait(lambda: self.node.finds(code, slot), f"finding {code} {slot}")

    def knows(self, job: Job) -> None:
        """Wait until the daemon knows of the job and of its process."""
        self.node.its_daemon.wait(lambda: self.node.has_process(job.name), f"it to know {job.name}", every=0.5)

    def remembers(self, job: Job) -> None:
        """Wait until the ledger of the daemon has the job, as from its first minute on."""
        self.node.its_daemon.wait(lambda: self.node.remembers(job.name), f"it to remember {job.name}", every=1.0)

    def xid(self, job: Job, *numbers: int, named: bool = True, gpu: int = 0) -> None:
        """The driver reports these on a GPU of the job, counted among its own; `named`: with its process."""
        for number in numbers:
            self.node.xid_at(job.gpus(self.node)[gpu], number, job.pid(self.node) if named else None)

    def at(self, job: Job, gpu: int = 0) -> int:
        """Return the number of one of its GPUs on the node."""
        return job.gpus(self.node)[gpu]

    def of(self, job: Job, blamed: int | None = None) -> Played:
        """The job has been played; `blamed`: the GPU at fault, counted among its own."""
        return Played(job.name, self.node, "" if blamed is None else slots(GPUS)[self.at(job, blamed)])


@dataclass(frozen=True, slots=True)
class Played:
    """A death that was played: the job as `gpuwarden why` names it, the node to ask, and the GPU at fault, if one is."""

    name: str
    node: DyingNode
    slot: str = ""
    run: int | None = None
    """Which of its runs, counted from 0; None: the newest."""


Play = Callable[..., Played]
"""Called with the stage and the jobs of the row, which all run."""


@dataclass(frozen=True, slots=True)
class Death:
    """A row of the tables.

    `causes`: those of which one must be named, several only where this node cannot know more. `codes`: the answer rests on one of them;
    empty: on anything. `jobs`: by their GPUs, those that run when it is played; all jobs of a node have begun before the first dies, so that
    no job gets the GPU of a dead one. `node`: the kind of its node; `options`: of sbatch.
    """

    name: str
    play: Play
    causes: Cause | tuple[Cause, ...]
    codes: tuple[str, ...] = ()
    certainties: tuple[Certainty, ...] = tuple(Certainty)
    jobs: tuple[int, ...] = (1,)
    node: str = BUSY
    options: tuple[str, ...] = ()
    step: bool = False
    """Its jobs run as a step."""
    later: int = 0
    """GPUs of jobs that it submits itself."""
    meets: bool = False
    """It acts together with other rows of its node."""
    turn: int = 0
    """Played when all of the turns before are over: it changes more than its node, or all of it."""
    alike: bool = False
    """Others show the same by the same rule, or it is known to be named wrongly: the benchmark plays it, the tests do not."""

    @property
    def expected(self) -> tuple[Cause, ...]:
        return self.causes if isinstance(self.causes, tuple) else (self.causes,)

    def faults(self, answer: Mapping[str, object], played: Played) -> Iterator[str]:
        """Yield what is wrong with an answer."""
        if answer["cause"] not in self.expected:
            yield f"cause {answer['cause']}, expected {' or '.join(self.expected)}"
        if self.causes == UNEXPLAINED and str(answer["code"]).startswith("xid."):
            yield f"rests on {answer['code']}, which is another's"
        if self.codes and answer["code"] not in self.codes:
            yield f"code {answer['code']!r}, expected {' or '.join(self.codes)}"
        if answer["certainty"] not in self.certainties:
            yield f"it is {answer['certainty']}, expected {' or '.join(self.certainties)}"
        if played.slot and answer["pci_bus_id"] != played.slot:
            yield f"blames {answer['pci_bus_id'] or 'no GPU'}, expected {played.slot}"

    def accuses_falsely(self, answer: Mapping[str, object], played: Played) -> bool:
        """True if it blames hardware that did nothing."""
        if answer["cause"] != Cause.HARDWARE:
            return False
        return Cause.HARDWARE not in self.expected or bool(played.slot and answer["pci_bus_id"] != played.slot)
