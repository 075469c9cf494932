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
from gpuwarden_deb.paths import COMMAND, LAUNCHER, ROOT, WORK


def build(output: Path, version: str = "") -> Path:
    """The package, in the folder `output`. `version`: another than the tree's, to try an upgrade. Raises BuildError."""
    host, epoch = this_host(), build_time(ROOT)
    tree_version, _ = control.project()
    output.mkdir(parents=True, exist_ok=True)
    with work_folder() as stage:
        _fill(stage, host, epoch, tree_version)
        root = stage / "root"
        full = control.debian_version(version or tree_version, host.suffix)
        depends = (host.python_package, *control.libraries(root))
        package = control.Package(control.SYSTEM_PYTHON, full, host.architecture, depends)
        control.describe(root, package, epoch)
        contents.maintainer_scripts(root, root / "DEBIAN")
        inspect(root)
        control.close(root, output / package.file, epoch)
    return output / package.file


@contextmanager
def work_folder() -> Iterator[Path]:
    """Yield a folder for one build, while no other runs. Files made meanwhile are readable by all, whatever the builder's umask."""
    before = os.umask(0o022)
    try:
        WORK.mkdir(parents=True, exist_ok=True)
        with (WORK / "lock").open("w") as lock, tempfile.TemporaryDirectory(dir=WORK) as folder:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield Path(folder)
    finally:
        os.umask(before)


def _fill(stage: Path, host: Host, epoch: int, version: str) -> None:
    """`stage`/root as it will be on the host."""
    root, own = stage / "root", stage / "own"
    tools = environment.tools()
    wheels = environment.wheels(tools, host.python)
    environment.own_wheel(tools, own, epoch)
    packages = environment.make(root, tools=tools, wheels=wheels, own=own, python=host.python)
    contents.write(root / COMMAND.relative_to("/"), LAUNCHER.read_bytes(), 0o755)
    contents.lay(root, version, epoch)
    url = f"pkg:deb/{host.suffix}/gpuwarden@{version}?arch={host.architecture}"
    sbom.lay(root, sbom.parts(packages, wheels, own), version=version, package=url, epoch=epoch)
