"""Booted machines of a real Slurm fail, are repaired by the installed gpuwarden, and are killed meanwhile: what was done to them, and how often?

    GPUWARDEN_TEST_HOST=disposable benchmarks/repair_machines.py [--nodes 6] [--minutes 20] [--at-once 2] [--seed 1] [--no-bundles] [--newer-slurm]

Each node is a Debian 12 that systemd-nspawn boots, with slurmd, the daemon and root's helper under its own systemd, in the sandboxes of their
units; one more is the controller. RebootProgram reboots the machine. `nvidia-smi` and the service are programs of the test, GPUs those of the
compiled library; they record what is done, with the jobs that run at that moment (`tests/support/machine_slurm.py`). A round: a new machine, a
job on it, a fault, the drain, the steps, the return, and the next job; a daemon, a helper or the whole machine is killed, -9, at random moments
before, in and after a step. For root, on a machine that can be discarded.
"""

from __future__ import annotations

import argparse
import random
import secrets
import signal
import statistics
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1] / "tests"))

from common import table
from gpuwarden.features.repair.requirement import QUIET_FOR
from support.machine import debian_tree
from support.machine_cluster import NETWORK, bridge
from support.machine_slurm import BAD, PACKAGES, SERVICE, Controller, GpuNode, SlurmPlan, installed, newer_slurm_layer

PATIENCE = 1_200.0
"""Seconds for a round."""
DRAINED_WITHIN = 600.0
"""Seconds: services are judged from the fifth minute of a boot on, and must be down for two."""
STEADY = 45.0
"""Seconds for which nothing more must be done to a node that is left to a person."""
INTERRUPTED = "was interrupted"
INOTIFY = Path("/proc/sys/fs/inotify/max_user_instances")
INSTANCES = 16
"""For a machine's systemd and its services."""
RESET, REBOOT = f"set {BAD} recovery_action 1", f"set {BAD} recovery_action 2"


@dataclass(frozen=True, slots=True)
class Story:
    """A fault, what a reset does about it, and whether a boot ends it. `steps`: those that are due, if nobody is killed."""

    name: str
    fault: str
    steps: tuple[str, ...]
    reset: str = "cures"
    boot_cures: bool = True
    weight: int = 1
    """How often it is each, beside others."""


STORIES = (
    Story("reset cures", RESET, ("reset",), boot_cures=False, weight=3),
    Story("reset does not cure", RESET, ("reset", "reboot"), "does_not"),
    Story("reset refused, in use", RESET, ("reset", "reboot"), "in_use"),
    Story("reset hangs", RESET, ("reset", "reboot"), "hangs"),
    Story("reset of the wrong GPU", RESET, ("reset", "reboot"), "wrong"),
    Story("nothing cures", RESET, ("reset", "reboot"), "does_not", boot_cures=False),
    Story("reboot cures", REBOOT, ("reboot",), weight=3),
    Story("service restart cures", "", ("service",)),
)
VICTIMS = ("daemon", "helper", "machine")
PHASES = ("before", "in", "after")
BEGINS = {"begin reset": "reset", "order reboot": "reboot", "start service": "service"}


@dataclass(frozen=True, slots=True)
class Step:
    """What a program of the node recorded: when it began and, if it is known, ended; how many steps of jobs ran."""

    what: str
    begun: float
    ended: float
    jobs: int


def steps_of(record: list[str]) -> list[Step]:
    """Return what was done to a node. The service's first start after each boot is none."""
    steps: list[Step] = []
    booted = False
    for line in record:
        at, jobs, *words = line.split()
        text = " ".join(words)
        if text.startswith(("boot ", "end ")):
            booted = booted or text.startswith("boot ")
            if steps and steps[-1].ended == float("inf"):
                steps[-1] = Step(steps[-1].what, steps[-1].begun, float(at), steps[-1].jobs)
        elif text.startswith("start service") and booted:
            booted = False
        elif action := next((action for begin, action in BEGINS.items() if text.startswith(begin)), ""):
            over = float(at) if action == "service" else float("inf")
            steps.append(Step(action, float(at), over, int(jobs.partition("=")[2])))
    return steps


@dataclass(slots=True)
class Round:
    """One node, from its fault to its return or to a person."""

    number: int
    node: str
    story: Story
    kills: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    boots: int = 0
    end: str = ""
    seconds: float = 0.0
    fault_to_step: float = 0.0
    """Seconds from the fault until its first step began."""
    untested: float = 0.0
    """Seconds from the last step, or the boot after it, to the next job; 0: there was none."""

    @property
    def faults(self) -> Iterator[str]:
        """Yield each violation: what happened although it must not."""
        for action, count in Counter(step.what for step in self.steps).items():
            if count > 1:
                yield f"{action} done {count} times"
        if any(step.jobs for step in self.steps):
            yield "done on a node with a job"
        if len(self.steps) > 2:
            yield "a loop"
        if self.steps and self.end == "returned" and self.untested < QUIET_FOR:
            yield f"returned {self.untested:.0f} s after its step"
        if not self.end:
            yield "did not end"


class Killer(threading.Thread):
    """Kills one part of a node once, with SIGKILL, a number of seconds after the event that it waits for."""

    def __init__(self, node: GpuNode, victim: str, phase: str, after: float, ends: threading.Event) -> None:
        super().__init__(daemon=True)
        self.node, self.victim, self.phase, self.after, self.ends = node, victim, phase, after, ends
        self.done = ""

    def run(self) -> None:
        moment: Mapping[str, Callable[[], object]] = {
            "before": lambda: True,
            "in": lambda: steps_of(self.node.record) or self._helper_works(),
            "after": lambda: any(step.ended < float("inf") for step in steps_of(self.node.record)),
        }
        while not moment[self.phase]():
            if self.ends.wait(0.05):
                return
        if not self.ends.wait(self.after) and self._killed():
            self.done = f"{self.victim} {self.phase}"

    def _helper_works(self) -> bool:
        return any(any(group.glob("system.slice/system-gpuwarden*repair.slice/*")) for group in self.node.groups)

    def _killed(self) -> bool:
        if self.victim == "machine":
            self.node.power_off()
            time.sleep(1.0)
            self.node.power_on(wait=False)
            return True
        unit = "gpuwarden.service" if self.victim == "daemon" else "gpuwarden-repair@*.service"
        while not self.ends.is_set():  # a helper lives for some seconds of a step only
            units = self.node.output("systemctl", "list-units", "--plain", "--no-legend", "--state=active", unit)
            if units:
                self.node.run("systemctl", "kill", "--kill-who=main", "--signal=KILL", unit, check=False)
                return True
            time.sleep(0.05)
        return False


class Rounds:
    def __init__(self, plan: SlurmPlan, folder: Path, base: Path, network: str) -> None:
        self.plan, self.folder, self.base, self.network = plan, folder, base, network
        self.controller = Controller(plan, folder, network)
        self.chance = random.Random(1)
        self.until = 0.0
        self.stopped = threading.Event()
        self.rounds: list[Round] = []
        self._turn = threading.Lock()

    def go_on(self, name: str, kills: int | None, stories: tuple[Story, ...]) -> None:
        """Play rounds on one node, one after the other, until the time is over."""
        while time.monotonic() < self.until and not self.stopped.is_set():
            with self._turn:
                number = len(self.rounds) + 1
                chance = random.Random(self.chance.random())
                first = number <= len(stories)  # each once, and then by chance
                weights = [story.weight for story in stories]
                story = stories[number - 1] if first else chance.choices(stories, weights)[0]
                played = Round(number, name, story)
                self.rounds.append(played)
            try:
                self._play(played, chance, chance.choice((0, 1, 1, 2)) if kills is None else kills)
            except Exception:  # noqa: BLE001 - the round is reported as one that did not end
                traceback.print_exc()

    def _play(self, played: Round, chance: random.Random, kills: int) -> None:
        folder, service = self.folder / f"round-{played.number}", not played.story.fault
        node = GpuNode(self.plan, folder, self.network, played.node, self.base, service=service)
        ends = threading.Event()
        killers: list[Killer] = []
        with node:
            first = self._begun(node)
            begun = time.time()
            self._breaks(node, played.story)
            for _ in range(kills):
                phase = chance.choice(PHASES)
                delay = chance.uniform(0.0, {"before": 90.0, "in": 4.0, "after": 60.0}[phase])
                killers.append(Killer(node, chance.choice(VICTIMS), phase, delay, ends))
                killers[-1].start()
            after = ""
            try:
                if self._is_drained(node, begun):
                    after = self.controller.submit(played.node, 3)
                    played.end = self._ended(node, after, begun)
                else:
                    played.end = "was not drained"
            finally:
                ends.set()
                for killer in killers:
                    killer.join()
                played.kills = [killer.done for killer in killers if killer.done]
                played.steps, played.boots, played.seconds = steps_of(node.record), node.boots, time.time() - begun
                played.fault_to_step = played.steps[0].begun - begun if played.steps else 0.0
                self._measured(played, after)
                for job in filter(None, (first, after)):
                    self.controller.run("scancel", job, check=False)
                problems = list(played.faults)
                print(
                    f"{time.strftime('%H:%M:%S')} round {played.number} {played.node} {played.story.name}: {played.end or 'NOT ENDED'} after {played.seconds:.0f} s,"
                    f" steps {[step.what for step in played.steps]}, killed {played.kills}, boots {played.boots} {problems or ''}",
                    flush=True,
                )
                if problems:
                    kept = Path(tempfile.gettempdir(), f"{self.folder.name}-round-{played.number}")
                    kept.write_text(
                        node.journal() + "\n" + "\n".join(node.record) + f"\n{node.status()}\n{node.console()}"
                    )
                    print(f"  its journal: {kept}", flush=True)

    def _begun(self, node: GpuNode) -> str:
        """Wait until the node is up, healthy and idle, and a job runs on it. Returns the job."""
        control = self.controller
        node.wait(lambda: node.status().get("status") == "healthy", f"{node.name} to be healthy")
        control.scontrol("update", f"nodename={node.name}", "state=down", "reason=renewed", "comment=")
        control.scontrol("update", f"nodename={node.name}", "state=resume")
        node.wait(lambda: control.state(node.name) == {"IDLE"}, f"{node.name} to be idle")
        job = control.submit(node.name, 5 + 20 * random.random())
        node.wait(lambda: control.job(job).get("JobState") == "RUNNING", "the job to run")
        return job

    def _breaks(self, node: GpuNode, story: Story) -> None:
        node.says(reset=story.reset)
        if story.boot_cures:
            node.says(control_boot=(node.gpus.folder / "control.well").read_text())
        if story.fault:
            node.gpus.fake.add(story.fault)
        else:
            node.run("systemctl", "kill", "--signal=KILL", SERVICE)

    def _is_drained(self, node: GpuNode, begun: float) -> bool:
        """Return whether the node was drained; it is not if it lost power before, and that ended the fault."""
        while time.time() < begun + DRAINED_WITHIN and not self.stopped.wait(0.5):
            if "DRAIN" in self.controller.state(node.name):
                return True
        return False

    def _ended(self, node: GpuNode, job: str, begun: float) -> str:
        """Wait until the job ran, or a person is asked for."""
        person = 0.0
        while time.time() < begun + PATIENCE and not self.stopped.wait(2.0):
            if self.controller.job(job).get("JobState") == "COMPLETED":
                return "returned"
            status = node.status()
            repair, actions = status.get("repair") or {}, status.get("actions") or {}
            left = repair.get("state") == "person" or bool(actions.get("needs_person"))
            person = (person or time.time()) if left else 0.0
            if person and time.time() - person > STEADY:
                print(f"{node.name}: {repair.get('text') or actions['needs_person_why']}", flush=True)
                return "left to a person"
        print(node.name, node.status().get("repair"), self.controller.state(node.name), flush=True)
        return INTERRUPTED if self.stopped.is_set() else ""

    def _measured(self, played: Round, job: str) -> None:
        started = self.controller.job(job).get("StartTime", "")
        if played.end == "returned" and played.steps:
            at = time.mktime(time.strptime(started, "%Y-%m-%dT%H:%M:%S"))
            last = played.steps[-1]
            played.untested = at + 1.0 - (last.ended if last.ended < float("inf") else last.begun)


def together(rounds: list[Round]) -> int:
    """Return the largest number of nodes on which a step ran at the same time."""
    edges = sorted(
        edge
        for each in rounds
        for step in each.steps
        if step.ended < float("inf")
        for edge in ((step.begun, 1), (step.ended, -1))
    )
    now = most = 0
    for _, change in edges:
        now += change
        most = max(most, now)
    return most


def spread(values: list[float]) -> str:
    if not values:
        return "none"
    return f"{min(values):.0f} to {max(values):.0f}, median {statistics.median(values):.0f} ({len(values)})"


def report(rounds: list[Round], at_once: int) -> int:
    rounds = [each for each in rounds if each.end != INTERRUPTED]
    over = [each for each in rounds if each.end]
    faults = Counter(fault for each in rounds for fault in each.faults)
    most = together(rounds)
    to_step = [each.fault_to_step for each in over if each.steps]
    untested = [each.untested for each in over if each.untested]
    table(
        f"{len(over)} rounds in booted machines, repair.at_once = {at_once}",
        ("what", "count"),
        [
            *(
                (f"round: {name}", count)
                for name, count in sorted(Counter(f"{each.story.name}, {each.end}" for each in over).items())
            ),
            *(
                (f"step: {name}", count)
                for name, count in sorted(Counter(step.what for each in over for step in each.steps).items())
            ),
            *(
                (f"killed: {name}", count)
                for name, count in sorted(Counter(kill for each in over for kill in each.kills).items())
            ),
            ("boots", sum(each.boots for each in over)),
            ("done twice", sum("times" in fault for each in over for fault in each.faults)),
            ("done on a node with a job", faults["done on a node with a job"]),
            ("nodes repaired at one moment, at most", most),
            ("loops", faults["a loop"]),
            (
                "returned without a look of two minutes",
                sum(fault.startswith("returned ") for each in over for fault in each.faults),
            ),
            ("did not end", len(rounds) - len(over)),
            ("seconds from the fault to the first step", spread(to_step)),
            ("seconds from the last step to the next job", spread(untested)),
            ("seconds of a round", spread([each.seconds for each in over])),
        ],
    )
    return 0 if not faults and most <= at_once else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=6)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, help="so many in each round; otherwise none, one or two")
    parser.add_argument("--story", type=int, help="only this one, from 1")
    parser.add_argument("--no-bundles", dest="bundles", action="store_false")
    parser.add_argument("--newer-slurm", action="store_true", help="24.11 of Debian 13 in place of 22.05")
    options = parser.parse_args()
    if int(INOTIFY.read_text()) < INSTANCES * (options.nodes + 1):
        parser.error(f"each machine needs {INSTANCES} of {INOTIFY}: write a higher number there, or take fewer nodes")
    names = tuple(f"gpu{n}" for n in range(1, options.nodes + 1))
    stories = STORIES if options.story is None else (STORIES[options.story - 1],)
    with (
        tempfile.TemporaryDirectory(prefix="gw-", dir="/dev/shm", ignore_cleanup_errors=True) as made,
        bridge() as network,
    ):
        folder = Path(made)
        folder.chmod(0o755)
        newer = (newer_slurm_layer(),) if options.newer_slurm else ()
        plan = SlurmPlan((*newer, debian_tree(*PACKAGES)), names, NETWORK, secrets.token_bytes(128))
        base = installed(folder, plan.trees[-1], at_once=options.at_once, bundles=options.bundles)
        play = Rounds(plan, folder, base, network)
        play.chance.seed(options.seed)
        play.until = time.monotonic() + 60.0 * options.minutes
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: play.stopped.set())
        with play.controller, ThreadPoolExecutor(options.nodes) as pool:
            for name in names:
                pool.submit(play.go_on, name, options.kills, stories)
        return report(play.rounds, options.at_once)


if __name__ == "__main__":
    sys.exit(main())
