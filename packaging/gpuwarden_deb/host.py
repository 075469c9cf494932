"""The distribution that a package is built on, which is the one that it is for."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuwarden_deb.paths import BuildError

OLDEST = (3, 11)  # requires-python of pyproject.toml
COMMANDS = {
    "dpkg-deb": "dpkg",
    "dpkg-shlibdeps": "dpkg-dev",
    "unshare": "util-linux",
}
"""What the build calls, and the Debian package that has it."""


@dataclass(frozen=True, slots=True)
class Host:
    """`python`: the distribution's own, by the name of its minor version, as in /usr/bin/python3.11: a distribution that
    goes on to the next minor version keeps it for as long as packages depend on it.

    `suffix`: what the version of the package ends with, so that the next release of the distribution has a newer one.
    """

    python: Path
    suffix: str
    architecture: str

    @property
    def python_package(self) -> str:
        return self.python.name


_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def debian_architecture(machine: str) -> str:
    """Debian's name of what `uname -m` calls `machine`, if it is one that is built for. Raises BuildError."""
    if machine not in _ARCHITECTURES:
        raise BuildError(f"gpuwarden is built for {', '.join(_ARCHITECTURES)}, not for {machine}")
    return _ARCHITECTURES[machine]


def require(product: str, commands: Mapping[str, str]) -> None:
    """Raises BuildError if one of the commands, here with their packages, is missing."""
    missing = [f"{command} (package {package})" for command, package in commands.items() if not shutil.which(command)]
    if missing:
        raise BuildError(f"{product} cannot be built here: no {', no '.join(missing)}; apt-get install them")


def this_host(python: Path = Path("/usr/bin/python3")) -> Host:
    """Find out what the package is built for. Raises BuildError if this host cannot build it."""
    require("the package", COMMANDS)
    real = python.resolve()
    version = _output(str(real), "-c", "import sys; print(*sys.version_info[:2])").split()
    if tuple(map(int, version)) < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        raise BuildError(
            f"{real} is Python {'.'.join(version)}, gpuwarden needs {wanted}: on this distribution install it with "
            "`uv tool` or `pipx`, which bring a Python of their own (docs/use/packaging.md)"
        )
    release = platform.freedesktop_os_release()
    return Host(real, _suffix(release), _output("dpkg", "--print-architecture"))


def _suffix(release: Mapping[str, str]) -> str:
    return f"{release['ID']}{release.get('VERSION_ID', '')}"


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


def build_time(root: Path) -> int:
    """Seconds since 1970: SOURCE_DATE_EPOCH if it is set, else the last commit's, so that the same tree gives the same bytes."""
    if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(epoch)
    command = ["git", "-C", str(root), "log", "-1", "--format=%ct"]
    output = ""
    if shutil.which("git"):  # a tree need not be a repository, either
        output = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout.strip()
    return int(output or (root / "pyproject.toml").stat().st_mtime)
