"""Builds the package, from the lock and the tree to the .deb; the steps are on this screen.

dpkg-deb alone is used. debhelper would bring its own way of building Python, which puts modules into the distribution's own
folders, and what is left of it here is the five lines of the maintainer scripts that it would write.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuwarden_deb import contents, control, environment, sbom
from gpuwarden_deb.host import Host, build_time, this_host
from gpuwarden_deb.inspection import inspect
from gpuwarden_deb.paths import ROOT, WORK


def build(output: Path, version: str = "") -> Path:
    """The package, in the folder `output`. `version`: another than the tree's, to try an upgrade. Raises BuildError."""
    host, epoch = this_host(), build_time(ROOT)
    tree_version, _ = control.project()
    WORK.mkdir(parents=True, exist_ok=True)
    output.mkdir(parents=True, exist_ok=True)
    with (WORK / "lock").open("w") as lock, tempfile.TemporaryDirectory(dir=WORK) as folder, _readable_by_all():
        fcntl.flock(lock, fcntl.LOCK_EX)
        stage = Path(folder)
        _fill(stage, host, epoch, tree_version)
        full = control.describe(stage / "root", host, version or tree_version, epoch)
        contents.maintainer_scripts(stage / "root", stage / "root/DEBIAN")
        inspect(stage / "root")
        package = output / f"gpuwarden_{full}_{host.architecture}.deb"
        close(stage / "root", package, epoch)
    return package


@contextmanager
def _readable_by_all() -> Iterator[None]:
    """Files made meanwhile are readable by all, whatever the builder's umask."""
    before = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(before)


def _fill(stage: Path, host: Host, epoch: int, version: str) -> None:
    """`stage`/root as it will be on the host."""
    root, own = stage / "root", stage / "own"
    tools = environment.tools()
    wheels = environment.wheels(tools, host.python)
    environment.own_wheel(tools, own, epoch)
    packages = environment.make(root, tools=tools, wheels=wheels, own=own, python=host.python)
    contents.lay(root, version, epoch)
    parts = sbom.parts(packages, wheels, own)
    url = f"pkg:deb/{host.suffix}/gpuwarden@{version}?arch={host.architecture}"
    contents.write(root / contents.SBOM, sbom.sbom(parts, version=version, package=url, epoch=epoch).encode())
    contents.write(root / contents.DOC / "copyright", sbom.copyright_file(parts).encode())


def close(root: Path, package: Path, epoch: int) -> None:
    """Everything belongs to root, and no file is younger than the tree: the same tree gives the same bytes.

    zstd, which dpkg knows since Debian 12 and Ubuntu 21.10, takes 0.1 s where xz takes 16 s to save a quarter.
    """
    environment.run("dpkg-deb", "-Zzstd", "--root-owner-group", "--build", str(root), str(package), epoch=epoch)
