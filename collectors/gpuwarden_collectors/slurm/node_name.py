"""Slurm's name of this host."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpuwarden_collectors.slurm.nodes import find_name, is_node_name, name_in_conf

if TYPE_CHECKING:
    from gpuwarden_collectors.slurm.client import Commands

NAME_VARIABLE = "SLURMD_NODENAME"


class NodeName:
    """Slurm's name of this host: configured, else SLURMD_NODENAME, else from `scontrol show aliases HOSTNAME`."""

    def __init__(self, configured: str = "", *, inherited: Mapping[str, str] = os.environ, hostname: str = "") -> None:
        from_environment = inherited.get(NAME_VARIABLE, "")
        self.hostname = hostname or os.uname().nodename
        """Host name of this machine."""
        self.known = configured or (from_environment if is_node_name(from_environment) else "")
        """Empty until it is found."""
        self._is_set = bool(self.known)
        self._is_in_conf = False

    async def find(self, commands: Commands) -> str:
        """Returns the name. Raises SlurmError: UnknownNode if Slurm has none for this host, Refused if several."""
        if not self.known:
            self.known = await find_name(commands, self.hostname)
        return self.known

    async def find_again(self, commands: Commands) -> str:
        """Returns the name as `find` does, but reads slurm.conf each time, because sites rename nodes, or reuse a
        machine's name for its replacement.
        """
        if not self._is_set:
            name = await name_in_conf(commands, self.hostname)
            if name or self._is_in_conf:
                self.known, self._is_in_conf = name, bool(name)
        return await self.find(commands)
