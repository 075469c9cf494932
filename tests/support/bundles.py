"""The .deb and the RPM of a bundle, and of a successor that differs by the version alone.

Of what `make bundle` made, if GPUWARDEN_BUNDLE names its folder. Else of a stand-in: the tree of the package for the Python of
Debian 12, laid out and closed as the bundle is. CPython takes four minutes to build.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import gpuwarden
from gpuwarden_bundle import baseline, build
from gpuwarden_bundle.rpm import rpm
from gpuwarden_deb.contents import write
from gpuwarden_deb.control import project
from gpuwarden_deb.host import this_host
from gpuwarden_deb.paths import COMMAND, LAUNCHER
from support.packages import Packages

VARIABLE = "GPUWARDEN_BUNDLE"
SUCCESSOR = f"{gpuwarden.__version__}.1"
_EPOCH = 1_700_000_000


def made() -> Path | None:
    """The folder with what `make bundle` made, if that is to be tried."""
    return Path(os.environ[VARIABLE]).absolute() if os.environ.get(VARIABLE) else None


class Bundles:
    def __init__(self, folder: Path, packages: Packages) -> None:
        self.folder, self.root = folder, folder / "root"
        self.archives = list(whole.glob(f"*-{platform.machine()}.tar.zst")) if (whole := made()) else []
        version, licence = project()
        architecture = this_host().architecture
        if whole:
            (made_deb,) = whole.glob(f"gpuwarden_*_{architecture}.deb")
            self.deb = Path(shutil.copy(made_deb, folder))
            subprocess.run(["dpkg-deb", "--extract", self.deb, self.root], check=True, timeout=120)
        else:
            shutil.copytree(
                packages.root,
                self.root,
                symlinks=True,
                ignore=shutil.ignore_patterns("DEBIAN", "gpuwarden-system-python"),
            )
            write(self.root / COMMAND.relative_to("/"), LAUNCHER.read_bytes(), 0o755)
        self.needs = baseline.read(self.root)

        def deb_of(each: str) -> Path:
            package = build.deb(self.root, folder, architecture, version=each, needs=self.needs, epoch=_EPOCH, level=1)
            shutil.rmtree(self.root / "DEBIAN")
            return package

        def rpm_of(each: str) -> Path:
            return rpm(
                self.root,
                folder,
                platform.machine(),
                version=each,
                licence=licence,
                needs=self.needs,
                epoch=_EPOCH,
                level=1,
            )

        if not whole:
            self.deb = deb_of(version)
        self.next_deb = deb_of(SUCCESSOR)
        if whole:
            (made_rpm,) = whole.glob(f"gpuwarden-*.{platform.machine()}.rpm")
            self.rpm = Path(shutil.copy(made_rpm, folder))
        else:
            self.rpm = rpm_of(version)
        self.next_rpm = rpm_of(SUCCESSOR)
