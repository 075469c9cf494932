"""The training of train_torch.py, with model and optimizer sharded by FSDP2. Any number of ranks can resume it.

torchrun --nproc-per-node=8 train_fsdp.py --folder /shared/checkpoints/my-run
"""

from __future__ import annotations

import argparse
import logging
import os
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from train_torch import BATCH, batch, device, joined, options

from gpuwarden_job import (
    Cadence,
    CheckpointGuard,
    CheckpointStore,
    PeerWatch,
    Ranks,
    SaveFailed,
    ShardedModel,
    leave,
    reschedulable,
    sharded_reader,
    sharded_writer,
    share,
)


def train(arguments: argparse.Namespace, ranks: Ranks) -> None:
    torch.manual_seed(7)
    where = device()
    model: Any = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).to(where)
    mesh = init_device_mesh(where.type, (ranks.size,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=200, gamma=0.5)
    parts = {"training": ShardedModel(model, optimizer), "scheduler": scheduler}
    store = CheckpointStore(arguments.folder, ranks=ranks, sharded=True)
    step = samples = 0
    if (loaded := store.load_latest(read=sharded_reader(**parts))) is not None:
        step, samples = loaded.state
    print(f"rank {ranks.rank} begins at step {step}", flush=True)

    cadence = Cadence(steps=arguments.save_every, seconds=600, ranks=ranks)
    with CheckpointGuard(ranks=ranks) as guard, PeerWatch(guard, markers=arguments.markers) as watch:
        while step < arguments.steps:
            x, wanted = batch(share(samples, BATCH, ranks.rank, ranks.size), where)
            loss = torch.nn.functional.mse_loss(model(x), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            step, samples = step + 1, samples + BATCH
            watch.beat()

            interrupted = guard.check(step) is not None
            saved = guard.time_for(store.seconds) if interrupted else cadence.due(step)
            if saved:
                try:
                    with watch.paused():
                        store.save_files(sharded_writer(step=step, samples=samples, **parts), step)
                    cadence.done()
                except SaveFailed as error:
                    if not interrupted:
                        raise
                    print(error, flush=True)  # the job still has to be started again
                    saved = False
            if interrupted:
                guard.acknowledge(saved=saved, step=step if saved else None)
                leave(guard, markers=arguments.markers)
    weights = sum(float(weight.detach().full_tensor().square().sum()) for weight in model.parameters())
    if ranks.first:
        print(f"result {weights:.9f} at step {step}", flush=True)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    arguments = options(__doc__)
    with reschedulable(arguments.markers, rank=int(os.environ["RANK"])), joined() as ranks:
        train(arguments, ranks)


if __name__ == "__main__":
    main()
