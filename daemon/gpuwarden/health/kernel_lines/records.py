"""Maps kernel log lines other than Xids to records, and lists the lines that end a record.

| line | record | condition |
|---|---|---|
| a GPU could not be initialised | `gpu_init_failed@gpu/SLOT` | none: evidence for `gpu_missing` and `driver_not_loaded`, which PCI bus and NVML decide |
| the driver advises the reset of a GPU, or the GSP heartbeat is late | `gsp_not_answering`, of the GPU or the node | see `detectors.py` |
| a soft lockup | `soft_lockup@node`, with the kernel module that ran | see `detectors.py` |
| the kernel gave up an NVMe controller | `nvme_failed.NAME@node` | see `detectors.py` |
| firmware of an adapter | `adapter_failed@adapter/SLOT` | see `detectors.py` |
| the kernel ended a process for an error of the host's memory | `memory_failed@node` | it explains the end of a job (`features/why`); `memory_ecc_uncorrectable` only where there is no EDAC (`host/detectors.py`) |

The kind of a line is a sign of the record, which keeps the order of failure and recovery.
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
    LineKind.MEMORY_FAILED: "memory_failed",
}
LINE_CODES = frozenset(CODES.values())
ENDS = frozenset({LineKind.NVME_FOUND, LineKind.ADAPTER_RECOVERED})
"""Lines that only end a record. Without one they are ignored, since every boot prints them."""
OF_GPUS = frozenset({LineKind.GPU_INIT_FAILED, LineKind.GPU_RESET_ADVISED, LineKind.GSP_HEARTBEAT})


def record_key(event: KernelLineEvent) -> Key:
    code = CODES[event.what]
    if code == "adapter_failed":
        return Key(code, adapter(event.slot))
    return Key(code, gpu(event.slot) if event.slot else NODE, event.part)


def adapter(slot: str) -> Subject:
    return Subject("adapter", slot)


def signs(record: Record) -> tuple[str, ...]:
    """Return the distinct signs of the newest burst, newest last, without those before a recovery."""
    if not record.bursts:
        return ()
    kept: list[str] = []
    for sign in record.bursts[-1].signs:
        kept = [] if sign in ENDS else [*kept, sign]
    return tuple(kept)


def lasted(record: Record) -> float:
    """Return the seconds from the first to the last line of the newest burst."""
    return record.bursts[-1].ended - record.bursts[-1].began if record.bursts else 0.0
