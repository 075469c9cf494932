"""gpuwarden and its libraries at /opt/gpuwarden, as the Debian package has them, for the Python of the image.

A virtual environment made by hand: neither the Python of the image nor its pip runs on this host.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from gpuwarden_deb import environment
from gpuwarden_deb.contents import DOC, SBOM, write
from gpuwarden_deb.control import project
from gpuwarden_deb.paths import COMMAND, HOME, REQUIREMENTS, ROOT
from gpuwarden_deb.sbom import copyright_file, parts, sbom
from gpuwarden_image.debian import PYTHON

_GLIBC = range(36, 4, -1)
"""Of the wheels that may be taken, 2.x, the first that there is: the image's is 2.36."""
_COMMAND = f"""#!{HOME}/bin/python3 -P
import sys

from gpuwarden.cli.main import main

sys.exit(main())
"""


def make(stage: Path, folder: Path, machine: str, epoch: int) -> None:
    """Lays them into `stage`. `machine`: x86_64 or aarch64. `folder`: for what is needed on the way. Raises BuildError."""
    tools = environment.tools()
    wheels, own = _wheels(tools, machine), folder / "own"
    environment.own_wheel(tools, own, epoch)
    home = stage / HOME.relative_to("/")
    packages = home / f"lib/python{PYTHON}/site-packages"
    target = ("--target", str(packages), "--no-compile", "--no-deps", "--no-index", *_tags(machine))
    environment.run(*_pip(tools), *target, "--find-links", str(wheels), "--require-hashes", "-r", str(REQUIREMENTS))
    environment.run(*_pip(tools), *target, "--find-links", str(own), "gpuwarden")
    shutil.rmtree(packages / "bin", ignore_errors=True)  # nobody calls what comes with a library
    (home / "bin").mkdir()
    for name in ("python", "python3"):
        (home / "bin" / name).symlink_to(f"/usr/bin/python{PYTHON}")
    write(home / "bin/gpuwarden", _COMMAND.encode(), 0o755)
    write(home / "pyvenv.cfg", b"home = /usr/bin\ninclude-system-site-packages = false\n")
    (stage / "usr/bin").mkdir(parents=True)
    (stage / "usr/bin/gpuwarden").symlink_to(COMMAND)
    _describe(stage, packages, (wheels, own), epoch)


def _describe(stage: Path, packages: Path, wheels: tuple[Path, Path], epoch: int) -> None:
    version, _ = project()
    rows = parts(packages, *wheels)
    url = f"pkg:oci/gpuwarden@{version}"
    write(stage / SBOM, sbom(rows, version=version, package=url, epoch=epoch).encode())
    write(stage / DOC / "copyright", copyright_file(rows).encode())
    write(stage / DOC / "LICENSE", (ROOT / "LICENSE").read_bytes())


def _wheels(tools: Path, machine: str) -> Path:
    """The folder with the wheels of the lock for the Python of the image."""

    def make(folder: Path) -> None:
        lock = ("--no-deps", "--require-hashes", "-r", str(REQUIREMENTS), "--dest", str(folder))
        environment.run(str(tools), *_QUIET, "download", *_tags(machine), *lock)

    return environment.kept("wheels", REQUIREMENTS, PYTHON, machine, make=make)


_QUIET = ("-m", "pip", "--isolated", "--quiet", "--disable-pip-version-check")


def _pip(tools: Path) -> tuple[str, ...]:
    return (str(tools), *_QUIET, "install")


def _tags(machine: str) -> tuple[str, ...]:
    platforms = (f"manylinux_2_{minor}_{machine}" for minor in _GLIBC)
    named = (part for platform in platforms for part in ("--platform", platform))
    return ("--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp", *named)
