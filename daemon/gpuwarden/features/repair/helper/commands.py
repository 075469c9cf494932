"""The commands of the steps, and how their output is read."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from gpuwarden.features.repair.helper.host import Host
from gpuwarden.features.repair.helper.programs import Ended
from gpuwarden.features.repair.helper.settings import Settings
from gpuwarden.features.repair.helper.system_log import send_line
from gpuwarden_collectors.facts import slot_of
from gpuwarden_collectors.slurm.client import SlurmClient, slurm_environment
from gpuwarden_collectors.slurm.errors import SlurmError

Run = Callable[..., Ended]
_RESET = re.compile(r"GPU ([0-9A-Fa-f:.]{7,16})\s?(?:was|:)? ?(?:was )?successfully reset")
_REASON = "GPUWARDEN_REASON"
_UNANSWERED = "timed out on send/recv"
"""Slurm's text if the controller took the order and did not answer. It carries the order out once it continues (seen with 22.05.8
and 24.11.5)."""


class CommandFailed(Exception):  # noqa: N818 - a result
    """A command did not do what it should. The message says which and why."""


class NothingOrdered(CommandFailed):
    """Slurm accepted no order, as while its controller is down: nothing was done, and it may be tried again."""


def _checked(ended: Ended, action: str) -> Ended:
    if ended.code != 0:
        raise CommandFailed(f"{action}: {ended.why}")
    return ended


def _program(host: Host, name: str, only: Path | None = None) -> str:
    if path := host.program(name, only):
        return path
    raise CommandFailed(f"{name} is not in {only or host.path}: install it")


# --- a reset


def bus_id(slot: str) -> str:
    """Return the address as nvidia-smi prints it."""
    domain, _, rest = slot.partition(":")
    return f"{int(domain, 16):08X}:{rest.upper()}"


def persistence(host: Host, slot: str, *, on: bool) -> tuple[str, ...]:
    """Return the command that switches the persistence mode of one GPU."""
    return (host.program("nvidia-smi") or "nvidia-smi", "-i", bus_id(slot), "-pm", str(int(on)))


def reset(host: Host, slots: Sequence[str], run: Run, *, alone: bool) -> str:
    """Reset one GPU, or all in one command. Raises CommandFailed, also if nvidia-smi reports another GPU as reset."""
    chosen = ("-i", bus_id(slots[0])) if alone else ()
    ended = _checked(run(_program(host, "nvidia-smi"), "--gpu-reset", *chosen), "nvidia-smi --gpu-reset")
    were = {slot_of(address) for address in _RESET.findall(ended.output)}
    if alone and were and were != set(slots):
        raise CommandFailed(f"nvidia-smi was to reset {slots[0]} and reports that it reset {', '.join(sorted(were))}")
    if were and (missing := set(slots) - were):
        raise CommandFailed(f"nvidia-smi did not reset {', '.join(sorted(missing))}")
    return f"the GPU at {slots[0]} was reset" if alone else f"{len(slots)} GPUs were reset"


# --- the driver


def loaded(host: Host, modules: Sequence[str]) -> tuple[str, ...]:
    """Return those of the modules that are loaded."""
    return tuple(name for name in modules if (host.sysfs / "module" / name / "initstate").exists())


def users_of_driver(host: Host, own_modules: Collection[str]) -> list[str]:
    """Return the modules that use the driver and are not among `own_modules`."""
    folder = host.sysfs / "module"
    users = [entry.name for module in ("nvidia", "nvidia_uvm") for entry in _listed(folder / module / "holders")]
    return sorted(set(users) - set(own_modules))


def reload(host: Host, modules: Sequence[str], run: Run) -> str:
    """Unload these modules, in their order, and load them again; the driver alone if none was loaded. Raises CommandFailed."""
    modprobe = _program(host, "modprobe")
    for name in modules:
        _checked(run(modprobe, "-r", name), f"cannot unload {name}: modprobe -r")
    for name in reversed(modules or ("nvidia",)):
        _checked(run(modprobe, name), f"cannot load {name}: modprobe")
    return "the driver was loaded again" if modules else "the driver was loaded"


def _listed(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


# --- a reboot


def reboot(host: Host, settings: Settings, reason: str, run: Run) -> str:
    """Order the reboot, by the site's command or else by Slurm, once its reason is in the system log. Raises
    CommandFailed.

    Neither "ASAP" nor "nextstate=resume" is requested, since Slurm would use the node before any test: a drained and
    empty node boots at once, and the drain stays. The reason replaces that of the drain, so it is the same text
    (`scontrol(1)`; tried with a real Slurm).
    """
    send_line(host.system_log, f"reboots this node: {reason}", host.now())
    if settings.reboot_command:
        _checked(run("/usr/bin/env", f"{_REASON}={reason}", *settings.reboot_command), "the site's reboot command")
        return "the site's command has ordered a reboot"
    if not settings.slurm:
        raise CommandFailed("nothing reboots this node: set repair.reboot_command, or enable [slurm]")
    node = _node(host, settings)
    words = ("reboot", f"reason={reason}", node)
    variables = slurm_environment(host.variables, settings.slurm_conf)
    assignments = [f"{name}={value}" for name, value in variables.items() if host.variables.get(name) != value]
    ended = run("/usr/bin/env", *assignments, _program(host, "scontrol", settings.slurm_folder), *words)
    if ended.code and _UNANSWERED in ended.output:
        return f"Slurm may reboot {node} once it answers again: scontrol reboot: {ended.why}"
    if ended.code is not None and ended.code > 0:  # one that was killed may have given the order
        raise NothingOrdered(f"scontrol reboot of {node}: {ended.why}")
    _checked(ended, f"scontrol reboot of {node}")
    return f"Slurm reboots {node} once its jobs have ended"


def _node(host: Host, settings: Settings) -> str:
    client = SlurmClient(
        conf=settings.slurm_conf, folder=settings.slurm_folder, node=settings.node, inherited=host.variables
    )
    try:
        return asyncio.run(client.routine.node_name())
    except SlurmError as error:
        raise NothingOrdered(str(error)) from error
