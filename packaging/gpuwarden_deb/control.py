"""The package's metadata for dpkg: the control file, the configuration files, the sums."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import tomllib
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

from gpuwarden_deb.contents import CONFIGURATION, DOC, write
from gpuwarden_deb.environment import run
from gpuwarden_deb.host import Host
from gpuwarden_deb.paths import ROOT, BuildError

ELF = b"\x7fELF"
_ALWAYS = ("systemd", "init-system-helpers (>= 1.54~)")
_DESCRIPTION = """\
health of the GPUs of this node: judged, published, acted upon
 A small daemon for every GPU host. It reads the GPUs, the kernel log, the PCI
 bus and the host around them, judges the node, and reports to Prometheus,
 schedulers and people with reasons and advice. In mode enforce it takes a bad
 node out of scheduling and signals jobs to save before their machine ends.
 .
 It observes until it is configured otherwise."""


def project() -> tuple[str, str]:
    """The version of the tree and its licence."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (version,) = re.findall(
        r'^__version__ = "(.+)"', (ROOT / project["tool"]["hatch"]["version"]["path"]).read_text(), re.MULTILINE
    )
    return version, project["project"]["license"]


def debian_version(version: str, suffix: str) -> str:
    """What comes before a release sorts before it: 1.0rc1 is 1.0~rc1 to dpkg."""
    return re.sub(r"[.]?(a|b|rc|dev)(?=[0-9])", r"~\1", version) + "+" + suffix


def describe(root: Path, host: Host, version: str, epoch: int) -> str:
    """Writes DEBIAN/ of the package in `root`, but for the maintainer scripts. Raises BuildError."""
    full = debian_version(version, host.suffix)
    write(root / DOC / "changelog.gz", gzip.compress(_changelog(full, epoch).encode(), mtime=0))
    depends = ", ".join((host.python_package, *_ALWAYS, *_libraries(root)))
    size = sum(_blocks(file) for file in _files(root))
    fields = {
        "Package": "gpuwarden", "Version": full, "Architecture": host.architecture, "Maintainer": _maintainer(),
        "Installed-Size": str(size), "Depends": depends, "Suggests": "slurm-client, libnvidia-ml1", "Section": "admin",
        "Priority": "optional", "Description": _DESCRIPTION,
    }  # fmt: skip
    sums = "".join(
        f"{hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()}  {file.relative_to(root)}\n"
        for file in _files(root)
        if not file.is_symlink()
    )
    write(root / "DEBIAN/md5sums", sums.encode())
    write(root / "DEBIAN/conffiles", f"/{CONFIGURATION}\n".encode())
    write(root / "DEBIAN/control", "".join(f"{name}: {value}\n" for name, value in fields.items()).encode())
    return full


def _changelog(version: str, epoch: int) -> str:
    """Required by Debian's tools; what is new is in CHANGELOG.md."""
    return (
        f"gpuwarden ({version}) unstable; urgency=medium\n\n  * What is new: CHANGELOG.md beside this file.\n\n"
        f" -- {_maintainer()}  {formatdate(epoch)}\n"
    )


def _maintainer() -> str:
    """The builder, from the variables of Debian's own tools."""
    return f"{os.environ.get('DEBFULLNAME', 'built from source')} <{os.environ.get('DEBEMAIL', 'root@localhost')}>"


def _libraries(root: Path) -> list[str]:
    """What the compiled modules are linked to, in the versions of this distribution that have the symbols."""
    modules = [file for file in _files(root / "opt") if not file.is_symlink() and file.read_bytes()[:4] == ELF]
    folder = root.parent / "shlibdeps"
    write(folder / "debian/control", b"Source: gpuwarden\n\nPackage: gpuwarden\nArchitecture: any\n")
    output = run("dpkg-shlibdeps", "-O", *(f"-e{module}" for module in modules), cwd=folder).stdout
    name, _, found = output.strip().partition("=")
    if name != "shlibs:Depends" or not found:
        raise BuildError(f"dpkg-shlibdeps does not list what the compiled modules need: {output!r}")
    return found.split(", ")


def _files(root: Path) -> Iterator[Path]:
    """All that is installed, in order."""
    control = root / "DEBIAN"
    return (file for file in sorted(root.rglob("*")) if not file.is_relative_to(control) and not _is_folder(file))


def _is_folder(file: Path) -> bool:
    return file.is_dir() and not file.is_symlink()


def _blocks(file: Path) -> int:
    """KiB, as Debian's policy counts them."""
    return 1 if file.is_symlink() else -(-file.stat().st_size // 1024)
