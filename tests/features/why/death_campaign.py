"""Plays deaths on as many nodes as they take, and asks of each why it was."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from features.why.deaths import BUSY, Death, Played, Stage
from features.why.deaths_nodes import set_up
from support.death_rig import GPUS, DyingNode, DyingNodes, Job, dying

TURNS = 3
PATIENCE = 600.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a death: the document of `gpuwarden why` and what is wrong with it; without one, why there is none."""

    death: Death
    document: Mapping[str, Any] | None = None
    faults: tuple[str, ...] = ()
    falsely: bool = False
    """Hardware is accused that did nothing."""
    played: bool = True
    """False: the rig could not make this death, which says nothing of what `why` would have named."""

    @property
    def answer(self) -> Mapping[str, Any]:
        return {} if self.document is None else self.document["answer"]


@dataclass(slots=True)
class Campaign:
    """`verdicts`: of each death, once it has run."""

    deaths: Sequence[Death]
    folder: Path
    verdicts: list[Verdict] = field(default_factory=list)

    def run(self) -> None:
        places = _places(self.deaths)
        with dying(self.folder, len(places)) as rig:
            nodes = dict(zip(places, rig.nodes, strict=True))
            for kind, node in nodes.items():
                set_up(node, kind.partition(" ")[0])
                node.starts()
                node.its_daemon.find_port()  # one after the other: a dozen that start at once take all the time of this machine
            for node in nodes.values():
                node.serves()
            with ThreadPoolExecutor(len(self.deaths)) as asking:
                asked = self._play(rig, places, nodes, asking)
                self.verdicts = [asked[death].result() for death in self.deaths]

    def _play(
        self, rig: DyingNodes, places: dict[str, list[Death]], nodes: dict[str, DyingNode], asking: ThreadPoolExecutor
    ) -> dict[Death, Future[Verdict]]:
        """All jobs begin first, those of later turns among them. Each is asked about as soon as it has been played."""
        jobs = {death: _submitted(rig, nodes[kind], death) for kind, rows in places.items() for death in rows}
        for death, its_jobs in jobs.items():
            for job in its_jobs:
                rig.wait(job.runs, f"job {job.id} of {death.name!r} to run")
        asked: dict[Death, Future[Verdict]] = {}
        with ThreadPoolExecutor(len(jobs)) as pool:
            for number in range(TURNS):
                turn = {}
                for kind, all_rows in places.items():
                    rows = [death for death in all_rows if death.turn == number]
                    barrier = threading.Barrier(max(1, sum(death.meets for death in rows)), timeout=PATIENCE)
                    for death in rows:
                        stage = Stage(rig, nodes[kind], nodes, barrier)
                        turn[death] = pool.submit(stage.play, death, jobs[death])
                        asked[death] = asking.submit(_verdict, death, turn[death])
                wait(turn.values())
        return asked


def _submitted(rig: DyingNodes, node: DyingNode, death: Death) -> list[Job]:
    return [
        Job(rig, rig.submit(node, gpus=gpus, options=death.options, step=death.step), (node,)) for gpus in death.jobs
    ]


def _places(deaths: Sequence[Death]) -> dict[str, list[Death]]:
    """Return the rows by node; of busy nodes there are as many as have GPUs for all jobs at once."""
    places: dict[str, list[Death]] = {}
    used, number = 0, 0
    for death in deaths:
        place = death.node
        if death.node == BUSY:
            needs = max(1, sum(death.jobs) + death.later)
            if used + needs > GPUS or number == 0:
                used, number = 0, number + 1
            used += needs
            place = f"{BUSY} {number}"
        places.setdefault(place, []).append(death)
    if any(death.node == "slurmd" for death in deaths):
        places.setdefault("other", [])
    return places


def _verdict(death: Death, play: Future[Played]) -> Verdict:
    try:
        played = play.result()
    except Exception as error:  # noqa: BLE001 - counted as wrong
        return Verdict(death, faults=(f"could not be played: {error!r}"[:600],), played=False)
    try:
        document = played.node.ended(played.name, played.run)
    except AssertionError as error:
        return Verdict(death, faults=(str(error)[:600],))
    answer = document["answer"]
    return Verdict(death, document, tuple(death.faults(answer, played)), death.accuses_falsely(answer, played))
