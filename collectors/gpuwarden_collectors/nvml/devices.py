"""Checks the permission to open the driver's device files without opening them, because an open runs driver code.

access(2) covers both a unit's rules (DeviceAllow) and file permissions. NVML itself reports a denied open as "unknown
error" as often as as "no permission".
"""

from __future__ import annotations

import os
import re

DEV = "/dev"
_NODE_NAME = re.compile(r"nvidiactl|nvidia\d+")
_MOST = 64


def refused(dev: str | os.PathLike[str] = DEV) -> tuple[str, ...]:
    """Returns the device files of the driver and of GPUs that exist but may not be read and written."""
    try:
        names = sorted(filter(_NODE_NAME.fullmatch, os.listdir(dev)))[:_MOST]  # noqa: PTH208 - pathlib would cost the worker 0.6 MiB
    except OSError:
        return ()
    paths = [os.path.join(dev, name) for name in names]  # noqa: PTH118 - as above
    return tuple(path for path in paths if not os.access(path, os.R_OK | os.W_OK, effective_ids=True))


def refusal(paths: tuple[str, ...]) -> str:
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return f"{', '.join(paths[:3])}{more} may not be opened: see DeviceAllow and User of the unit, and the owner of the file"
