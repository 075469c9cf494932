"""The Debian package of this tree, built once, and another version of the same to go to and come back from."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from gpuwarden_deb.build import build
from gpuwarden_deb.host import COMMANDS
from support.machine import require_machine


def require_build() -> None:
    require_machine()
    missing = [f"{command} (package {package})" for command, package in COMMANDS.items() if not shutil.which(command)]
    if missing:
        pytest.fail(f"this test builds a Debian package: no {', no '.join(missing)}")


class Packages:
    """Two of them: `this` is of the tree, `next` is its successor, which differs by the version alone."""

    def __init__(self, folder: Path) -> None:
        require_build()
        self.this = build(folder)
        self.root = folder / "root"
        subprocess.run(["dpkg-deb", "--raw-extract", self.this, self.root], check=True, timeout=120)
        self.next = self._again(folder / "next.deb", "+next")

    def _again(self, package: Path, more: str) -> Path:
        control = self.root / "DEBIAN/control"
        text = control.read_text()
        control.write_text(text.replace(f"Version: {self.version}\n", f"Version: {self.version}{more}\n"))
        subprocess.run(
            ["dpkg-deb", "-Znone", "--root-owner-group", "--build", self.root, package], check=True, timeout=120
        )
        control.write_text(text)
        return package

    @property
    def version(self) -> str:
        return self.field("Version")

    def field(self, name: str) -> str:
        asked = ["dpkg-deb", "--field", str(self.this), name]
        return subprocess.run(asked, check=True, capture_output=True, text=True, timeout=60).stdout.strip()
