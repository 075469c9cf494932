"""What the helper needs of the host and the configuration. Production uses the defaults, tests their own folders."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from gpuwarden.features.repair.helper.programs import Ended, run
from gpuwarden_collectors.dataclass import dataclass

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def _boot(proc: Path) -> str:
    return (proc / "sys/kernel/random/boot_id").read_text("ascii").strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host. `deadlines`: seconds by program or reading, in place of those in the tables."""

    folder: Path = Path("/var/lib/gpuwarden-repair")
    """The notebook and the locks, root's alone. Not below the daemon's state directory, which the daemon can write."""
    proc: Path = Path("/proc")
    sysfs: Path = Path("/sys")
    system_log: Path = Path("/dev/log")
    """The socket of the system's log."""
    path: str = PATH
    """Where programs are searched. Fixed, so that the environment of the helper has no influence."""
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    deadlines: Mapping[str, float] = field(default_factory=dict)
    grace: float = 3.0
    """Seconds to wait for the end of a program after SIGTERM, and again after SIGKILL."""
    now: Callable[[], float] = time.time
    """Wall clock, since limits span reboots."""
    boot: Callable[[], str] = field(default_factory=lambda: lambda: _boot(Path("/proc")))

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment of programs."""
        return {**self.environment, "PATH": self.path, "LC_ALL": "C"}

    def within(self, name: str, seconds: float) -> float:
        """Return the deadline of a program, or of a reading."""
        return self.deadlines.get(name, seconds)

    def run(self, command: Sequence[str], seconds: float, held: int | None = None) -> Ended:
        """Run a program within its deadline. It keeps `held`, an open lock, as long as it lives."""
        return run(command, self.within(Path(command[0]).name, seconds), self.variables, held, self.grace)

    def program(self, name: str, only: Path | None = None) -> str:
        """Return the path of a program, or "" if there is none. `only`: the folder that it must be in; None: that of any program."""
        folders = map(Path, self.path.split(":")) if only is None else (only,)
        return next((str(path) for folder in folders if os.access(path := folder / name, os.X_OK)), "")
