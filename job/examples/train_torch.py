"""A training loop with PyTorch, alone or under torchrun, on GPUs or CPUs. Kill and restart it: it continues.

python train_torch.py --folder /shared/checkpoints/my-run
torchrun --nproc-per-node=8 train_torch.py --folder /shared/checkpoints/my-run
"""

from __future__ import annotations

import argparse
import datetime as dt
import gc
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

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

BATCH = 48  # of all ranks together, for any number of ranks


def device() -> Any:
    return (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        if torch.cuda.is_available()
        else torch.device("cpu")
    )


@contextmanager
def joined() -> Iterator[Ranks]:
    """Joins the ranks if torchrun started several. At the end they leave together; a failing rank does not wait."""
    if "RANK" in os.environ:
        if torch.cuda.is_available():
            torch.cuda.set_device(device())
        # Shorter than the default of 30 minutes: a fallback in case PeerWatch has not exited the process before.
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, timeout=dt.timedelta(minutes=5))
    yield Ranks.detect()
    if dist.is_initialized():
        dist.barrier()  # without these two calls a Gloo thread aborted 4 of 20 trainings at their end, on a busy host
        dist.destroy_process_group()
        gc.collect()


def batch(samples: range, where: Any) -> tuple[Any, Any]:
    """Returns inputs and targets of these samples; they are the same on every rank."""
    numbers = torch.tensor(list(samples), dtype=torch.float32, device=where)
    x = torch.stack([(numbers * 37 % 101) / 101, (numbers * 61 % 103) / 103], dim=1)
    return x, (3 * x[:, :1] - 2 * x[:, 1:] + 1)


def train(arguments: argparse.Namespace, ranks: Ranks) -> None:
    torch.manual_seed(7)
    where = device()
    model: Any = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).to(where)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=200, gamma=0.5)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    store = CheckpointStore(arguments.folder, ranks=ranks, keep_last=2, keep_best="min")
    step = samples = 0
    if (loaded := store.load_latest()) is not None:
        # All ranks load rank 0's state, but must not use its random numbers.
        step, samples = restore(loaded.state, same_random=ranks.size == 1, **parts)
    print(f"rank {ranks.rank} begins at step {step}", flush=True)
    parallel = torch.nn.parallel.DistributedDataParallel(model) if ranks.size > 1 else model

    def state() -> dict[str, Any]:
        return capture(step=step, samples=samples, world=ranks.size, **parts)

    cadence = Cadence(steps=arguments.save_every, seconds=600, ranks=ranks)
    with CheckpointGuard(ranks=ranks) as guard, PeerWatch(guard, markers=arguments.markers) as watch:
        while step < arguments.steps:
            x, wanted = batch(share(samples, BATCH, ranks.rank, ranks.size), where)
            loss = torch.nn.functional.mse_loss(parallel(x), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            step, samples = step + 1, samples + BATCH
            watch.beat()

            if guard.check(step):
                saved = guard.time_for(store.seconds)
                with watch.paused():
                    if saved:
                        try:
                            store.save(state(), step, metric=loss.item())
                        except SaveFailed as error:  # the job still has to be started again
                            print(error, flush=True)
                            saved = False
                    else:  # waits for the newest periodic one, which may still be being written
                        store.settle(guard.time_left())
                guard.acknowledge(saved=saved, step=step if saved else None)
                leave(guard, markers=arguments.markers)
            if cadence.due(step) and store.save_async(state(), step, metric=loss.item()):
                cadence.done()
        with watch.paused():
            store.flush()
    if ranks.first:
        print(f"result {loss.item():.9f} at step {step}", flush=True)


def options(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--folder", type=Path, required=True, help="for the checkpoints: one for each run, not on the node"
    )
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--markers", type=Path, default=Path("/tmp/reschedule"))
    return parser.parse_args()


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    arguments = options(__doc__)
    with reschedulable(arguments.markers, rank=int(os.environ.get("RANK", "0"))), joined() as ranks:
        train(arguments, ranks)


if __name__ == "__main__":
    main()
