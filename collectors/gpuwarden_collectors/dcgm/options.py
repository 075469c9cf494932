"""The options of the DCGM collector: the keys of `[collectors.dcgm]`, and the addresses that tests override."""

from __future__ import annotations

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.options import bounded, internal, searched

DEFAULT_ADDRESSES = ("unix:///run/nv-hostengine.sock", "unix:///tmp/nv-hostengine", "127.0.0.1:5555")
"""The last two are DCGM's defaults (dcgm_structs.h: DCGM_DEFAULT_SOCKET_PATH, DCGM_HE_PORT_NUMBER)."""


@dataclass(frozen=True, slots=True)
class DcgmOptions:
    """NVIDIA DCGM: health, fields and events of a host engine (nv-hostengine)."""

    enabled: bool = True
    """Read this source, if a host engine runs."""
    interval: float = bounded(15.0, 1.0, 60.0, "DCGM's health watches cover the last minute")
    """Time between two passes."""
    deadline: float = bounded(10.0, 0.1, 60.0, "a hung engine blocks its callers for 60s")
    """Time limit of a pass. A worker process that exceeds it is ended."""
    init_deadline: float = bounded(20.0, 0.1, 600.0, "an engine that does not answer must be reported")
    """Time limit of the first pass, which connects to the engine."""
    bindings: str = searched()
    """The folder with `pydcgm.py`, or several folders, tried in order. Empty: where DCGM 4 or 3 installs it."""
    address: str = ""
    """Address of the host engine: `unix:///path` or `host:port`. Empty: the usual addresses are tried."""
    embedded: bool = False
    """If no host engine runs: start one inside the worker process."""
    profiling: bool = True
    """Read the profiling fields. On Ampere and older GPUs this occupies the counters that a profiler needs."""
    probe: tuple[str, ...] = internal(DEFAULT_ADDRESSES)
    """Where an engine is searched for."""
