"""Reads what firmware and kernel report about this machine."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

from gpuwarden import __version__
from gpuwarden.publish.times import rfc3339
from gpuwarden_collectors.host_files import printable, text_or_empty

DMI = tuple(
    """
    sys_vendor product_name product_serial product_sku chassis_serial chassis_asset_tag board_vendor board_name
    board_serial bios_vendor bios_version bios_date""".split()
)
"""Files of /sys/class/dmi/id. Only root can read the serial numbers."""
_MOST = 200


def facts(sysfs: Path, proc: Path, node: str) -> dict[str, str]:
    """Return facts by name. A text is empty if the host does not report it."""
    kernel = os.uname()
    dmi = {name: printable(text_or_empty(sysfs / "class/dmi/id" / name), _MOST) for name in DMI}
    return {
        "node": node,
        "hostname": kernel.nodename,
        "made_at": rfc3339(time.time()),
        "up_since": rfc3339(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)),
        "kernel": f"{kernel.sysname} {kernel.release} {kernel.machine}",
        "distribution": _distribution(),
        "driver": printable(text_or_empty(proc / "driver/nvidia/version").partition("\n")[0], _MOST),
        "gpuwarden": __version__,
        **dmi,
    }


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""
