"""What the configuration lets the helper do. It is read anew, as root, for each request."""

from __future__ import annotations

from pathlib import Path

from gpuwarden.config.model import Config
from gpuwarden.features.repair.options import RepairOptions
from gpuwarden_collectors.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`steps`: those that are allowed. `node`: Slurm's name of this host, "" if it is to be found."""

    enforce: bool = True
    steps: tuple[str, ...] = ()
    reboot_command: tuple[str, ...] = ()
    slurm: bool = False
    slurm_conf: Path | None = None
    slurm_folder: Path | None = None
    """That of Slurm's commands; None: they are where all programs are."""
    node: str = ""
    library: str = ""


def settings_of(config: Config) -> Settings:
    """Return what the configuration says."""
    repair = config.of(RepairOptions)
    return Settings(
        enforce=config.mode == "enforce",
        steps=repair.steps,
        reboot_command=repair.reboot_command,
        slurm=config.slurm.enabled,
        slurm_conf=config.slurm.conf,
        slurm_folder=config.slurm.folder,
        node=config.slurm.node,
        library=config.collectors.nvml.library,
    )
