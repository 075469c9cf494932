"""The collectors of the host beside its GPUs: the only list of them."""

from __future__ import annotations

from gpuwarden_collectors.host_collectors import infiniband, memory, processes, services, storage
from gpuwarden_collectors.spec import AnySpec

HOST_COLLECTORS: tuple[AnySpec, ...] = (infiniband.SPEC, storage.SPEC, memory.SPEC, processes.SPEC, services.SPEC)
"""They are shown and read in this order."""
