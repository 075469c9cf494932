"""What can be configured about reading DCGM: the keys of `[collectors.dcgm]`, and where tests look for an engine."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_ADDRESSES = ("unix:///run/nv-hostengine.sock", "unix:///tmp/nv-hostengine", "127.0.0.1:5555")
"""The last two are DCGM's defaults (dcgm_structs.h: DCGM_DEFAULT_SOCKET_PATH, DCGM_HE_PORT_NUMBER)."""


@dataclass(frozen=True, slots=True)
class DcgmOptions:
    """Durations in seconds. A hung engine blocks a call for 60 s; `deadline` is when the worker is ended instead.

    `bindings`: the folder with pydcgm.py; empty: where DCGM 4 or 3 installs it. `address`: `unix:///path` or
    `host:port`; empty: a running engine is looked for in the places of `probe`. `embedded`: where none runs, one is
    run inside the worker. `profiling`: read the profiling fields, which on Ampere and older occupies the counters that
    a profiler needs.
    """

    enabled: bool = True
    interval: float = 15.0
    deadline: float = 10.0
    init_deadline: float = 20.0
    bindings: str = ""
    address: str = ""
    embedded: bool = False
    profiling: bool = True
    probe: tuple[str, ...] = DEFAULT_ADDRESSES
