"""Which record a line of the kernel log besides Xids becomes, and what ends one.

| line | record | is it a condition |
|---|---|---|
| a GPU could not be initialised | `gpu_init_failed@gpu/SLOT` | no: evidence of `gpu_missing` and `driver_not_loaded`, which bus and NVML decide |
| the driver advises the reset of a GPU, the GSP's heartbeat is late | `gsp_not_answering`, of the GPU or of the node | see `detectors.py` |
| a soft lockup | `soft_lockup@node`, with the module of the driver that ran | see there |
| an NVMe controller was given up | `nvme_failed.NAME@node` | see there |
| firmware of an adapter | `adapter_failed@adapter/SLOT` | see there |

What a line reports is a sign of the record, so that the order of failure and recovery is known.
"""

from __future__ import annotations

from gpuwarden.health.memory import Record
from gpuwarden.health.model import NODE, Key, Subject, gpu
from gpuwarden_collectors.event_facts import KernelLineEvent, LineKind

CODES: dict[LineKind, str] = {
    LineKind.GPU_INIT_FAILED: "gpu_init_failed",
    LineKind.GPU_RESET_ADVISED: "gsp_not_answering",
    LineKind.GSP_HEARTBEAT: "gsp_not_answering",
    LineKind.SOFT_LOCKUP: "soft_lockup",
    LineKind.NVME_FAILED: "nvme_failed",
    LineKind.NVME_FOUND: "nvme_failed",
    LineKind.ADAPTER_TIMEOUT: "adapter_failed",
    LineKind.ADAPTER_SILENT: "adapter_failed",
    LineKind.ADAPTER_HARDWARE: "adapter_failed",
    LineKind.ADAPTER_RECOVERED: "adapter_failed",
}
LINE_CODES = frozenset(CODES.values())
ENDS = frozenset({LineKind.NVME_FOUND, LineKind.ADAPTER_RECOVERED})
"""Lines that only end what others began: without a record of theirs they are none, since every boot prints them."""
OF_GPUS = frozenset({LineKind.GPU_INIT_FAILED, LineKind.GPU_RESET_ADVISED, LineKind.GSP_HEARTBEAT})


def record_key(event: KernelLineEvent) -> Key:
    code = CODES[event.what]
    if code == "adapter_failed":
        return Key(code, adapter(event.slot))
    return Key(code, gpu(event.slot) if event.slot else NODE, event.part)


def adapter(slot: str) -> Subject:
    return Subject("adapter", slot)


def signs(record: Record) -> tuple[str, ...]:
    """Signs of the lines of the newest burst, each once, the newest last; none from before a recovery."""
    if not record.bursts:
        return ()
    kept: list[str] = []
    for sign in record.bursts[-1].signs:
        kept = [] if sign in ENDS else [*kept, sign]
    return tuple(kept)


def lasted(record: Record) -> float:
    """Seconds from the first to the newest line of the newest burst."""
    return record.bursts[-1].ended - record.bursts[-1].began if record.bursts else 0.0
