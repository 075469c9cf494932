"""The connection."""

# ruff: noqa: N802, N803, N815, PLR0917 - these are the names and signatures of the bindings
from __future__ import annotations

import ctypes
import threading
from typing import Any

import dcgm_agent  # type: ignore[import-not-found] # found by path, as the real one is
import dcgm_structs  # type: ignore[import-not-found] # found by path, as the real one is


class DcgmHandle:
    handleLock = threading.Lock()
    handles: list[DcgmHandle] = []  # noqa: RUF012 - keeps every handle, as the original's does

    def __init__(
        self,
        handle: Any = None,
        ipAddress: str | None = None,
        opMode: int = dcgm_structs.DCGM_OPERATION_MODE_AUTO,
        persistAfterDisconnect: bool = False,
        unixSocketPath: str | None = None,
        timeoutMs: int = 0,
        decoratorHandle: Any = None,
    ) -> None:
        self.handle: ctypes.c_void_p | None = None
        if ipAddress is not None and unixSocketPath is not None:
            raise dcgm_structs.DCGMError(-1)
        dcgm_agent.dcgmInit()
        self.isEmbedded = ipAddress is None and unixSocketPath is None
        if self.isEmbedded:
            self.handle = dcgm_agent.dcgmStartEmbedded(opMode)
        else:
            self.handle = dcgm_agent.dcgmConnect_v3(ipAddress or unixSocketPath, None)
        with DcgmHandle.handleLock:
            DcgmHandle.handles.append(self)

    def Shutdown(self) -> None:
        if self.handle is not None:
            (dcgm_agent.dcgmStopEmbedded if self.isEmbedded else dcgm_agent.dcgmDisconnect)(self.handle)
            self.handle = None
