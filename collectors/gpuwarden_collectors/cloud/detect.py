"""Which cloud this machine is in, by its firmware: no packet is sent, and a machine that matches no rule is in no cloud.

Many clouds imitate the metadata service of another at the same address, so that an answer proves nothing. Every field but the
system's UUID and serial number may be read by anybody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

AWS, GCP, AZURE, ALIBABA, TENCENT = "aws", "gcp", "azure", "alibaba", "tencent"
OCI, NEBIUS, IBM, YANDEX = "oci", "nebius", "ibm", "yandex"
ANNOUNCES_IN_GUEST = (AWS, GCP, AZURE, ALIBABA, TENCENT)
"""Clouds whose metadata service announces an end; each is a source of that name."""
ONLY_SHUTS_DOWN = (OCI, NEBIUS, IBM, YANDEX)
"""Clouds that press the power button and announce nothing inside the machine before."""

Dmi = Mapping[str, str]
_FIELDS = ("sys_vendor", "product_name", "chassis_asset_tag", "bios_vendor", "product_serial", "product_uuid")
_LONGEST = 256


def recognise(sysfs: Path) -> str:
    """One of the names above; "" where the firmware names none of them. Never raises."""
    dmi = {field: _line(sysfs / "class/dmi/id" / field) for field in _FIELDS}
    xen = _line(sysfs / "hypervisor/uuid").lower().startswith("ec2")
    return next((cloud for cloud, is_it in _CLOUDS if is_it(dmi)), AWS if xen else "")


def _equals(field: str, *texts: str) -> Callable[[Dmi], bool]:
    return lambda dmi: dmi[field].lower() in [text.lower() for text in texts]


def _begins(field: str, text: str) -> Callable[[Dmi], bool]:
    return lambda dmi: dmi[field].lower().startswith(text.lower())


def _is_ec2(dmi: Dmi) -> bool:
    uuid, serial = dmi["product_uuid"].lower(), dmi["product_serial"].lower()
    return uuid == serial and uuid.startswith("ec2")


_CLOUDS: tuple[tuple[str, Callable[[Dmi], bool]], ...] = (
    (AZURE, _equals("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77")),
    (OCI, _equals("chassis_asset_tag", "OracleCloud.com")),
    (IBM, _equals("chassis_asset_tag", "ibmcloud")),
    (YANDEX, _begins("sys_vendor", "Yandex")),
    (NEBIUS, _begins("sys_vendor", "Nebius")),
    (AWS, _equals("sys_vendor", "Amazon EC2")),
    (AWS, _is_ec2),
    (GCP, _equals("product_name", "Google Compute Engine")),
    (GCP, _begins("product_serial", "GoogleCloud-")),
    (ALIBABA, _equals("product_name", "Alibaba Cloud ECS")),
    (TENCENT, _equals("sys_vendor", "Tencent Cloud")),
)
"""The first that fits."""


def _line(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.readline(_LONGEST).strip()
    except OSError:
        return ""
