"""Finds why a step must not be taken here, from what was read of the host. Pure; each text says what to do instead.

Which GPUs can be reset alone follows nvidia-smi(1), `--gpu-reset`: from Ampere on each can, with NVSwitches only while
the fabric manager runs; older GPUs that NVLink connects are reset together, in one command. The manual states in one
place that Hopper no longer depends on the fabric manager, and in its table that it does: the table counts here. vGPU,
MIG and confidential computing are refused, since a reset was never tried with them.

NVML reports mode passthrough inside a virtual machine that has the whole GPU, as in most clouds: it is reset there. If
its NVLinks lead to switches that the machine does not have, the fabric belongs to the hypervisor, which a reset would
disturb.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from gpuwarden.features.repair.helper.gpus import Driver, Function, Gpu, Holder
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.pci_facts import PciKind

_AMPERE = 7
"""nvmlDeviceArchitecture_t."""
_PASSED_THROUGH = 1
_VIRTUAL = {2: "is a vGPU", 3: "is shared as vGPUs", 4: "is shared as vSGAs"}
"""nvmlGpuVirtualizationMode_t."""
_SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was read of the host. `driver`: None if NVML does not answer. `fabric_manager`: whether it runs."""

    driver: Driver | None
    bus: tuple[Function, ...]
    fabric_manager: bool

    def gpu(self, slot: str) -> Gpu | None:
        gpus = self.driver.gpus if self.driver else ()
        return next((gpu for gpu in gpus if gpu.slot == slot), None)

    @property
    def switches(self) -> bool:
        return any(function.kind == PciKind.SWITCH for function in self.bus)


def mismatch(slot: str, uuid: str, seen: Seen) -> str:
    """Return why `slot` and `uuid` do not name one GPU of this host, or ""."""
    if not any(function.slot == slot and function.kind == PciKind.GPU for function in seen.bus):
        return f"there is no NVIDIA GPU at {slot} on the PCI bus"
    gpu = seen.gpu(slot)
    if gpu is not None and gpu.uuid and gpu.uuid != uuid:
        return f"the GPU at {slot} has UUID {gpu.uuid}, not {uuid or 'an unknown one'}"
    others = [gpu.slot for gpu in seen.driver.gpus if uuid and gpu.uuid == uuid] if seen.driver else []
    return f"the GPU with UUID {uuid} is at {others[0]}" if others and others[0] != slot else ""


def by_setup(slots: Collection[str], seen: Seen, *, reset: bool) -> str:
    """Return why GPUs with their settings cannot be reset, or their driver cannot be reloaded, or ""."""
    if seen.driver is not None and seen.driver.confidential:
        return "confidential computing is on, with which this was never tried: reboot the node"
    for slot in sorted(slots):
        gpu = seen.gpu(slot)
        if gpu is not None and gpu.mig:
            return f"MIG is on at the GPU at {slot}, whose instances this would delete: reboot the node"
        if reset and (
            bound := [device.driver for device in seen.bus if device.slot == slot and device.driver.startswith("vfio")]
        ):
            return f"the GPU at {slot} is passed through to a virtual machine (driver {bound[0]}): reset it there"
        if reset and gpu is not None and gpu.virtualization in _VIRTUAL:
            return (
                f"the GPU at {slot} {_VIRTUAL[gpu.virtualization]}: reset it where it is shared out, or reboot the node"
            )
        if reset and gpu is not None and gpu.virtualization == _PASSED_THROUGH and gpu.linked and not seen.switches:
            return f"the NVLinks of the GPU at {slot} belong to a fabric outside this virtual machine: reboot the node"
    return ""


def not_alone(slot: str, seen: Seen) -> str:
    """Return why the GPU cannot be reset without the others, or ""."""
    gpu = seen.gpu(slot)
    old = gpu is not None and gpu.architecture is not None and gpu.architecture < _AMPERE
    if old and gpu is not None and (gpu.linked or seen.switches):
        return "GPUs before Ampere that NVLink connects are reset together: reset_all"
    if seen.switches and not seen.fabric_manager:
        return "without a fabric manager all GPUs of an NVSwitch system are reset together: restart it, or reset_all"
    if seen.switches and (gpu is None or gpu.architecture is None):
        return f"the driver does not report the generation of the GPU at {slot}, and on an NVSwitch system older ones are reset together: reset_all"
    return ""


def in_use(slots: Collection[str] | None, seen: Seen, holders: Sequence[Holder], aside: Collection[str]) -> str:
    """Return who uses the GPUs at `slots`, or any if that is None, or "". `aside`: units whose processes do not count."""
    gpus = [gpu for gpu in (seen.driver.gpus if seen.driver else ()) if slots is None or gpu.slot in slots]
    users = [str(holder) for holder in _holding(gpus, slots, seen, holders) if holder.unit not in aside]
    shown = {holder.pid for holder in holders}
    users += [f"process {pid}" for gpu in gpus for pid in gpu.pids if pid not in shown]
    if not users:
        return ""
    more = f" and {len(users) - _SHOWN} more" if len(users) > _SHOWN else ""
    return f"in use by {', '.join(users[:_SHOWN])}{more}"


def _holding(
    gpus: Sequence[Gpu], slots: Collection[str] | None, seen: Seen, holders: Sequence[Holder]
) -> Iterator[Holder]:
    minors = {gpu.minor for gpu in gpus}
    minors_known = slots is not None and seen.driver is not None and len(gpus) == len(slots) and None not in minors
    for holder in holders:
        if slots is None or (set(holder.minors) & minors if minors_known else holder.minors):
            yield holder
