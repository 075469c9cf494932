"""Stories of one fault that shows in many lines and readings, and of machines that were never complete."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from evaluate.kernel_text import happened
from gpuwarden.health.model import Health
from gpuwarden.health.view import Rules
from gpuwarden_collectors.facts import Placement
from stories.story import Story
from support.hosts import Host, slot

HOURS = 3600.0
FALLEN = "NVRM: Xid (PCI:{bus}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
COMPLAINTS = (
    "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 48 LTSSM Fault Up",
    "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up",
    "nvidia-nvswitch2: SXid (PCI:0000:85:00.0): 20034, Severity 1 Engine instance 60 Sub-engine instance 00",
)


def bus(index: int) -> str:
    """Return the bus address as the driver writes it."""
    return slot(index)[:-2]


def lost_gpu(*, delay: float, ended: str) -> Host:
    """Xid 79, and the ends of its links on three switches `delay` seconds later. `ended`: by what."""
    host = Host(8)
    host.run(60)
    if delay < 0:
        happened(host, *COMPLAINTS)
        host.run(-delay, every=1)
    gone = host.gpus.pop(3), host.devices.pop(3)
    happened(host, FALLEN.format(bus=bus(3)))
    if delay > 0:
        host.run(delay, every=4)
        happened(host, *COMPLAINTS)
    host.run(0.5 * HOURS, every=15)
    host.gpus[3], host.devices[3] = replace(gone[0], uuid="GPU-new" if ended == "replaced" else gone[0].uuid), gone[1]
    if ended == "rebooted":
        host.reboot()
    host.run(120)
    return host


def double_bit_error() -> Host:
    """Four GPUs; 48, 171, 63 and 154 of GPU 1 in one second; it alone is reset 20 minutes later."""
    host = Host(4)
    host.run(60)
    at = f"NVRM: Xid (PCI:{bus(1)})"
    happened(
        host,
        f"{at}: 48, pid=2001, name=python3, DBE (double bit error) ECC Error",
        f"{at}: 171, pid=2001, name=python3, GDDR, Uncorrectable DRAM error in FBPA 3 subpartition 0 physAddr 0xe9b9107e0",
        f"{at}: 63, pid=2001, name=python3, Row Remapper: New row marked for remapping, reset gpu to activate",
        f"{at}: 154, pid=2001, name=python3, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)",
    )
    host.change(1, ecc_uncorrected_volatile=2, remapped_rows_pending=1, recovery_action=4)
    host.run(20 * 60, every=15)
    host.change(1, ecc_uncorrected_volatile=0, remapped_rows_pending=0, recovery_action=0)
    happened(host, f"{at}: 154, GPU recovery action changed from 0x4 (Drain and Reset) to 0x0 (None)")
    host.run(300)
    return host


def machine(gpus: int, machine_type: str, *, expected: int | None = None, modules: tuple[int, ...] = ()) -> Host:
    """Return a machine from its first boot to another one."""
    host = Host(gpus, rules=Rules(machine_type=machine_type, expected_gpus=expected))
    for n, number in enumerate(modules):
        host.gpus[n] = replace(host.gpus[n], placement=Placement(module_id=number))
    host.run(1 * HOURS, every=15)
    host.reboot()
    host.run(1 * HOURS, every=15)
    return host


GPUD = "leptonai/gpud components/accelerator/nvidia/sxid/README.md"
LOST = ("failure gpu_missing", "failure xid.79")
G6E, NEVER_SEEN = "Amazon EC2/g6e.12xlarge", "aws/eks-node-monitoring-agent#121"

STORIES: tuple[Story, ...] = (
    *(
        Story(
            id="C04", source=GPUD, name=f"Xid 79 and three switches 12 s later, then the GPU {ended}", incidents=1,
            made=partial(lost_gpu, delay=12.0, ended=ended), expects=(*LOST, "warning sxid.20034"),
        )
        for ended in ("replaced", "rebooted")
    ),
    Story(
        id="C04", source=GPUD, name="the same, had the switches complained first", incidents=3,
        made=partial(lost_gpu, delay=-3.0, ended="replaced"), expects=(*LOST, "failure sxid.20034"),
    ),
    Story(
        id="C01", source="an engineering blog of 2026-08-10 (RTX PRO 6000)", name="a double-bit error: 48, 171, 63 and 154 of one GPU",
        made=double_bit_error, incidents=1,
        expects=("failure ecc_uncorrectable", "failure gpu_recovery_action", "failure xid.48", "warning row_remap_pending"),
    ),
    Story(
        id="B05", source=NEVER_SEEN, name="g6e.12xlarge with 3 of 4 GPUs from the first boot on", made=partial(machine, 3, G6E),
        expects=("warning inventory_incomplete",), ends=Health.WARNING, incidents=1,
    ),
    Story(
        id="B05", source=NEVER_SEEN, name="a board of eight with seven GPUs, module 4 never seen",
        made=partial(machine, 7, "", modules=(1, 2, 3, 5, 6, 7, 8)),
        expects=("warning inventory_incomplete",), ends=Health.WARNING, incidents=1,
    ),
    Story(id="B05", source=NEVER_SEEN, name="the same type, complete", made=partial(machine, 4, G6E)),
    Story(id="B05", source=NEVER_SEEN, name="the same type, three configured", made=partial(machine, 3, G6E, expected=3)),
    Story(
        id="A70", source="henrygd/beszel#806", name="a guest with two modules of a board", made=partial(machine, 2, "", modules=(1, 3)),
    ),
)  # fmt: skip
