"""Agreement among the ranks of a job, based on one operation: the largest of one integer per rank.

`largest` is a collective: every rank calls it the same number of times in the same order. A job that does not use
torch.distributed (but MPI, JAX or a socket) passes a `Ranks` with that function; values are between -1 and 2**62.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime as dt
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_NO_VALUE = -1
_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
"""Number of ranks, as torchrun, mpirun and srun set it. The first that is set counts: torchrun may be a task of srun."""
_PATIENCE = dt.timedelta(minutes=30)
"""Longer than the slowest rank's save. PeerWatch handles dead peers."""


def _itself(value: int) -> int:
    return value


@dataclass(frozen=True)
class Ranks:
    """The ranks of the job, from the view of one rank."""

    rank: int = 0
    """Number of this rank."""
    size: int = 1
    """Number of ranks that agree."""
    largest: Callable[[int], int] = _itself
    """Collective: the largest of one number of each rank."""

    @property
    def first(self) -> bool:
        return self.rank == 0

    def any(self, fact: bool) -> bool:
        """True on all ranks if `fact` is true on any rank."""
        return self.largest(int(fact)) > 0

    def broadcast(self, value: int) -> int:
        """Returns the value of rank 0 (at least 0) on all ranks; ignores the others' values."""
        return self.largest(value if self.first else _NO_VALUE)

    @classmethod
    def detect(cls, environ: Mapping[str, str] = os.environ) -> Ranks:
        """Returns the ranks of torch.distributed if it is initialised, otherwise this process alone.

        Raises RuntimeError if the launcher's variables show other ranks but torch.distributed is not initialised:
        independent ranks would save different steps, and all would resume from what one of them saved last.
        """
        torch: Any = sys.modules.get("torch")
        distributed = getattr(torch, "distributed", None)
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return _torch_ranks(torch, distributed)
        name = next((name for name in _SIZES if environ.get(name, "").strip()), _SIZES[0])
        size = environ.get(name, "").strip()
        if size not in ("", "0", "1"):
            raise RuntimeError(
                f"{name} is {size}, and torch.distributed is not initialised: call init_process_group first, "
                "or pass ranks=Ranks(rank, size, largest=…), or ranks=Ranks() if each process trains by itself"
            )
        return cls()


def _torch_ranks(torch: Any, distributed: Any) -> Ranks:
    """Create a separate process group; all ranks call this together, once. Raises what torch raises.

    It uses the CPU, so that agreement does not wait for work queued on the GPU.
    """
    agreement = _Agreement(torch, distributed)
    return Ranks(distributed.get_rank(), distributed.get_world_size(), agreement.largest)


class _Agreement:
    """The process group for agreement. It is destroyed before the interpreter exits."""

    def __init__(self, torch: Any, distributed: Any) -> None:
        self._torch, self._distributed = torch, distributed
        self._group = distributed.new_group(backend="gloo", timeout=_PATIENCE)
        self._asking = False
        atexit.register(self._leave)

    def largest(self, value: int) -> int:
        tensor = self._torch.tensor([value], dtype=self._torch.int64)
        self._asking = True
        self._distributed.all_reduce(tensor, op=self._distributed.ReduceOp.MAX, group=self._group)
        self._asking = False
        return int(tensor.item())

    def _leave(self) -> None:
        """Wait for the threads of Gloo, which release a tensor some time after the result is available.

        A release during the exit of the interpreter aborts the process, after all its work is done. Does not wait for
        an operation that is still in progress, because its peers may be dead.
        """
        if self._asking:
            return
        with contextlib.suppress(Exception):  # the training may have destroyed all groups before
            self._distributed.destroy_process_group(self._group)
        self._group = None
