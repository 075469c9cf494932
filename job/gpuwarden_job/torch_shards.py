"""Sharded models (FSDP2) in the format of torch.distributed.checkpoint: saved by some ranks, resumed by any number.

    store = CheckpointStore(folder, ranks=ranks, sharded=True)
    parts = {"training": ShardedModel(model, optimizer), "scheduler": scheduler}
    if (loaded := store.load_latest(read=sharded_reader(**parts))) is not None:
        step, samples = loaded.state
    store.save_files(sharded_writer(step=step, samples=samples, **parts), step)

Each rank writes its own shards; nothing is gathered. All operations are collective and cannot run in the background.
PyTorch unpickles this format: everyone who can write to the folder can run code in the job.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpuwarden_job.loading import Read
from gpuwarden_job.manifest import Manifest
from gpuwarden_job.publishing import Write
from gpuwarden_job.state import StateMismatch, random_state, restore_random


class ShardedModel:
    """A model with its optimizers as one part. The optimizers' state uses the names of the model's parameters."""

    def __init__(self, model: Any, *optimizers: Any) -> None:
        self._model, self._optimizers = model, optimizers
        self._torch: Any = importlib.import_module("torch.distributed.checkpoint.state_dict")

    def state_dict(self) -> dict[str, Any]:
        model, optimizers = self._torch.get_state_dict(self._model, self._optimizers)
        return {"model": model, "optimizers": optimizers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._torch.set_state_dict(
            self._model, self._optimizers, model_state_dict=state["model"], optim_state_dict=state["optimizers"]
        )


def sharded_writer(*, step: int, samples: int, **parts: Any) -> Write:
    """Returns a writer for `save_files`. `samples` is as in `capture`.

    The writer raises RuntimeError, on all ranks, if one of them could not write.
    """

    def write(folder: Path) -> Iterable[Path]:
        rank = _rank()
        head = {"step": step, "samples": samples, "names": sorted(parts)}
        with _as_error():
            _checkpoint().save({**head, "random": {str(rank): random_state()}, **parts}, checkpoint_id=folder)
        return [*folder.glob(f"__{rank}_*.distcp"), *([folder / ".metadata"] if rank == 0 else [])]

    return write


def sharded_reader(**parts: Any) -> Read:
    """Returns a reader for `load_latest` that loads the parts in place; its state is (step, samples).

    The random state is restored if the number of ranks is the same. `load_latest` reports a failure as Undecodable; if
    other parts were saved, the reader changes nothing.
    """

    def read(folder: Path, made: Manifest) -> tuple[int, int]:
        load: Callable[..., None] = _checkpoint().load
        head: dict[str, Any] = {"step": 0, "samples": 0, "names": []}
        with _as_error():
            load(head, checkpoint_id=folder)
            if head["names"] != sorted(parts):
                raise StateMismatch(
                    f"saved were {', '.join(head['names'])}; pass the same parts, not {', '.join(parts)}"
                )
            load(parts, checkpoint_id=folder)
            if made.world == int(importlib.import_module("torch.distributed").get_world_size()):
                mine = {"random": {str(_rank()): random_state()}}
                load(mine, checkpoint_id=folder)
                restore_random(mine["random"][str(_rank())])
        return head["step"], head["samples"]

    return read


@contextmanager
def _as_error() -> Iterator[None]:
    """Converts torch's error, a BaseException that the store would not catch, to RuntimeError."""
    try:
        yield
    except _checkpoint().CheckpointException as error:
        reasons = (f"rank {rank}: {type(failed).__name__}: {failed}" for rank, (failed, _) in error.failures.items())
        raise RuntimeError("; ".join(reasons)) from error


def _checkpoint() -> Any:
    return importlib.import_module("torch.distributed.checkpoint")


def _rank() -> int:
    return int(importlib.import_module("torch.distributed").get_rank())
