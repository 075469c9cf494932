"""How the ranks of a job agree: by the largest of one whole number each, and nothing else.

`largest` is a collective: every rank calls it the same number of times in the same order. A job with another way than
torch.distributed (MPI, JAX, a socket) gives a `Ranks` with that one function; values lie between -1 and 2**62.
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
_PATIENCE = dt.timedelta(minutes=30)
"""Longer than a save that one rank is late with. A dead peer is the business of PeerWatch."""


def _itself(value: int) -> int:
    return value


@dataclass(frozen=True)
class Ranks:
    """The ranks of the job, as this one sees them."""

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
        """True on all ranks if it holds on some rank."""
        return self.largest(int(fact)) > 0

    def broadcast(self, value: int) -> int:
        """Returns the value of rank 0 (0 or more) on all ranks; the values of the others do not count."""
        return self.largest(value if self.first else _NO_VALUE)

    @classmethod
    def detect(cls, environ: Mapping[str, str] = os.environ) -> Ranks:
        """Returns the ranks of torch.distributed where it is initialised, else this process alone.

        Raises RuntimeError where WORLD_SIZE shows other ranks that cannot be reached: ranks that each think themselves
        alone would save different steps.
        """
        torch: Any = sys.modules.get("torch")
        distributed = getattr(torch, "distributed", None)
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return _torch_ranks(torch, distributed)
        size = environ.get("WORLD_SIZE", "1").strip()
        if size not in ("", "0", "1"):
            raise RuntimeError(
                f"WORLD_SIZE is {size}, and torch.distributed is not initialised: call init_process_group first, "
                "or pass ranks=Ranks(rank, size, largest=…)"
            )
        return cls()


def _torch_ranks(torch: Any, distributed: Any) -> Ranks:
    """Create a process group of its own; all ranks call this together, once. Raises what torch raises.

    It is on the CPU: agreement must not wait for what is queued on the GPU.
    """
    agreement = _Agreement(torch, distributed)
    return Ranks(distributed.get_rank(), distributed.get_world_size(), agreement.largest)


class _Agreement:
    """The process group by which the ranks agree. It leaves before the interpreter ends."""

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
        """Wait for the threads of Gloo, which let go of a tensor some time after all have the answer.

        One that does so when the interpreter has begun to end aborts the process, after all its work was done. A thread
        that still asks peers is not waited for: they may be dead.
        """
        if self._asking:
            return
        with contextlib.suppress(Exception):  # the training may have destroyed all groups before
            self._distributed.destroy_process_group(self._group)
        self._group = None
