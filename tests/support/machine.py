"""A whole Debian 12 of our own, booted with its own systemd by systemd-nspawn. For disposable hosts, as root.

    with Machine(debian_tree(), tmp_path) as machine:
        machine.run("systemctl", "start", "gpuwarden")

The tree is made once by mmdebstrap and kept; a machine writes into memory on top of it, so that none sees what another
did, and nothing is left of it. It has a network of its own with nothing but loopback in it. It shares the kernel: its
clock, its kernel log, and the load. `disposable.py` defines which hosts may be used for that.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support.debian_trees import BUILD, made_once, mmdebstrap
from support.disposable import require_disposable_host
from support.needs import unmet
from support.systemd import remove_cgroup

PATIENCE = 180.0
"""Seconds after which a test gives up waiting; nothing is asserted about how much of it is used."""
SUITE = "bookworm"
PACKAGES = ("systemd", "systemd-sysv", "dbus", "python3")
NEEDED = {"mmdebstrap": "mmdebstrap", "systemd-nspawn": "systemd-container", "nsenter": "util-linux"}
# debootstrap needs 50 s of processor time for the tree, mmdebstrap 21 s. Without the hook a package with all of Perl merges /usr.
_OPTIONS = ("--variant=minbase", "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr")
# What no test is about, and what takes time at each boot.
_MASKED = (
    *("console-getty.service", "systemd-update-utmp.service", "systemd-update-utmp-runlevel.service"),
    *(
        "apt-daily.timer",
        "apt-daily-upgrade.timer",
        "dpkg-db-backup.timer",
        "e2scrub_all.timer",
        "e2scrub_reap.service",
    ),
)
_START = """
for folder in $CGROUPS; do echo $$ > $folder/cgroup.procs; done
mount -t tmpfs -o size=1g tmpfs "$FOLDER/memory"
mkdir "$FOLDER/memory/work"
cp -a --no-preserve=ownership "$FOLDER/files" "$FOLDER/memory/upper"
mount -t overlay -o "lowerdir=$TREE,upperdir=$FOLDER/memory/upper,workdir=$FOLDER/memory/work" overlay "$FOLDER/root"
exec systemd-nspawn --quiet --directory="$FOLDER/root" --machine="$NAME" --hostname=machine --boot --keep-unit --register=no \
  --private-network --link-journal=no --resolv-conf=off --timezone=off --console=pipe \
  --bind=/dev/kmsg --capability=CAP_SYSLOG --bind="$FOLDER/journal:/var/log/journal" "$@"
"""
_number = itertools.count()


def require_machine() -> None:
    """Skips the test, or fails it in CI, where no machine can be booted, naming what is missing."""
    require_disposable_host()
    missing = [f"{command} (package {package})" for command, package in NEEDED.items() if not shutil.which(command)]
    if missing:
        unmet(f"this test boots a machine: no {', no '.join(missing)}")


def debian_tree(*more: str) -> Path:
    """The tree, with `more` packages, made by the first test that needs it: a download of about a minute. Skips, or fails in CI, as `require_machine`."""
    require_machine()
    packages = (*PACKAGES, *more)
    return made_once(BUILD / "machine", (SUITE, packages, _OPTIONS, _MASKED), lambda tree: _make(tree, packages))


def _make(tree: Path, packages: Sequence[str]) -> None:
    try:
        mmdebstrap(tree, SUITE, packages, *_OPTIONS)
    except SystemExit as error:
        unmet(f"this test boots a machine: {error}")
    subprocess.run(
        ["systemctl", f"--root={tree}", "--quiet", "mask", *_MASKED], check=True, capture_output=True, timeout=60
    )
    subprocess.run(
        ["systemctl", f"--root={tree}", "--quiet", "set-default", "multi-user.target"], check=True, timeout=60
    )
    shutil.rmtree(tree / "var/cache/apt/archives", ignore_errors=True)
    (tree / "etc/machine-id").write_text("")
    (tree / "etc/hostname").write_text("machine\n")


class Machine:
    """A machine that runs inside `with`. `binds`: folders and files of this host that are seen in it, as {here: there}.

    What is written or copied into it before is there when it boots.
    """

    def __init__(self, tree: Path, folder: Path, *, binds: Mapping[Path, str] | None = None) -> None:
        self.folder = folder / f"machine-{next(_number)}"
        self._tree = tree
        self._options = [f"--bind={here}:{there}" for here, there in (binds or {}).items()]
        self._process: subprocess.Popen[bytes] | None = None
        self._leader = 0
        self._cgroups: list[Path] = []
        for name in ("files", "memory", "root", "journal"):
            (self.folder / name).mkdir(parents=True)

    def __enter__(self) -> Self:
        name = f"gpuwarden-test-{os.getpid()}-{self.folder.name}"
        self._cgroups = [mount / name for mount in cgroup_mounts()]
        for cgroup in self._cgroups:
            cgroup.mkdir(exist_ok=True)
        environment = {
            "PATH": os.environ["PATH"], "FOLDER": str(self.folder), "TREE": str(self._tree), "NAME": name,
            "CGROUPS": " ".join(map(str, self._cgroups)),
        }  # fmt: skip
        unshare = ["unshare", "--mount", "--propagation=private", "setpriv", "--pdeathsig", "KILL"]
        with (self.folder / "console").open("wb") as console:
            self._process = subprocess.Popen(
                [*unshare, "/bin/sh", "-ec", _START, "machine", *self._options],
                env=environment, stdin=subprocess.DEVNULL, stdout=console, stderr=console,
            )  # fmt: skip
        try:
            self.wait(self._is_up, "to boot")
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            print(self.journal()[-20_000:])  # noqa: T201 - what a failed test needs
        self.kill()

    # --- what is in it

    @property
    def root(self) -> Path:
        """Its files, as seen from here: those that it will have, or those that it sees now."""
        return Path(f"/proc/{self._leader}/root") if self._leader else self.folder / "files"

    def path(self, path: str) -> Path:
        """`path` of the machine, as seen from here. Links in it lead somewhere else."""
        return self.root / path.lstrip("/")

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        file = self.path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)

    def copy(self, here: Path, there: str) -> None:
        """A file, or a folder with all that is in it."""
        target = self.path(there)
        target.parent.mkdir(parents=True, exist_ok=True)
        if here.is_dir():
            shutil.copytree(here, target, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copy2(here, target)

    # --- what is done in it

    def command(self, *words: str) -> list[str]:
        """The command by which `words` are run in it, as root."""
        enter = ["nsenter", f"--target={self._leader}", *("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")]
        path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return [*enter, "--", "env", "-i", path, "LANG=C.UTF-8", "HOME=/root", *words]

    def run(
        self, *words: str, check: bool = True, timeout: float = PATIENCE, **more: Any
    ) -> subprocess.CompletedProcess[str]:
        """`more`: as of subprocess.run. With `check`, a command that fails is reported with all that it wrote."""
        done: subprocess.CompletedProcess[str] = subprocess.run(
            self.command(*words), capture_output=True, text=True, timeout=timeout, check=False, **more
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done

    def output(self, *words: str) -> str:
        """Return the output of a command, whatever its exit code."""
        return self.run(*words, check=False).stdout.strip()

    def show(self, unit: str, name: str) -> str:
        """Return this property of a unit."""
        return self.output("systemctl", "show", f"--property={name}", "--value", unit)

    def wait(self, condition: Callable[[], object], awaited: str) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(
                    f"waited {PATIENCE:g} s in vain for {awaited}:\n{self.journal()[-5000:]}{self.console()}"
                )
            time.sleep(0.05)

    def journal(self, unit: str = "", *more: str) -> str:
        """All that it holds, or what is about one unit; also when the machine is off."""
        words = [
            f"--directory={self.folder / 'journal'}",
            "--output=short-monotonic",
            "--no-pager",
            "--quiet",
            "--merge",
        ]
        chosen = [f"--unit={unit}"] if unit else []
        return subprocess.run(
            ["journalctl", *words, *chosen, *more], capture_output=True, text=True, timeout=PATIENCE, check=False
        ).stdout

    def console(self) -> str:
        return (self.folder / "console").read_text(errors="replace")[-3000:]

    # --- its end

    def poweroff(self) -> None:
        """Power off as an operator does, and return when the machine is off. Its journal can still be read."""
        assert self._process is not None
        self.run("systemctl", "poweroff")
        self._process.wait(PATIENCE)
        self._leader = 0

    def kill(self) -> None:
        """End the machine at once, as if its plug was pulled."""
        if self._leader:  # it outlives the process that started it; all other processes of the machine end with it
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._leader, signal.SIGKILL)
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._leader = 0
        for cgroup in self._cgroups:
            remove_cgroup(cgroup)

    def _is_up(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"the machine ended instead of booting:\n{self.console()}")
        self._leader = child_of(self._process.pid)
        if not self._leader or name_of(self._leader) != "systemd":  # before it come mount and cp, which end
            return False
        return self.output("systemctl", "is-system-running") in ("running", "degraded")


def child_of(pid: int) -> int:
    """Return the first child of a process; 0 if it has none, or has ended."""
    try:
        words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    return int(words[0]) if words else 0


def name_of(pid: int) -> str:
    """Return the name of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def cgroup_mounts() -> list[Path]:
    """Return the folders in which systemd keeps its groups. Each machine gets a group of its own there, as two would
    take the same otherwise.
    """
    lines = [line.partition(" - ") for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [
        Path(left.split()[4])
        for left, _, right in lines
        if right.startswith("cgroup2 ") or (right.startswith("cgroup ") and "name=systemd" in right)
    ]


if __name__ == "__main__":  # every tree that a test asks for: nothing is made in that folder while tests run
    from support.machine_slurm import PACKAGES as OF_SLURM

    for of_a_test in ((), OF_SLURM):
        debian_tree(*of_a_test)
