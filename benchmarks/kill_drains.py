"""Kills the daemon with SIGKILL at any moment of a drain on a real Slurm, and counts the drains that were lost, doubled or wrong, and
those of administrators that were undone.

    python benchmarks/kill_drains.py [--rounds 400] [--nodes 5] [--seed 1] [--keep FOLDER]

A round is one failure of a GPU, a record of the kernel or a fact of the driver's library: one or two kills, the first 0 to 0.9 s
after it, a new start after each; the repair, in three of ten rounds with kills; the restoration. In every second round an administrator
drains or resumes the node. Nodes have their rounds side by side on one controller.

Not part of `make bench`: it measures no time. Exit status 1 if anything was found; `--keep` keeps the hosts of such rounds.
"""

from __future__ import annotations

import argparse
import itertools
import random
import shutil
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1] / "tests"))

from apart import apart
from bench_slurm import cluster
from common import spread, table
from support.drain_kills import ADMINS, FAULTS, GPUS, DrainRound, Result
from support.slurm import Slurm, missing_parts
from support.slurm_hosts import SlurmHost


class Campaign:
    def __init__(self, slurm: Slurm, rounds: int, seed: int, folder: Path, keep: Path | None) -> None:
        self.results: list[Result] = []
        self.admins: Counter[str] = Counter()
        self._slurm = slurm
        self._seed = seed
        self._folder = folder
        self._keep = keep
        self._numbers: Iterator[int] = iter(range(rounds))
        self._lock = threading.Lock()

    def run(self) -> None:
        nodes = [threading.Thread(target=self._rounds, args=(name,)) for name in self._slurm.names]
        for node in nodes:
            node.start()
        for node in nodes:
            node.join()

    def _rounds(self, node: str) -> None:
        while True:
            with self._lock:
                number = next(self._numbers, None)
            if number is None:
                return
            self._round(node, number)

    def _round(self, node: str, number: int) -> None:
        chance = random.Random(f"{self._seed} {number}")
        fault = FAULTS[number % len(FAULTS)]
        admin = ADMINS[number // len(FAULTS) % len(ADMINS)]
        folder = self._folder / str(number)
        folder.mkdir()
        self._make_idle(node)
        drain = DrainRound(SlurmHost(folder, self._slurm, node, gpus=GPUS), chance, fault, admin)
        drain.run()
        with self._lock:
            self.results.append(drain.result)
            self.admins[admin.value] += 1
            print(f"round {number}, {node}: {drain.result.kills} kills", *drain.result.faults, sep="\n  ", flush=True)
        if drain.result.faults and self._keep is not None:
            shutil.copytree(folder, self._keep / str(number), ignore=shutil.ignore_patterns("*.sock"))
        shutil.rmtree(folder, ignore_errors=True)

    def _make_idle(self, node: str) -> None:
        self._slurm.scontrol("update", f"NodeName={node}", "State=UNDRAIN", check=False)
        self._slurm.wait(lambda: self._slurm.state(node) == {"IDLE"}, f"{node} to be idle")


def show(campaign: Campaign) -> int:
    """Print the findings, and return their number."""
    results = campaign.results
    rows: list[list[object]] = [["rounds", len(results)], ["kills", sum(result.kills for result in results)]]
    rows += [
        [kind, sum(len(getattr(result, kind)) for result in results)]
        for kind in ("lost", "doubled", "wrong", "foreign")
    ]
    overtaken = list(itertools.chain.from_iterable(result.overtaken for result in results))
    gaps = f": {spread(overtaken, 0)} ms" if overtaken else ""
    rows.append(["written in the moment of an administrator's drain", f"{len(overtaken)}{gaps}"])
    rows.append(["resumed before the drain was known", sum(result.undecided for result in results)])
    rows += [[f"an administrator: {name}", count] for name, count in campaign.admins.items()]
    table("A daemon killed in the middle of drains", ("what", "count"), rows)
    return sum(len(result.faults) for result in results)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    missing = missing_parts()
    if missing:
        print(f"Not run, since it takes a real Slurm: {'; '.join(missing)}")
        return 1
    if not apart(network=False):
        return 1
    with (
        cluster(nodes=options.nodes) as slurm,
        tempfile.TemporaryDirectory(prefix="gw-", ignore_cleanup_errors=True) as folder,
    ):
        campaign = Campaign(slurm, options.rounds, options.seed, Path(folder), options.keep)
        campaign.run()
        faults = show(campaign)
    return min(1, faults)


if __name__ == "__main__":
    sys.exit(main())
