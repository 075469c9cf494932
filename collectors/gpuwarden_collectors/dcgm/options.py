"""What can be configured about reading DCGM: the keys of `[collectors.dcgm]`, and where tests look for an engine."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwarden_collectors.options import bounded, internal, searched

DEFAULT_ADDRESSES = ("unix:///run/nv-hostengine.sock", "unix:///tmp/nv-hostengine", "127.0.0.1:5555")
"""The last two are DCGM's defaults (dcgm_structs.h: DCGM_DEFAULT_SOCKET_PATH, DCGM_HE_PORT_NUMBER)."""


@dataclass(frozen=True, slots=True)
class DcgmOptions:
    """NVIDIA DCGM: health, fields and events of a host engine."""

    enabled: bool = True
    """Read it, where there is one."""
    interval: float = bounded(15.0, 1.0, 60.0, "its health watches look back a minute")
    """Time between two passes."""
    deadline: float = bounded(10.0, 0.1, 60.0, "a hung engine blocks its callers for 60s")
    """Time for a pass, after which the worker is ended."""
    init_deadline: float = bounded(20.0, 0.1, 600.0, "an engine that does not answer must be reported")
    """Time for the first pass, which connects."""
    bindings: str = searched()
    """The folder with `pydcgm.py`, or several that are tried in order. Empty: where DCGM 4 or 3 installs it."""
    address: str = ""
    """Of the engine: `unix:///path` or `host:port`. Empty: a running engine is searched for at the usual addresses."""
    embedded: bool = False
    """Where no engine runs, one is run inside the worker."""
    profiling: bool = True
    """Read the profiling fields, which on Ampere and older occupies the counters that a profiler needs."""
    probe: tuple[str, ...] = internal(DEFAULT_ADDRESSES)
    """Where an engine is searched for."""
