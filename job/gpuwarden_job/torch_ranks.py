"""Agreement through torch.distributed, on the CPU: it must not wait for what is queued on the GPU."""

from __future__ import annotations

import datetime as dt
import importlib
from typing import Any

from gpuwarden_job.ranks import Ranks

# Longer than a save that one rank is late with. A dead peer is the business of PeerWatch.
_PATIENCE = dt.timedelta(minutes=30)


def torch_ranks() -> Ranks:
    """Creates a process group of its own; all ranks call this together, once. Raises what torch raises."""
    torch: Any = importlib.import_module("torch")
    distributed: Any = importlib.import_module("torch.distributed")
    group = distributed.new_group(backend="gloo", timeout=_PATIENCE)

    def largest(value: int) -> int:
        tensor = torch.tensor([value], dtype=torch.int64)
        distributed.all_reduce(tensor, op=distributed.ReduceOp.MAX, group=group)
        return int(tensor.item())

    return Ranks(distributed.get_rank(), distributed.get_world_size(), largest)
