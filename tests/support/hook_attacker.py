"""The daemon's user as an attacker: swaps all that lies in its run and state directory, as fast as it can, until it is killed.

    python -m support.hook_attacker FOLDER

`FOLDER` is a `HookHost`'s. Started as root, it becomes nobody before it does anything.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import random
import shutil
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

NOBODY = 65534
VERDICT = (
    "format=1\nboot_id={boot}\nstamp={stamp}\nfresh_for=100000\nmode=enforce\nsimulated=0\nstate={state}\nnode_state={state}\n"
    "schedulable=0\nexcluded=1\nexcluded_by=slurm:failure\nbreaker=0\nreason=gpu_missing\n"
)


BURST = 1000
_LIBC = ctypes.CDLL(None, use_errno=True)
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def exchange(path: Path, other: Path) -> None:
    """Exchange two paths atomically by renameat2(2)."""
    if _LIBC.renameat2(_AT_FDCWD, bytes(path), _AT_FDCWD, bytes(other), _RENAME_EXCHANGE):
        raise OSError(ctypes.get_errno(), "renameat2")


class Attacker:
    def __init__(self, folder: Path) -> None:
        self._run = folder / "run"
        self._state = folder / "state"
        self._own = folder / "attacker"
        self._root = folder / "root"
        self._chance = random.Random(0)
        self._number = itertools.count()
        self._boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self._stamp = int(Path("/proc/uptime").read_text().split(".")[0])
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._own / "sock"))
        self._listener.listen(8)  # and never answers

    def swap_for_ever(self) -> None:
        targets = {
            self._run / "verdict": self._verdict,
            self._run / "control.sock": self._socket,
            self._run / "jobs": self._jobs,
            self._state / "slurm-hooks": self._settings,
            self._state / "refuse": self._settings,
        }
        swaps = 0
        while True:
            targets |= {self._mark(ahead): self._anything for ahead in (0, 1)}
            target = self._chance.choice(list(targets))
            with suppress(OSError):
                replacement, other = (self._made(targets[target]) for _ in range(2))
                self._put(replacement, target)
                for _ in range(BURST):  # what a script has just tested is another thing when it opens it
                    exchange(target, other)
                swaps += BURST
            if swaps % (100 * BURST) == 0:
                (self._own / "swaps").write_text(str(swaps))

    def _made(self, make: Callable[[Path], None]) -> Path:
        new = self._own / f"new-{next(self._number)}"
        make(new)
        return new

    def _put(self, new: Path, target: Path) -> None:
        """Move `new` to the target by one rename, after removing a folder in its place."""
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        new.rename(target)

    def _mark(self, ahead: int) -> Path:
        """The name by which the health check knows a healthy node, now or in the next eight seconds."""
        uptime = int(Path("/proc/uptime").read_text().split(".")[0])
        return self._run / f".healthy.{self._boot[:8]}.{uptime // 8 + ahead}"

    def _anything(self, new: Path) -> None:
        make = self._chance.choice((self._verdict, self._socket, self._jobs, self._settings))
        make(new)

    def _verdict(self, new: Path) -> None:
        match self._chance.randrange(7):
            case 0 | 1:
                state = self._chance.choice(("failure", "healthy"))
                new.write_text(VERDICT.format(boot=self._boot, stamp=self._stamp, state=state))
            case 2:
                os.mkfifo(new)
            case 3:
                new.symlink_to(self._own / "pipe")
            case 4:
                new.symlink_to(self._root / "precious")
            case 5:
                with new.open("wb") as file:
                    file.truncate(1 << 40)
            case _:
                new.mkdir()

    def _socket(self, new: Path) -> None:
        match self._chance.randrange(6):
            case 0 | 1 | 2:
                os.link(self._own / "sock", new)
            case 3:
                os.mkfifo(new)
            case 4:
                new.symlink_to(self._own / "pipe")
            case _:
                new.symlink_to(self._root / "sock")

    def _jobs(self, new: Path) -> None:
        match self._chance.randrange(3):
            case 0:
                new.symlink_to(self._root)
            case 1:
                new.symlink_to(self._own / "folder")
            case _:
                new.mkdir()
                for job in range(5):
                    (new / str(job)).symlink_to(self._root / "precious")
                for job in range(5, 10):
                    os.mkfifo(new / str(job))

    def _settings(self, new: Path) -> None:
        """Replace the settings that the scripts once believed by a link to a file of root's, or by the attacker's own text."""
        if self._chance.randrange(2):
            new.symlink_to(self._root / "settings")
        else:
            program = self._own / "program"
            new.write_text(f"mode=enforce\non_stale=drain\ndrain_by=hook\ncommand={program}\n")


def main() -> None:
    folder = Path(sys.argv[1])
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    Attacker(folder).swap_for_ever()


if __name__ == "__main__":
    main()
