"""The files of the service: units, users, run directory, profiles and Slurm's scripts, and where each belongs. The one table of it, which
the packages are made by, too.

A package of the distribution has them in `/usr/lib` and `/usr/share`; who installed with pip or uv has them where an administrator's own
files are, in `/etc` and `/usr/local`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from gpuwarden_collectors.dataclass import dataclass

_MODULES = Path(__file__).parent
PACKAGED_COMMAND = "/opt/gpuwarden/bin/gpuwarden"
PACKAGED_PYTHON = "/opt/gpuwarden/bin/python3"
PACKAGED_SHARE, LOCAL_SHARE = "/usr/share/gpuwarden", "/usr/local/share/gpuwarden"
PACKAGED_UNITS = ("usr/lib/systemd/system", "lib/systemd/system")
LOCAL_UNITS = "etc/systemd/system"
SERVICE = "gpuwarden.service"
PROFILE = "observe.conf"
"""The mode that the daemon has until it is configured."""


@dataclass(frozen=True, slots=True)
class Part:
    """The files that `pattern` finds in `systemd/`, into a folder below the root: `packaged` or `local`; under `name`, in which `{stem}`
    is a file's own name without its end.
    """

    pattern: str
    packaged: str
    local: str
    mode: int = 0o644
    name: str = ""


PARTS = (
    Part("*.service", PACKAGED_UNITS[0], LOCAL_UNITS),
    Part("*.socket", PACKAGED_UNITS[0], LOCAL_UNITS),
    Part("*.timer", PACKAGED_UNITS[0], LOCAL_UNITS),
    Part("*.sysusers", "usr/lib/sysusers.d", "etc/sysusers.d", name="{stem}.conf"),
    Part("*.tmpfiles", "usr/lib/tmpfiles.d", "etc/tmpfiles.d", name="{stem}.conf"),
    Part("profiles/*.conf", "usr/share/gpuwarden/profiles", "usr/local/share/gpuwarden/profiles"),
    Part("*.conf", "usr/share/gpuwarden", "usr/local/share/gpuwarden"),  # drop-ins that an administrator enables
    Part("slurm/*", "usr/libexec/gpuwarden", "usr/local/libexec/gpuwarden", 0o755),
)
LINKS = {f"{LOCAL_UNITS}/{SERVICE}.d/10-profile.conf": f"{LOCAL_SHARE}/profiles/{PROFILE}"}
"""Links of a local installation, with their targets."""


@dataclass(frozen=True, slots=True)
class File:
    """A file of the service. `path` is below the root."""

    path: str
    content: bytes
    mode: int


def source() -> Path:
    """Folder `systemd/`: in a wheel beside this file, in a checkout at its root."""
    return next(path for path in (_MODULES / "systemd", _MODULES.parents[2] / "systemd") if path.is_dir())


def sockets() -> list[str]:
    """Sockets that are enabled with the daemon, by its `Also=`."""
    also: list[str] = re.findall(r"^Also=(.*)$", (source() / SERVICE).read_text("utf-8"), re.MULTILINE)
    return " ".join(also).split()


def local_files(command: Path, python: Path) -> Iterator[File]:
    """Yields the files of the service, with the executables of this installation in place of the package's."""
    replaced = {
        PACKAGED_COMMAND: str(command),
        PACKAGED_PYTHON: str(python),
        PACKAGED_SHARE: LOCAL_SHARE,
    }
    for part in PARTS:
        for file in sorted(source().glob(part.pattern)):
            text = file.read_text("utf-8")
            for packaged, local in replaced.items():
                text = text.replace(packaged, local)
            name = part.name.format(stem=file.stem) or file.name
            yield File(f"{part.local}/{name}", text.encode(), part.mode)
