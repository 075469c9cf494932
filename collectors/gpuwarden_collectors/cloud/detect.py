"""Detects the cloud of this machine from its firmware (DMI), without sending a packet.

Many clouds imitate another cloud's metadata service at the same address, so an answer from there proves nothing. All
fields except the system's UUID and serial number are world-readable.
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
"""Clouds that end a machine by an ACPI power button event, without a notice inside the machine."""

_FIELDS = ("sys_vendor", "product_name", "chassis_asset_tag", "bios_vendor", "product_serial", "product_uuid")
_LONGEST = 256


def recognise(sysfs: Path) -> str:
    """Returns the name of the cloud, or "" if the firmware matches no rule. Never raises."""
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
