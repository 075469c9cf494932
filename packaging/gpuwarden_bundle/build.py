"""Builds the bundle, from CPython's source and the lock to an archive, a .deb and an RPM; the steps are on this screen."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

from gpuwarden_bundle import baseline
from gpuwarden_bundle.archive import archive
from gpuwarden_bundle.cpython import CPython, cpython
from gpuwarden_bundle.rpm import rpm
from gpuwarden_deb import contents, control, environment, sbom
from gpuwarden_deb.build import work_folder
from gpuwarden_deb.host import build_time, debian_architecture, require
from gpuwarden_deb.inspection import inspect
from gpuwarden_deb.paths import COMMAND, LAUNCHER, ROOT

COMMANDS = {"dpkg-deb": "dpkg", "rpmbuild": "rpm", "readelf": "binutils", "zstd": "zstd", "unshare": "util-linux"}
LEVEL = 19
"""Of zstd: half a minute for each file, which is made once and fetched 8,000 times."""
GLIBCS = (28, 27, 26, 25, 24, 17)
"""Of the wheels that are taken, newest first: manylinux_2_28 and older, which run on RHEL 8."""


def build(output: Path) -> list[Path]:
    """The archive, the .deb and the RPM, in the folder `output`, with a list of what they need of a host. Raises BuildError."""
    require("the bundle", COMMANDS)
    version, licence = control.project()
    machine, epoch = platform.machine(), build_time(ROOT)
    architecture = debian_architecture(machine)
    output.mkdir(parents=True, exist_ok=True)
    with work_folder() as folder:
        root = folder / "root"
        _fill(root, cpython(), machine, epoch, version)
        inspect(root)
        needs = baseline.read(root)
        baseline.check(needs)
        name = f"gpuwarden-{version}-linux-{machine}"
        (output / f"{name}.symbols").write_text(baseline.recorded(needs))
        archive(root, output / f"{name}.tar.zst", epoch=epoch, level=LEVEL)
        deb_file = deb(root, output, architecture, version=version, needs=needs, epoch=epoch, level=LEVEL)
        shutil.rmtree(root / "DEBIAN")
        rpm_file = rpm(root, output, machine, version=version, licence=licence, needs=needs, epoch=epoch, level=LEVEL)
    return [output / f"{name}.tar.zst", deb_file, rpm_file, output / f"{name}.symbols"]


def _fill(root: Path, python: CPython, machine: str, epoch: int, version: str) -> None:
    """`root` as it will be on the host."""
    own = root.parent / "own"
    tools = environment.tools()
    wheels = environment.wheels(tools, python.tree / "bin/python3", environment.platforms(machine, GLIBCS))
    environment.own_wheel(tools, own, epoch)
    packages = environment.make(root, tools=tools, wheels=wheels, own=own, python=python.tree, start=environment.COPY)
    environment.run("strip", "--strip-debug", *map(str, control.elf_files(packages)))  # a tenth of the bundle
    contents.write(root / COMMAND.relative_to("/"), LAUNCHER.read_bytes(), 0o755)
    contents.lay(root, version, epoch)
    purl = f"pkg:deb/debian/python3.13@{python.version.replace('+', '%2B')}?arch=source&distro=trixie"
    interpreter = sbom.Part("cpython", python.version, "PSF-2.0", True, python.sha256, (), purl)
    parts = [interpreter, *sbom.parts(packages, wheels, own)]
    url = f"pkg:generic/gpuwarden@{version}?arch={machine}"
    sbom.lay(root, parts, version=version, package=url, epoch=epoch)


def deb(
    root: Path,
    output: Path,
    architecture: str,
    *,
    version: str,
    needs: list[baseline.Need],
    epoch: int,
    level: int = 3,
) -> Path:
    """The .deb of the tree, in the folder `output`."""
    depends = [each for each in baseline.debian_packages(needs) if each != baseline.LIBC]
    package = control.Package(control.BUNDLE, control.debian_version(version), architecture, depends, (baseline.LIBC,))
    control.describe(root, package, epoch)
    contents.maintainer_scripts(root, root / "DEBIAN")
    control.close(root, output / package.file, epoch, level=level)
    return output / package.file
