"""The keys of `[repair]`: which steps gpuwarden may take to repair this node, and how many at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gpuwarden.base import quiet_hours
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.options import Misfit, bounded

if TYPE_CHECKING:
    from gpuwarden.config.model import Config

_WORDS_MOST = 64


@dataclass(frozen=True, slots=True)
class RepairOptions:
    """What gpuwarden may do to repair this node ([repair.md](../use/repair.md)). It does so only in mode enforce, and counts what it would do in mode observe."""

    steps: tuple[Literal["restart_service", "reset_gpu", "reload_driver", "reboot"], ...] = ()
    """The steps that are allowed. Empty: gpuwarden repairs nothing."""
    socket: Path = Path("/run/gpuwarden-repair.sock")
    """The socket of root's helper, which carries the steps out ([systemd.md](../use/systemd.md))."""
    at_once: int = bounded(1, 1, 1_000, "a bad rule must not take many nodes down together")
    """How many nodes of the fleet are repaired at once. Works only if `[slurm]` is enabled; else only the breaker bounds it."""
    per_day: int = bounded(10, 1, 10_000, "a bad rule must not go through the fleet in a day")
    """How many repairs of the fleet begin within 24 hours. Without `[slurm]`: how many of this node."""
    quiet_hours: tuple[str, ...] = ()
    """Hours, in the host's local time, in which gpuwarden begins no repair by itself, such as `22:00-06:00`. An operator's `gpuwarden repair` ignores them."""
    reboot_command: tuple[str, ...] = ()
    """Absolute path of a program that reboots this node, and its arguments, where there is no Slurm; it runs as root, without a shell. Empty: Slurm reboots it."""

    def quiet(self, minute: int) -> bool:
        """Return True if `minute` of the local day is within `quiet_hours`."""
        return quiet_hours.quiet(self.quiet_hours, minute)


def misfits(config: Config) -> Iterator[Misfit]:
    """Yield values that have the right type but are wrong, by their keys."""
    repair = config.of(RepairOptions)
    for fault in quiet_hours.faults(repair.quiet_hours):
        yield ("repair.quiet_hours",), fault
    if repair.steps and not config.excludes:
        message = "expected an actuator beside it ([slurm] or another): only a node that gpuwarden excluded is repaired"
        yield ("repair.steps",), message
    if "reboot" in repair.steps and not (config.slurm.enabled or repair.reboot_command):
        message = 'expected repair.reboot_command or [slurm] enabled beside "reboot": something must reboot the node'
        yield ("repair.steps", "repair.reboot_command"), message
    command = repair.reboot_command
    if command and not (command[0].startswith("/") and len(command) <= _WORDS_MOST):
        message = f"expected an absolute path and at most {_WORDS_MOST - 1} arguments, found {command[0][:60]!r} with {len(command) - 1}"
        yield ("repair.reboot_command",), message


def repairs(config: Config) -> bool:
    """Return True if this node may be repaired: then a test comes before its return."""
    return bool(config.of(RepairOptions).steps)


TABLES = {"repair": RepairOptions}
