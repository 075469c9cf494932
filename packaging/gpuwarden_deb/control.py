"""The package's metadata for dpkg: the control file, the configuration files, the sums."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

from gpuwarden_deb.contents import CONFIGURATION, DOC, write
from gpuwarden_deb.environment import run
from gpuwarden_deb.paths import ROOT, BuildError

ELF = b"\x7fELF"
BUNDLE, SYSTEM_PYTHON = "gpuwarden", "gpuwarden-system-python"
"""The package with a Python of its own, for every distribution, and that for the Python of one. Only one can be installed."""
SUMMARY = "health of the GPUs of this node: judged, published, acted upon"
_ALWAYS = ("systemd", "init-system-helpers (>= 1.54~)")
DESCRIPTION = """\
A small daemon for every GPU host. It reads the GPUs, the kernel log, the PCI
bus and the host around them, judges the node, and reports to Prometheus,
schedulers and people with reasons and advice. In mode enforce it takes a bad
node out of scheduling and signals jobs to save before their machine ends.

It observes until it is configured otherwise."""


def project() -> tuple[str, str]:
    """The version of the tree and its licence."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (version,) = re.findall(
        r'^__version__ = "(.+)"', (ROOT / project["tool"]["hatch"]["version"]["path"]).read_text(), re.MULTILINE
    )
    return version, project["project"]["license"]


def debian_version(version: str, suffix: str = "") -> str:
    """Return the version in Debian's form. A pre-release sorts before its release: 1.0rc1 is 1.0~rc1 to dpkg, and to rpm."""
    return re.sub(r"[.]?(a|b|rc|dev)(?=[0-9])", r"~\1", version) + (f"+{suffix}" if suffix else "")


@dataclass(frozen=True, slots=True)
class Package:
    """`depends`: beside those that every package of gpuwarden has. `first`: of them what a host must have before anything is unpacked."""

    name: str
    version: str
    architecture: str
    depends: Sequence[str]
    first: Sequence[str] = ()

    @property
    def file(self) -> str:
        return f"{self.name}_{self.version}_{self.architecture}.deb"


def describe(root: Path, package: Package, epoch: int) -> None:
    """Writes DEBIAN/ of the package in `root`, but for the maintainer scripts."""
    write(root / DOC / "changelog.gz", gzip.compress(_changelog(package, epoch).encode(), mtime=0))
    if package.name != BUNDLE:
        (root / DOC).with_name(package.name).symlink_to(Path(DOC).name)
    (other,) = {BUNDLE, SYSTEM_PYTHON} - {package.name}
    size = sum(_blocks(file) for file in _files(root))
    fields = {
        "Package": package.name, "Version": package.version, "Architecture": package.architecture,
        "Maintainer": _maintainer(), "Installed-Size": str(size), "Depends": ", ".join((*_ALWAYS, *package.depends)),
        "Conflicts": other, "Replaces": other, "Suggests": "slurm-client, libnvidia-ml1", "Section": "admin",
        "Priority": "optional",
        "Description": "\n ".join((SUMMARY, *(line or "." for line in DESCRIPTION.splitlines()))),
    }  # fmt: skip
    if package.first:
        fields["Pre-Depends"] = ", ".join(package.first)
    if package.name != BUNDLE:
        fields["Provides"] = f"{BUNDLE} (= {package.version})"
    sums = "".join(
        f"{hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()}  {file.relative_to(root)}\n"
        for file in _files(root)
        if not file.is_symlink()
    )
    write(root / "DEBIAN/md5sums", sums.encode())
    write(root / "DEBIAN/conffiles", f"/{CONFIGURATION}\n".encode())
    write(root / "DEBIAN/control", "".join(f"{name}: {value}\n" for name, value in fields.items()).encode())


def close(root: Path, package: Path, epoch: int, *, level: int = 3) -> None:
    """Everything belongs to root, and no file is younger than the tree: the same tree gives the same bytes.

    zstd is known to dpkg since Debian 12 and Ubuntu 21.10. `level` 3 takes 0.1 s where xz takes 16 s to save a quarter. An
    older dpkg reads what the package depends on, which is not compressed by it, and refuses it for that.
    """
    build = ("dpkg-deb", "-Zzstd", f"-z{level}", "--no-uniform-compression", "--root-owner-group", "--build")
    run(*build, str(root), str(package), epoch=epoch)


def _changelog(package: Package, epoch: int) -> str:
    """Required by Debian's tools; what is new is in CHANGELOG.md."""
    return (
        f"{package.name} ({package.version}) unstable; urgency=medium\n\n  * What is new: CHANGELOG.md beside this file.\n\n"
        f" -- {_maintainer()}  {formatdate(epoch)}\n"
    )


def _maintainer() -> str:
    """The builder, from the variables of Debian's own tools."""
    return f"{os.environ.get('DEBFULLNAME', 'built from source')} <{os.environ.get('DEBEMAIL', 'root@localhost')}>"


def libraries(root: Path) -> list[str]:
    """Return the libraries that the compiled modules are linked to, in the versions of this distribution that have the
    symbols. Raises BuildError.
    """
    folder = root.parent / "shlibdeps"
    write(folder / "debian/control", b"Source: gpuwarden\n\nPackage: gpuwarden\nArchitecture: any\n")
    output = run("dpkg-shlibdeps", "-O", *(f"-e{module}" for module in elf_files(root / "opt")), cwd=folder).stdout
    name, _, dependencies = output.strip().partition("=")
    if name != "shlibs:Depends" or not dependencies:
        raise BuildError(f"dpkg-shlibdeps does not list what the compiled modules need: {output!r}")
    return dependencies.split(", ")


def elf_files(folder: Path) -> list[Path]:
    return [file for file in _files(folder) if not file.is_symlink() and _starts_as_elf(file)]


def _starts_as_elf(file: Path) -> bool:
    with file.open("rb") as data:
        return data.read(len(ELF)) == ELF


def _files(root: Path) -> Iterator[Path]:
    """All that is installed, in order."""
    control = root / "DEBIAN"
    return (file for file in sorted(root.rglob("*")) if not file.is_relative_to(control) and not _is_folder(file))


def _is_folder(file: Path) -> bool:
    return file.is_dir() and not file.is_symlink()


def _blocks(file: Path) -> int:
    """KiB, as Debian's policy counts them."""
    return 1 if file.is_symlink() else -(-file.stat().st_size // 1024)
