"""Finds what the helper could do here now, for the daemon and `gpuwarden doctor`, without changing anything."""

from __future__ import annotations

import os
from contextlib import suppress

from gpuwarden.features.repair.helper import obstacles
from gpuwarden.features.repair.helper.children import NoReading
from gpuwarden.features.repair.helper.gpus import read_bus, read_driver
from gpuwarden.features.repair.helper.host import Host
from gpuwarden.features.repair.helper.obstacles import Seen
from gpuwarden.features.repair.helper.services import ServiceError, Services
from gpuwarden.features.repair.helper.settings import Settings
from gpuwarden.features.repair.helper.table import STEPS
from gpuwarden.features.repair.model import ALLOWED_BY, StepKind
from gpuwarden_collectors.pci_facts import PciKind

RESETS: tuple[str, ...] = (StepKind.RESET_GPU, StepKind.RESET_ALL)


def probe(host: Host, settings: Settings, wanted: str = "") -> dict[str, object]:
    """Return the steps that can be taken, and why the others cannot. `wanted`: the step in question; "": all.

    The driver is queried only for a reset: a hung driver would delay the reboot that it needs, and keep a process each
    time.
    """
    unable = {step: why for step in STEPS if (why := not_allowed(step, settings) or lacking(step, host, settings))}
    resets = [step for step in RESETS if step not in unable]
    if resets and wanted in ("", *RESETS):
        unable |= _unable_to_reset(resets, host, settings)
    return {"able": [step for step in STEPS if step not in unable], "unable": unable}


def not_allowed(step: str, settings: Settings) -> str:
    """Return why the configuration does not let this step be taken, or ""."""
    if not settings.steps:
        return "repair is off: repair.steps is empty"
    if (word := ALLOWED_BY.get(StepKind(step), step)) not in settings.steps:
        return f"repair.steps does not name {word}"
    if not settings.enforce:
        return 'the configuration has mode = "observe", in which nothing is repaired'
    return ""


def lacking(step: str, host: Host, settings: Settings) -> str:
    """Return what this host lacks for a step, or ""."""
    program = STEPS[step].program
    if program and not host.program(program):
        return f"{program} is not in {host.path}: install it"
    return _lacking_to_reboot(host, settings) if step == "reboot" else ""


def _lacking_to_reboot(host: Host, settings: Settings) -> str:
    if settings.reboot_command:
        command = settings.reboot_command[0]
        there = os.path.isfile(command) and os.access(command, os.X_OK)  # noqa: PTH113 - as the program is started
        return "" if there else f"{command} of repair.reboot_command does not exist, or cannot be run: install it"
    if not settings.slurm:
        return "nothing reboots this node: set repair.reboot_command, or enable [slurm]"
    if host.program("scontrol", settings.slurm_folder):
        return ""
    return f"scontrol is not in {settings.slurm_folder or host.path}: set slurm.folder to where Slurm's commands are"


def _unable_to_reset(steps: list[str], host: Host, settings: Settings) -> dict[str, str]:
    """Return why resets cannot be taken. A driver that does not answer is no reason: it may need the reset."""
    try:
        bus, driver = read_bus(host), None
        with suppress(NoReading):
            driver = read_driver(host, settings.library)
        running = Services(host, None).running(("fabric_manager",))
    except (NoReading, ServiceError) as error:
        return dict.fromkeys(steps, str(error))
    seen = Seen(driver=driver, bus=bus, fabric_manager=bool(running))
    slots = [function.slot for function in bus if function.kind == PciKind.GPU]
    if not slots:
        return dict.fromkeys(steps, "there is no NVIDIA GPU on the PCI bus")
    single = [obstacles.by_setup((slot,), seen, reset=True) or obstacles.not_alone(slot, seen) for slot in slots]
    reasons = {"reset_gpu": single[0] if all(single) else "", "reset_all": obstacles.by_setup(slots, seen, reset=True)}
    return {step: reasons[step] for step in steps if reasons[step]}
