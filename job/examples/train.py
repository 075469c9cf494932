"""A training loop without any library: fits a line by stochastic gradient descent. Kill and restart it: it continues.

    python train.py --folder /shared/checkpoints/my-run

Thanks to `capture` and `restore` the result does not depend on the number of interruptions.
"""

from __future__ import annotations

import argparse
import logging
import random
import time
from pathlib import Path
from typing import Any

from gpuwarden_job import (
    Cadence,
    CheckpointGuard,
    CheckpointStore,
    PeerWatch,
    Ranks,
    SaveFailed,
    capture,
    leave,
    reschedulable,
    restore,
    share,
)

BATCH = 8  # of all ranks together, for any number of ranks


class Line:
    """y = slope · x + offset."""

    def __init__(self) -> None:
        self.slope, self.offset = random.gauss(0, 1), 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"slope": self.slope, "offset": self.offset}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.slope, self.offset = state["slope"], state["offset"]


class Momentum:
    def __init__(self, rate: float = 0.02) -> None:
        self.rate, self.velocity = rate, [0.0, 0.0]

    def state_dict(self) -> dict[str, Any]:
        return {"velocity": list(self.velocity)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.velocity = list(state["velocity"])

    def step(self, line: Line, gradient: tuple[float, float]) -> None:
        self.velocity = [0.9 * old + new for old, new in zip(self.velocity, gradient)]
        line.slope -= self.rate * self.velocity[0]
        line.offset -= self.rate * self.velocity[1]


def gradient(line: Line, samples: range) -> tuple[tuple[float, float], float]:
    slope = offset = loss = 0.0
    for sample in samples:
        x = (sample * 37 % 101) / 101
        error = line.slope * x + line.offset - (3.0 * x - 1.0 + random.gauss(0, 0.1))
        slope, offset, loss = slope + error * x, offset + error, loss + error * error
    return (slope / len(samples), offset / len(samples)), loss / len(samples)


def train(arguments: argparse.Namespace, ranks: Ranks) -> None:
    random.seed(7)
    line, optimizer = Line(), Momentum()
    store = CheckpointStore(arguments.folder, ranks=ranks, keep_last=2, keep_best="min")
    step = samples = 0
    if (loaded := store.load_latest()) is not None:
        step, samples = restore(loaded.state, model=line, optimizer=optimizer)
    print(f"begins at step {step}", flush=True)

    def state() -> dict[str, Any]:
        return capture(step=step, samples=samples, world=ranks.size, model=line, optimizer=optimizer)

    cadence = Cadence(steps=arguments.save_every, ranks=ranks)
    with CheckpointGuard(ranks=ranks) as guard, PeerWatch(guard, markers=arguments.markers) as watch:
        while step < arguments.steps:
            slopes, loss = gradient(line, share(samples, BATCH, ranks.rank, ranks.size))
            optimizer.step(line, slopes)
            step, samples = step + 1, samples + BATCH
            time.sleep(arguments.pause)
            watch.beat()

            if guard.check(step):
                saved = guard.time_for(store.seconds)
                with watch.paused():
                    if saved:
                        try:
                            store.save(state(), step, metric=loss)
                        except SaveFailed as error:  # the job still has to be started again
                            print(error, flush=True)
                            saved = False
                    else:  # waits for the newest periodic one, which may still be being written
                        store.settle(guard.time_left())
                guard.acknowledge(saved=saved, step=step if saved else None)
                leave(guard, markers=arguments.markers)
            if cadence.due(step) and store.save_async(state(), step, metric=loss):
                cadence.done()
        with watch.paused():
            store.flush()
    print(f"result {line.slope!r} {line.offset!r}", flush=True)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder", type=Path, required=True, help="for the checkpoints: one for each run, not on the node"
    )
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds that a step takes longer")
    parser.add_argument("--markers", type=Path, default=Path("/tmp/reschedule"))
    arguments = parser.parse_args()
    with reschedulable(arguments.markers):
        train(arguments, Ranks.detect())


if __name__ == "__main__":
    main()
