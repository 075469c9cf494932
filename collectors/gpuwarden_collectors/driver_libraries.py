"""Finds and loads the libraries of the NVIDIA driver."""

from __future__ import annotations

import ctypes
import os

from gpuwarden_collectors.options import SEPARATOR

_ARCH = os.uname().machine
FOLDERS = (
    "/usr/local/nvidia/lib64",  # GKE: where its own pods mount the host's /home/kubernetes/bin/nvidia
    f"/run/nvidia/driver/usr/lib/{_ARCH}-linux-gnu",  # the driver container of the GPU Operator, by its distribution
    "/run/nvidia/driver/usr/lib64",
)
"""Folders tried after the dynamic loader, which finds libraries that NVIDIA's runtime or CDI put into a container.

The daemon, which may be root, tries them on every host. Therefore no folder is below /home, where a user could
create it; GKE's folder on the host is.
"""
_NO_SUCH = "No such file"


def candidates(name: str, configured: str = "") -> tuple[str, ...]:
    """Returns the paths to try, in order: those of `configured`, separated by `:`, or else the loader and `FOLDERS`."""
    if configured:
        return tuple(configured.split(SEPARATOR))
    return (name, *(f"{folder}/{name}" for folder in FOLDERS))


def load(name: str, configured: str = "") -> ctypes.CDLL:
    """Loads the first library that can be loaded.

    Raises OSError with the reason of each candidate; among files that do not exist only the first is named.
    """
    faults: list[str] = []
    for path in candidates(name, configured):
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            if configured or not faults or _NO_SUCH not in str(error):
                faults.append(str(error))
    raise OSError("; ".join(faults))


def loaded(maps: str, name: str) -> str:
    """Returns the path under which a process has mapped the library (/proc/PID/maps), or "" if it has not."""
    paths = (line.partition("/")[2] for line in maps.splitlines() if f"/{name.partition('.so')[0]}.so" in line)
    return next((f"/{path}" for path in paths), "")
