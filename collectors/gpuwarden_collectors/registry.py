"""The list of host collectors, which read everything except GPUs."""

from __future__ import annotations

from gpuwarden_collectors.host_collectors import infiniband, memory, processes, services, storage
from gpuwarden_collectors.spec import AnySpec

HOST_COLLECTORS: tuple[AnySpec, ...] = (infiniband.SPEC, storage.SPEC, memory.SPEC, processes.SPEC, services.SPEC)
"""All host collectors, in the order in which they are read and shown."""
