"""The helper's settings: it reads the configuration as root, anew for each request."""

from __future__ import annotations

from pathlib import Path

from gpuwarden.config.model import Config
from gpuwarden.features.repair.options import RepairOptions
from gpuwarden_collectors.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The helper's settings. `steps`: the allowed ones. `node`: Slurm's name of this host, "" if it must be found."""

    enforce: bool = True
    steps: tuple[str, ...] = ()
    reboot_command: tuple[str, ...] = ()
    slurm: bool = False
    slurm_conf: Path | None = None
    slurm_folder: Path | None = None
    """Folder of Slurm's commands; None: that of all programs."""
    node: str = ""
    library: str = ""


def settings_of(config: Config) -> Settings:
    """Return the helper's settings by the configuration."""
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
