"""The scripts that Slurm runs, in every shell of this host, on a verdict of the test."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

PATIENCE = 60.0
NOBODY = 65534
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
    "format": 1, "boot_id": boot(), "stamp": 0, "fresh_for": 60, "mode": "enforce", "simulated": 0, "state": "healthy",
    "node_state": "healthy", "schedulable": 1, "excluded": 0, "excluded_by": "", "breaker": 0, "reason": "",
}  # fmt: skip
"""As the daemon writes it; `stamp` is put in by `Host.verdict`."""


class HookHost:
    """What the scripts find on a node: a run and a state directory, those beside them, and a gpuwarden that notes how it was called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        self.state_dir = folder / "state"
        self.notes = folder / "run-slurm/jobs"
        self.calls = folder / "calls"
        self.run_dir.mkdir()
        self.state_dir.mkdir()
        self.notes.mkdir(parents=True)
        self.command = folder / "gpuwarden"
        self.answer("exit 0")

    def answer(self, script: str) -> None:
        """Set the script that this host's gpuwarden runs after noting its arguments."""
        self.command.write_text(f'#!/bin/sh\necho "$*" >>{self.calls}\n{script}\n')
        self.command.chmod(0o755)

    def give_away(self) -> None:
        """Give the folders to another user than that of the scripts, as systemd does in the profiles observe and jobs."""
        for folder in (self.run_dir, self.state_dir):
            os.chown(folder, NOBODY, NOBODY)

    def verdict(
        self, changes: Mapping[str, object] | None = None, *, gpus: Mapping[int, str] | None = None, **more: object
    ) -> None:
        """A good node's, but for `changes`; `age` in seconds replaces a stamp."""
        health = {f"gres.{n}": health for n, health in (gpus or {}).items()}
        keys = {"stamp": uptime(), **health, **(changes or {}), **more}
        if "age" in keys:
            keys["stamp"] = uptime() - int(str(keys.pop("age")))
        lines = {**HEALTHY, **keys}
        (self.run_dir / "verdict").write_text("".join(f"{key}={value}\n" for key, value in lines.items()))

    def mark_healthy(
        self, *, periods: int = 0, boot_name: str = boot()[:8], make: Callable[[Path], object] | None = None
    ) -> None:
        """The daemon's mark; `periods` later than the present one. `make`: something else than a link in its place."""
        path = self.run_dir / f".healthy.{boot_name}.{uptime() // 8 + periods}"
        if make is None:
            path.symlink_to("verdict")
        else:
            make(path)

    def put_in_place_of_the_verdict(self, kind: str) -> None:
        path = self.run_dir / "verdict"
        match kind:
            case "folder":
                path.mkdir()
            case "pipe":
                os.mkfifo(path)
            case "link to a pipe":
                os.mkfifo(self.run_dir / "pipe")
                path.symlink_to("pipe")
            case "link to nothing":
                path.symlink_to("nothing")
            case "endless file":
                with path.open("wb") as file:
                    file.truncate(1 << 40)

    def refuse(self) -> None:
        """Refuse jobs, as the daemon does with on_stale = "refuse"."""
        folder = self.folder / "state-slurm"
        folder.mkdir()
        (folder / "refuse").touch()

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment as slurmd gives it: without PATH."""
        directories = {"GPUWARDEN_RUN_DIR": str(self.run_dir), "GPUWARDEN_STATE_DIR": str(self.state_dir)}
        return {"SLURMD_NODENAME": "n7", "GPUWARDEN_COMMAND": str(self.command), **directories, **more}

    def run(self, script: str, shell: Sequence[str], **more: str) -> subprocess.CompletedProcess[str]:
        words = [shutil.which(shell[0]) or shell[0], *shell[1:], str(SCRIPTS / f"gpuwarden-slurm-{script}")]
        return subprocess.run(
            words, env=self.environment(**more), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False, cwd="/",
        )  # fmt: skip

    def called(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []

    def wait_for_call(self) -> list[str]:
        """Wait for the command that the scripts start in the background, and return its calls."""
        end = time.monotonic() + PATIENCE
        while not self.called() and time.monotonic() < end:
            time.sleep(0.02)
        return self.called()

    def wait_for_sessions(self) -> None:
        """Wait until all background processes of the scripts have ended."""
        end = time.monotonic() + PATIENCE
        while any(self._sessions()) and time.monotonic() < end:
            time.sleep(0.02)

    def _sessions(self) -> Iterator[str]:
        mark = f"ASK_RUN_DIR={self.run_dir}\0".encode()
        for process in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if process.name.isdecimal() and mark in (process / "environ").read_bytes() + b"\0":
                    yield process.name
