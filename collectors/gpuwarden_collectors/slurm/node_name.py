"""Slurm's name of this host."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpuwarden_collectors.slurm.nodes import find_name, is_node_name

if TYPE_CHECKING:
    from gpuwarden_collectors.slurm.client import Commands

NAME_VARIABLE = "SLURMD_NODENAME"


class NodeName:
    """The configured one, else SLURMD_NODENAME, else the answer of `scontrol show aliases HOSTNAME`, which is asked for once."""

    def __init__(self, configured: str = "", *, inherited: Mapping[str, str] = os.environ, hostname: str = "") -> None:
        from_environment = inherited.get(NAME_VARIABLE, "")
        self.hostname = hostname or os.uname().nodename
        """Host name of this machine."""
        self.known = configured or (from_environment if is_node_name(from_environment) else "")
        """Empty until it is found."""

    async def find(self, commands: Commands) -> str:
        """Raises SlurmError: UnknownNode if Slurm knows no such host, Refused if it has several names for it."""
        if not self.known:
            self.known = await find_name(commands, self.hostname)
        return self.known
