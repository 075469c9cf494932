"""Which cloud this machine is in, by its firmware: no packet is sent, and a machine that matches no rule is in no cloud.

Many clouds imitate the metadata service of another at the same address, so that an answer proves nothing. Every field but the
system's UUID and serial number may be read by anybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpuwarden_collectors.cloud.registry import CLOUDS
from gpuwarden_collectors.cloud.spec import Rule, begins, equals

ONLY_SHUTS_DOWN: Mapping[str, Rule] = {
    "oci": equals("chassis_asset_tag", "OracleCloud.com"),
    "ibm": equals("chassis_asset_tag", "ibmcloud"),
    "yandex": begins("sys_vendor", "Yandex"),
    "nebius": begins("sys_vendor", "Nebius"),
}
"""Clouds that press the power button and announce nothing inside the machine before."""

_FIELDS = ("sys_vendor", "product_name", "chassis_asset_tag", "bios_vendor", "product_serial", "product_uuid")
_LONGEST = 256


def recognise(sysfs: Path) -> str:
    """Returns the name of a cloud, or "" where the firmware names none that is known. Never raises."""
    firmware = {field: _line(sysfs / "class/dmi/id" / field) for field in _FIELDS}
    firmware["hypervisor_uuid"] = _line(sysfs / "hypervisor/uuid")
    announcing = ((cloud.name, rule) for cloud in CLOUDS.values() for rule in cloud.firmware)
    return next((name for name, is_it in (*ONLY_SHUTS_DOWN.items(), *announcing) if is_it(firmware)), "")


def _line(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.readline(_LONGEST).strip()
    except OSError:
        return ""
