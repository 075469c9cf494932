"""gpuwarden in a machine as its package installs it, with GPUs of the fake NVML library: the units as they are, the code of this tree."""

from __future__ import annotations

import compileall
import importlib.metadata
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuwarden_collectors.simulated_pci import h100, write_tree
from support.daemons import slots
from support.fake_nvml_library import CONTROL_VARIABLE, FakeNvml, build_library
from support.machine import Machine, debian_tree

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "systemd"
VERSION = (3, 11)
"""Of the Python of Debian 12."""
ENABLED = ("gpuwarden.service", "gpuwarden-job.socket", "gpuwarden-checks.socket")
HOME = "/opt/gpuwarden"
HOST = "/fake"
"""Where the machine has its fake library and its PCI bus, writable from here."""


def require_same_python() -> None:
    """The libraries of this Python are used in the machine."""
    if sys.version_info[:2] != VERSION:
        pytest.skip("this test runs gpuwarden in a Debian 12, whose Python is 3.11: it is one of those for Python 3.11")


class FakeGpus:
    """What the machine has for GPUs: `binds` is for the Machine, `fake` sets what they answer."""

    def __init__(self, folder: Path, gpus: int = 2) -> None:
        self.folder = folder / "fake"
        self.folder.mkdir(mode=0o755)
        shutil.copy(build_library(), self.folder)
        self.fake = FakeNvml(build_library(), self.folder).write(gpus=gpus)
        write_tree(self.folder / "sys", [h100(slot) for slot in slots(gpus)])
        for path in (self.folder, *self.folder.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() else 0o644)
        self.binds = {self.folder: HOST}

    def configuration(self, more: str = "") -> str:
        return (
            f'node = "machine"\n[paths]\nsysfs = "{HOST}/sys"\n'
            f'[collectors.nvml]\nlibrary = "{HOST}/{build_library().name}"\ninterval = "1s"\n{more}'
        )

    def environment(self) -> str:
        """A drop-in of the unit."""
        return f"[Service]\nEnvironment={CONTROL_VARIABLE}={HOST}/{self.fake.control.name}\n"


@contextmanager
def machine_with_gpus() -> Iterator[tuple[Machine, FakeGpus]]:
    """A Debian that is not started yet, and what it has for GPUs."""
    require_same_python()
    tree = debian_tree()
    with tempfile.TemporaryDirectory(prefix="gw-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        gpus = FakeGpus(folder)
        yield Machine(tree, folder, binds=gpus.binds), gpus


def install(machine: Machine, gpus: FakeGpus, configuration: str = "") -> None:
    """Install gpuwarden in a machine before it boots, enabled, with the profile *observe*."""
    code(machine)
    for unit in (*UNITS.glob("*.service"), *UNITS.glob("*.socket")):
        machine.copy(unit, f"/usr/lib/systemd/system/{unit.name}")
    for name in ENABLED:
        _link(machine, f"/usr/lib/systemd/system/{_wanted_by(UNITS / name)}.wants/{name}", f"../{name}")
    machine.copy(UNITS / "gpuwarden.sysusers", "/usr/lib/sysusers.d/gpuwarden.conf")
    machine.copy(UNITS / "gpuwarden.tmpfiles", "/usr/lib/tmpfiles.d/gpuwarden.conf")
    machine.copy(UNITS / "termination.conf", "/usr/share/gpuwarden/termination.conf")
    machine.copy(UNITS / "profiles", "/usr/share/gpuwarden/profiles")
    set_profile(machine, "observe")
    machine.write("/etc/systemd/system/gpuwarden.service.d/50-fake.conf", gpus.environment())
    machine.write("/etc/gpuwarden/gpuwarden.toml", configuration or gpus.configuration())


def set_profile(machine: Machine, name: str) -> None:
    """Choose another profile as an operator does."""
    _link(
        machine,
        "/etc/systemd/system/gpuwarden.service.d/10-profile.conf",
        f"/usr/share/gpuwarden/profiles/{name}.conf",
    )


def _link(machine: Machine, path: str, target: str) -> None:
    file = machine.path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    file.symlink_to(target)


def _wanted_by(unit: Path) -> str:
    match = re.search(r"^WantedBy=(.+)$", unit.read_text(), re.MULTILINE)
    assert match is not None
    return match[1]


def code(machine: Machine, home: str = HOME) -> None:
    """A virtual environment at its final place, with this tree in it, as its wheel, and what it needs."""
    site = machine.path(f"{home}/lib/python{VERSION[0]}.{VERSION[1]}/site-packages")
    site.mkdir(parents=True)
    half_written = shutil.ignore_patterns("*.pyc.*")
    shutil.copytree(ROOT / "daemon/gpuwarden", site / "gpuwarden", ignore=half_written)
    shutil.copytree(ROOT / "collectors/gpuwarden_collectors", site / "gpuwarden_collectors", ignore=half_written)
    shutil.copytree(UNITS, site / "gpuwarden/service/systemd")
    for distribution in _needed("gpuwarden", set()):
        for file in distribution.files or ():
            source = Path(str(file.locate()))
            if ".." not in file.parts and file.suffix != ".pth" and source.exists():
                target = site / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
    # Who runs it there may not write beside it, and would compile it at every start. What is compiled already is taken as it is.
    compileall.compile_dir(site, quiet=2)
    machine.write(f"{home}/pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = false\n")
    machine.path(f"{home}/bin").mkdir()
    _link(machine, f"{home}/bin/python3", "/usr/bin/python3")
    start = "import sys\nfrom gpuwarden.cli.main import main\nsys.exit(main())\n"
    machine.write(f"{home}/bin/gpuwarden", f"#!{home}/bin/python3\n{start}", mode=0o755)


def _needed(name: str, seen: set[str]) -> Iterator[importlib.metadata.Distribution]:
    if name in seen:
        return
    seen.add(name)
    distribution = importlib.metadata.distribution(name)
    yield distribution
    for requirement in distribution.requires or ():
        words = re.match(r"[\w.-]+", requirement)
        if words is not None and "extra ==" not in requirement:
            try:
                yield from _needed(words[0], seen)
            except importlib.metadata.PackageNotFoundError:
                continue  # for another Python than this one
