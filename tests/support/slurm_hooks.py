"""The scripts that Slurm runs, in every shell of this host, on a verdict of ours."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "systemd/slurm"
BUSYBOX = os.environ.get("GPUWARDEN_TEST_BUSYBOX") or shutil.which("busybox")
SHELLS: dict[str, Sequence[str]] = {
    name: words
    for name, words in {
        "dash": ("dash",),
        "bash": ("bash", "--posix"),
        "busybox": (BUSYBOX or "busybox", "sh"),
    }.items()
    if shutil.which(words[0])
}


def uptime() -> int:
    return int(Path("/proc/uptime").read_text().split(".")[0])


def boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


HEALTHY: Mapping[str, object] = {
    "format": 1, "boot_id": boot(), "stamp": 0, "fresh_for": 15, "mode": "enforce", "simulated": 0, "state": "healthy",
    "node_state": "healthy", "schedulable": 1, "excluded": 0, "excluded_by": "", "breaker": 0, "reason": "",
}  # fmt: skip
"""As the daemon writes it; `stamp` is put in by `Host.verdict`."""


class HookHost:
    """What the scripts find on a node: a run directory, a state directory, and a gpuwarden that notes how it was called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        self.state_dir = folder / "state"
        self.calls = folder / "calls"
        self.run_dir.mkdir()
        self.state_dir.mkdir()
        self.command = folder / "gpuwarden"
        self.answer("exit 0")

    def answer(self, script: str) -> None:
        """What the gpuwarden of this host does after it has noted its words and Slurm's variable."""
        self.command.write_text(f'#!/bin/sh\necho "SLURM_CONF=$SLURM_CONF $*" >>{self.calls}\n{script}\n')
        self.command.chmod(0o755)

    def verdict(
        self, given: Mapping[str, object] | None = None, *, gpus: Mapping[int, str] | None = None, **more: object
    ) -> None:
        """A good node's, but for what is `given`; `age` in seconds stands for a stamp."""
        health = {f"gres.{n}": health for n, health in (gpus or {}).items()}
        keys = {"stamp": uptime(), **health, **(given or {}), **more}
        if "age" in keys:
            keys["stamp"] = uptime() - int(str(keys.pop("age")))
        lines = {**HEALTHY, **keys}
        (self.run_dir / "verdict").write_text("".join(f"{key}={value}\n" for key, value in lines.items()))

    def settings(self, **keys: object) -> None:
        lines = {"mode": "enforce", "command": self.command, "slurm_conf": "/etc/slurm/other.conf", **keys}
        (self.state_dir / "slurm-hooks").write_text("".join(f"{key}={value}\n" for key, value in lines.items()))

    def environment(self, **more: str) -> dict[str, str]:
        """As slurmd gives it: no PATH."""
        places = {"GPUWARDEN_RUN_DIR": str(self.run_dir), "GPUWARDEN_STATE_DIR": str(self.state_dir)}
        return {"SLURMD_NODENAME": "n7", **places, **more}

    def run(self, script: str, shell: Sequence[str], **more: str) -> subprocess.CompletedProcess[str]:
        words = [shutil.which(shell[0]) or shell[0], *shell[1:], str(SCRIPTS / f"gpuwarden-slurm-{script}")]
        return subprocess.run(
            words, env=self.environment(**more), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False, cwd="/",
        )  # fmt: skip

    def called(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []
