"""The request from the parent to the worker of one GPU, and the steps of each level."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from gpuwarden_collectors.active_test.cuda.library import LIBRARY
from gpuwarden_collectors.active_test.level import Level
from gpuwarden_collectors.codec import from_wire
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import slot_of

_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PEERS_MOST = 64
_SEED_MOST = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The request to a worker: one JSON object, its only argument."""

    uuid: str
    """UUID of the GPU."""
    slot: str
    """Its PCI address."""
    level: Level
    """The level of the test."""
    seed: int = 0
    """Seed of patterns and operands."""
    parent: int
    """PID of the parent: the worker exits with it, and the parent's other children may be on the GPU."""
    memory_most: int | None = None
    """Bytes of memory that are tested at most; None: no such limit."""
    peers: tuple[str, ...] = ()
    """UUIDs of the other GPUs of the same test."""
    cuda_library: str = LIBRARY
    """Name or path of libcuda."""
    nvml_library: str = ""
    """Path of NVML; empty: the driver's own."""


def parsed(text: str) -> Request:
    """Parse the request. Raises ValueError with the reason if it is not valid."""
    request = from_wire(Request, json.loads(text))
    slot_of(request.slot)
    for uuid in (request.uuid, *request.peers):
        if not _UUID.fullmatch(uuid):
            raise ValueError(f"{uuid!r} is no UUID of a GPU")
    if len({request.uuid, *request.peers}) != 1 + len(request.peers) or len(request.peers) > _PEERS_MOST:
        raise ValueError(f"peers are up to {_PEERS_MOST} other GPUs, each once")
    if not 0 <= request.seed <= _SEED_MOST:
        raise ValueError(f"seed is not from 0 to {_SEED_MOST}")
    if request.memory_most is not None and request.memory_most <= 0:
        raise ValueError("memory_most is not above 0")
    return request


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The steps of a level."""

    kernels: Mapping[str, float]
    """Compute kernels in order, with the seconds that each runs."""
    pcie: bool
    peers: bool
    marches: int
    """Least number of marches over the memory; at least one."""
    memory_seconds: float
    """Least seconds spent on marches: further marches follow until then."""


PLANS: Mapping[Level, Plan] = {
    Level.GATE: Plan(kernels={"int8": 0.3}, pcie=False, peers=False, marches=1, memory_seconds=0),
    Level.QUICK: Plan(
        kernels={"int8": 1.2, "bf16": 1.2, "fp64": 0.4, "alu": 0.4}, pcie=True, peers=False, marches=9, memory_seconds=0
    ),
    Level.STANDARD: Plan(
        kernels={"int8": 9, "bf16": 9, "fp64": 2.5, "alu": 2.5}, pcie=True, peers=True, marches=9, memory_seconds=14
    ),
}
