"""Root's helper on a host of the tests: programs, sysfs, /proc and services in a folder, GPUs of the compiled NVML library.

with helpers(tmp_path) as sockets:
    host = RepairHost(tmp_path, sockets)
    assert host.ask(host.reset())["done"]
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.fake_nvml_library import FakeNvml, build_library, uuid_of
from support.pci_trees import add_function

TESTS = Path(__file__).parents[1]
PATIENCE = 60.0
PROGRAMS = ("systemctl", "nvidia-smi", "modprobe", "scontrol", "rebooter")
SLOTS = ("0000:1b:00.0", "0000:28:00.0")
UNITS = ("nvidia-persistenced.service", "nvidia-fabricmanager.service", "nvidia-dcgm.service", "nvidia-imex.service")
MODULES = ("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm", "gdrdrv")
BEFORE = sorted(unit for unit in UNITS if "fabric" not in unit)
ALL_STEPS = ("restart_service", "reset_gpu", "reload_driver", "reboot")

Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Helpers:
    """The socket of a process that forks a helper for each connection, and the file that says on which host."""

    socket: Path
    host: Path
    library: Path


@contextmanager
def helpers() -> Iterator[Helpers]:
    with tempfile.TemporaryDirectory() as folder:
        made = Helpers(Path(folder, "sock"), Path(folder, "host"), build_library())
        command = [sys.executable, "-m", "support.repair_helper_command", str(made.socket), str(made.host)]
        process = subprocess.Popen(command, cwd=TESTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        with process:
            assert process.stdout is not None
            process.stdout.readline()
            yield made


class RepairHost:
    """Two H100 without an NVSwitch; persistence daemon, DCGM and IMEX run. Every step is allowed; Slurm reboots."""

    def __init__(self, folder: Path, made: Helpers) -> None:
        self.folder, self._helpers = folder, made
        self.fake = FakeNvml(made.library, folder).write(gpus=2)
        for name in ("bin", "units", "proc", "sys/module", "state"):
            (folder / name).mkdir(parents=True)
        (folder / "state").chmod(0o700)
        script = folder / "bin/programs.sh"
        shutil.copy(TESTS / "support/repair_programs.sh", script)
        for name in PROGRAMS:
            (folder / "bin" / name).symlink_to(script.name)
        for slot in SLOTS:
            self.function(slot)
        self.settings: dict[str, Any] = {"steps": ALL_STEPS, "reboot_command": (), "slurm": True, "node": "n1"}
        self.deadlines: dict[str, float] = {}
        self.kill_after = 0.0
        """Seconds after which the next helper is killed; 0: it is not."""
        self.reset_mode("success")
        self.clear()

    def clear(self) -> None:
        """Everything as at first, but for what the helper remembers, which is kept in `state`."""
        for unit in UNITS:
            self.unit(unit, "inactive" if unit == "nvidia-fabricmanager.service" else "active")
        for module in MODULES:
            self.module(module)
        for name, text in (("calls", ""), ("effects", ""), ("boot", "boot-1"), ("now", "1000000")):
            (self.folder / name).write_text(text)

    def forget(self) -> None:
        """Make it a new host."""
        self.clear()
        (self.folder / "state/notebook.json").unlink(missing_ok=True)

    # --- the host

    def function(self, slot: str, kind: str = "0x030200", driver: str = "nvidia") -> None:
        add_function(self.folder / "sys", slot, vendor="0x10de", **{"class": kind}, device="0x2330", driver=driver)

    def switch(self) -> None:
        self.function("0000:05:00.0", kind="0x068000")

    def unit(self, name: str, state: str, requires: str = "") -> None:
        (self.folder / "units" / name).write_text(f"{state} {requires}\n")

    def module(self, name: str) -> None:
        folder = self.folder / "sys/module" / name
        folder.mkdir(exist_ok=True)
        (folder / "initstate").write_text("live\n")

    def reset_mode(self, mode: str) -> None:
        (self.folder / "reset").write_text(f"{mode}\n")

    def after_reset(self, *lines: str) -> None:
        """Set what the library reads once a reset was done, instead of what it reads now."""
        (self.folder / "control.after").write_text(
            "".join(f"{line}\n" for line in ("gpus 2", "generation hopper", *lines))
        )

    def process(self, pid: int, name: str, *opened: str, unit: str = "") -> None:
        folder = self.folder / "proc" / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "comm").write_text(f"{name}\n")
        (folder / "cgroup").write_text(f"0::/{f'system.slice/{unit}' if unit else 'user.slice'}\n")
        for number, target in enumerate(opened):
            (folder / "fd" / str(number)).symlink_to(target)

    def kill(self, call: int, how: str) -> None:
        (self.folder / "kill").write_text(f"{call} {how}\n")

    def set(self, name: str, text: str = "") -> None:
        (self.folder / name).write_text(text)

    # --- what came of it

    def _lines(self, name: str) -> list[str]:
        return (self.folder / name).read_text().splitlines()

    @property
    def calls(self) -> list[str]:
        return self._lines("calls")

    @property
    def effects(self) -> list[str]:
        """Changes of the host, without those that were undone."""
        return self._lines("effects")

    @property
    def running(self) -> list[str]:
        return sorted(unit for unit in UNITS if self._lines(f"units/{unit}")[0].startswith("active"))

    @property
    def modules(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "sys/module").iterdir())

    # --- requests

    def reset(self, gpu: int = 0, id: str = "try-1") -> Answer:  # noqa: A002 - the protocol's word
        return {"verb": "step", "id": id, "step": "reset_gpu", "slot": SLOTS[gpu], "uuid": uuid_of(gpu)}

    def result(self, id: str = "try-1") -> Answer:  # noqa: A002 - as above
        return self.ask({"verb": "result", "id": id})

    def settled(self, id: str = "try-1") -> Answer:  # noqa: A002 - as above
        """Return the result once nothing of the step runs any more."""
        end = time.monotonic() + PATIENCE
        while (answer := self.result(id))["state"] == "running":
            assert time.monotonic() < end, answer
            time.sleep(0.005)
        return answer

    def wait(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, "waited in vain"
            time.sleep(0.005)

    def lines(self, request: Mapping[str, Any]) -> list[Answer]:
        return [json.loads(line) for line in self.raw(json.dumps(request).encode() + b"\n").splitlines()]

    def ask(self, request: Mapping[str, Any]) -> Answer:
        """The last line of the answer; empty if the helper was killed before it."""
        lines = self.lines(request)
        return lines[-1] if lines and "progress" not in lines[-1] else {}

    def raw(self, data: bytes) -> bytes:
        with self.connected() as connection:
            connection.sendall(data)
            return _all_of(connection)

    def tell(self) -> Path:
        """Have the helpers work on this host from now on. Returns their socket."""
        instructions: dict[str, Any] = {
            "folder": str(self.folder),
            "deadlines": self.deadlines,
            "kill_after": self.kill_after,
            "variables": self.fake.environment,
        }
        instructions["settings"] = {**self.settings, "library": str(self.fake.library)}
        fresh = self._helpers.host.with_name(f"host.{threading.get_ident()}")
        fresh.write_text(json.dumps(instructions))
        fresh.replace(self._helpers.host)
        return self._helpers.socket

    @contextmanager
    def connected(self) -> Iterator[socket.socket]:
        path = self.tell()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE)
            connection.connect(str(path))
            yield connection


def _all_of(connection: socket.socket) -> bytes:
    data = b""
    with suppress(ConnectionResetError):  # a helper that was killed before it read the request
        while part := connection.recv(1 << 16):
            data += part
    return data
