"""Slurm's programs as scripts that show one node, n1, and note what they were asked: for states that a Slurm here cannot be brought into."""

from __future__ import annotations

from pathlib import Path

from gpuwarden_collectors.slurm.client import Commands, SlurmClient
from support.daemons import PATIENCE


class ShownNode:
    """`sinfo` shows the state and the reason; `squeue` the `jobs`, by their state R or CG; None: it fails."""

    def __init__(self, folder: Path, state: str, reason: str = "", *, jobs: str | None = "") -> None:
        self._folder = folder
        (folder / "slurm.conf").touch()
        self.shows(state, reason)
        listed = f'case "$*" in *states=*{jobs or "none"}*) echo "7|1001|alice|-|train" ;; esac'
        squeue = "exit 1" if jobs is None else listed
        for name, script in (("sinfo", "cat node"), ("squeue", squeue), ("scontrol", ":")):
            (folder / name).write_text(f"#!/bin/sh\ncd {folder}\necho {name} $* >>asked\n{script}\n")
            (folder / name).chmod(0o755)
        self.client = SlurmClient(folder=folder, conf=folder / "slurm.conf", timeout=PATIENCE, node="n1")

    @property
    def commands(self) -> Commands:
        return self.client.routine

    def shows(self, state: str, reason: str) -> None:
        fields = ("n1", "gpu", state, "1795316951", "gpu:8", "", "", reason)
        (self._folder / "node").write_text("\x1f".join(fields) + "\x1e\n")

    def asked(self, program: str) -> list[str]:
        lines = (self._folder / "asked").read_text().splitlines()
        return [line for line in lines if line.startswith(program)]
