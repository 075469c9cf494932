"""gpuwarden and its libraries at /opt/gpuwarden, as the Debian package has them, for the Python of the image.

A virtual environment made by hand: neither the Python of the image nor its pip runs on this host.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from gpuwarden_deb import environment, sbom
from gpuwarden_deb.contents import DOC, write
from gpuwarden_deb.control import project
from gpuwarden_deb.paths import COMMAND, HOME, REQUIREMENTS, ROOT
from gpuwarden_image.debian import PYTHON

_GLIBCS = range(36, 4, -1)
"""Of the wheels that may be taken, 2.x, the first that there is: the image's is 2.36."""
_COMMAND = f"""#!{HOME}/bin/python3 -P
import sys

from gpuwarden.cli.main import main

sys.exit(main())
"""


def make(stage: Path, folder: Path, machine: str, epoch: int) -> None:
    """Lays them into `stage`. `machine`: x86_64 or aarch64. `folder`: for what is needed on the way. Raises BuildError."""
    tools = environment.tools()
    other = ("--python-version", PYTHON, "--implementation", "cp", *environment.platforms(machine, _GLIBCS))
    wheels, own = environment.wheels(tools, target=("--no-deps", *other)), folder / "own"
    environment.own_wheel(tools, own, epoch)
    home = stage / HOME.relative_to("/")
    packages = home / f"lib/python{PYTHON}/site-packages"
    install = (
        *(*environment.pip(tools), "--isolated", "install", "--target", str(packages), "--no-compile", "--no-deps"),
        *("--no-index", "--only-binary=:all:", *other),
    )
    environment.run(*install, "--find-links", str(wheels), "--require-hashes", "--requirement", str(REQUIREMENTS))
    environment.run(*install, "--find-links", str(own), "gpuwarden")
    shutil.rmtree(packages / "bin", ignore_errors=True)  # nobody calls what comes with a library
    (home / "bin").mkdir()
    for name in ("python", "python3"):
        (home / "bin" / name).symlink_to(f"/usr/bin/python{PYTHON}")
    write(home / "bin/gpuwarden", _COMMAND.encode(), 0o755)
    write(home / "pyvenv.cfg", b"home = /usr/bin\ninclude-system-site-packages = false\n")
    (stage / "usr/bin").mkdir(parents=True)
    (stage / "usr/bin/gpuwarden").symlink_to(COMMAND)
    version, _ = project()
    sbom.lay(
        stage, sbom.parts(packages, wheels, own), version=version, package=f"pkg:oci/gpuwarden@{version}", epoch=epoch
    )
    write(stage / DOC / "LICENSE", (ROOT / "LICENSE").read_bytes())
