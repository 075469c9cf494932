"""The files of the service (units, users, run directory, profiles, Slurm's scripts) and their destinations.

The packages are built from the same table. Distribution packages install into `/usr/lib` and `/usr/share`; an
installation by pip or uv uses the places of local files, `/etc` and `/usr/local`.
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
"""The profile for the default mode."""


@dataclass(frozen=True, slots=True)
class Part:
    """The files that match `pattern` in `systemd/`, and their destination folder in packages and local installations.

    `name`: the installed name, where `{stem}` is the file's name without suffix; "" keeps the name.
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
    """A file of the service. `path` is relative to the root."""

    path: str
    content: bytes
    mode: int


def source() -> Path:
    """Return the folder `systemd/`: next to this file in a wheel, at the root of a checkout."""
    return next(path for path in (_MODULES / "systemd", _MODULES.parents[2] / "systemd") if path.is_dir())


def sockets() -> list[str]:
    """Return the sockets that are enabled with the daemon, by `Also=` in its unit."""
    also: list[str] = re.findall(r"^Also=(.*)$", (source() / SERVICE).read_text("utf-8"), re.MULTILINE)
    return " ".join(also).split()


def local_files(command: Path, python: Path) -> Iterator[File]:
    """Yield the files of a local installation; their contents refer to its executables instead of the package's."""
    replaced = {PACKAGED_COMMAND: str(command), PACKAGED_PYTHON: str(python), PACKAGED_SHARE: LOCAL_SHARE}
    for part in PARTS:
        for file in sorted(source().glob(part.pattern)):
            text = file.read_text("utf-8")
            for packaged, local in replaced.items():
                text = text.replace(packaged, local)
            name = part.name.format(stem=file.stem) or file.name
            yield File(f"{part.local}/{name}", text.encode(), part.mode)
