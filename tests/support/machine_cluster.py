"""Booted machines on one network, which go down and come back by themselves, on their disks. For disposable hosts, as root.

    with bridge() as network, Computer((tree,), folder, "gpu1", network, 2) as computer:
        computer.power_on()
        computer.run("systemctl", "reboot")

Each has a network interface, a clock that begins at its boot, and a boot id of each boot. Its disk is a folder in memory: what was written before a
power loss is there after it, whether it was synced or not. The machines share the kernel, and the load.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from support.machine import PATIENCE, Machine, cgroup_mounts, child_of, name_of

REBOOTED = 133
"""Exit code of systemd-nspawn with --keep-unit when the machine asks for a reboot."""
NETWORK = f"10.213.{os.getpid() % 250}"
_START = """
for folder in $CGROUPS; do echo $$ > $folder/cgroup.procs; done
mount -t overlay -o "lowerdir=$LOWER,upperdir=$FOLDER/files,workdir=$FOLDER/memory" overlay "$FOLDER/root"
up=$(cut -d. -f1 /proc/uptime)
exec unshare --time --boottime "-$up" --monotonic "-$up" \\
  systemd-nspawn --quiet --directory="$FOLDER/root" --machine="$NAME" --hostname="$HOST" --boot --keep-unit --register=no \\
  --network-bridge="$BRIDGE" --link-journal=no --resolv-conf=off --timezone=off --console=pipe \\
  --bind="$FOLDER/journal:/var/log/journal" "$@"
"""
# The same hardware address at each boot, since others remember it.
_ADDRESS = """[Unit]
DefaultDependencies=no
Before=network.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -ec 'ip link set host0 address 02:00:00:00:00:{number:02x}; ip address add {address}/24 dev host0; ip link set host0 up'
[Install]
WantedBy=sysinit.target
"""


@contextmanager
def bridge() -> Iterator[str]:
    """The name of a bridge that machines are plugged into, with an address of this host."""
    name = f"gwbr{os.getpid() % 100_000}"
    subprocess.run(["ip", "link", "add", name, "type", "bridge"], check=True)
    try:
        subprocess.run(["ip", "address", "add", f"{NETWORK}.254/24", "dev", name], check=True)
        subprocess.run(["ip", "link", "set", name, "up"], check=True)
        yield name
    finally:
        subprocess.run(["ip", "link", "delete", name], check=True)


class Computer(Machine):
    """A machine that can be switched off and on again. `trees`: what its disk holds at first, the topmost first; `number`: from 1, of its address."""

    def __init__(
        self,
        trees: Sequence[Path],
        folder: Path,
        name: str,
        network: str,
        number: int,
        *,
        binds: Mapping[Path, str] | None = None,
    ) -> None:
        super().__init__(trees[-1], folder, binds=binds)
        self.name, self.address = name, f"{NETWORK}.{number}"
        self.boots = 0
        """How often it booted."""
        self._trees, self._bridge = trees, network
        self._is_on = threading.Event()
        self._off = threading.Lock()
        self._guard: threading.Thread | None = None
        self.write("/etc/hostname", f"{name}\n")
        self.write("/etc/systemd/system/address.service", _ADDRESS.format(number=number, address=self.address))
        self.enable("address.service", "sysinit.target")

    def enable(self, unit: str, target: str = "multi-user.target") -> None:
        """Have it started at each boot. Before the first one."""
        link = self.path(f"/etc/systemd/system/{target}.wants/{unit}")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"/etc/systemd/system/{unit}")

    def __enter__(self) -> Self:
        self.power_on()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.power_off()

    # --- power

    def power_on(self, *, wait: bool = True) -> None:
        """Boot it, now and whenever it asks for that, until it is switched off. `wait` until it has booted."""
        self._is_on.set()
        self._guard = threading.Thread(target=self._run, daemon=True)
        self._guard.start()
        if wait:
            self.wait(self.is_up, f"{self.name} to boot")

    def power_off(self) -> None:
        """Pull its plug: all that runs in it ends at once, -9."""
        with self._off:
            self._is_on.clear()
            self._found()
            self.kill()
        if self._guard is not None:
            self._guard.join(PATIENCE)

    def is_up(self) -> bool:
        """Return whether it has booted. Raises AssertionError once it is off by itself, and was not to be."""
        if not self._is_on.is_set():
            raise AssertionError(f"{self.name} is off:\n{self.console()}")
        return self._found() != 0 and self.output("systemctl", "is-system-running") in ("running", "degraded")

    @property
    def groups(self) -> Sequence[Path]:
        """Return its control groups, as seen from here."""
        return self._cgroups

    def command(self, *words: str) -> list[str]:
        """Return the command by which `words` are run in it, as root. It fails while the machine is off."""
        self._found()
        enter, *others = super().command(*words)
        return [enter, "--time", *others]

    def _run(self) -> None:
        while True:
            with self._off:
                if not self._is_on.is_set():
                    return
                process = self._process = self._booted()
            code = process.wait()
            with self._off:
                if self._is_on.is_set():
                    self._leader = 0  # it ended by itself
                    self.kill()
                    if code != REBOOTED:
                        self._is_on.clear()

    def _found(self) -> int:
        process = self._process
        leader = child_of(process.pid) if process is not None and process.poll() is None else 0
        self._leader = leader if leader and name_of(leader) == "systemd" else 0
        return self._leader

    def _booted(self) -> subprocess.Popen[bytes]:
        self.boots += 1
        name = f"gw{os.getpid()}-{self.name}-{self.boots}"
        self._cgroups = [mount / name for mount in cgroup_mounts()]
        for cgroup in self._cgroups:
            cgroup.mkdir(exist_ok=True)
        environment = {
            "PATH": os.environ["PATH"], "FOLDER": str(self.folder), "LOWER": ":".join(map(str, self._trees)), "NAME": name,
            "HOST": self.name, "BRIDGE": self._bridge, "CGROUPS": " ".join(map(str, self._cgroups)),
        }  # fmt: skip
        unshare = ["unshare", "--mount", "--propagation=private", "setpriv", "--pdeathsig", "KILL"]
        with (self.folder / "console").open("ab") as console:
            return subprocess.Popen(
                [*unshare, "/bin/sh", "-ec", _START, "machine", *self._options],
                env=environment, stdin=subprocess.DEVNULL, stdout=console, stderr=console,
            )  # fmt: skip
