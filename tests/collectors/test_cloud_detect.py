"""Which cloud this is, by the firmware alone; where it names none, nobody is asked."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gpuwarden_collectors.cloud.detect import recognise
from gpuwarden_collectors.cloud.registry import CLOUDS

UUID = "ec2e1916-9099-7caf-fd21-012345abcdef"
MACHINES = {
    "aws": {"sys_vendor": "Amazon EC2", "product_name": "p5.48xlarge"},
    "aws, older": {"product_uuid": UUID.upper(), "product_serial": UUID, "sys_vendor": "Xen"},
    "gcp": {"product_name": "Google Compute Engine", "sys_vendor": "Google"},
    "gcp, by serial": {"product_serial": "GoogleCloud-0123456789ABCDEF0123456789ABCDEF"},
    "azure": {"chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77", "sys_vendor": "Microsoft Corporation"},
    "oci": {"chassis_asset_tag": "OracleCloud.com"},
    "alibaba": {"product_name": "Alibaba Cloud ECS", "sys_vendor": "Alibaba Cloud"},
    "tencent": {"sys_vendor": "Tencent Cloud", "product_name": "CVM"},
    "yandex": {"sys_vendor": "Yandex", "product_name": "xeon-gold-6230"},
    "nebius": {"sys_vendor": "Nebius", "product_name": "gpu-h100-sxm"},
    "ibm": {"chassis_asset_tag": "ibmcloud", "sys_vendor": "QEMU"},
    "": {"sys_vendor": "Supermicro", "product_name": "SYS-821GE-TNHR", "product_uuid": "00000000-1111", "product_serial": ""},
    ", a hypervisor of one's own": {"sys_vendor": "QEMU", "chassis_asset_tag": "Microsoft Corporation"},
    ", OpenStack": {"sys_vendor": "OpenStack Foundation", "product_name": "OpenStack Nova"},
}  # fmt: skip


@pytest.mark.parametrize("machine", MACHINES)
def test_the_cloud_of_a_machine_follows_from_its_firmware(machine: str, tmp_path: Path) -> None:
    folder = tmp_path / "class/dmi/id"
    folder.mkdir(parents=True)
    for name, text in MACHINES[machine].items():
        (folder / name).write_text(f"{text}\n")
    assert recognise(tmp_path) == machine.partition(",")[0]


def test_without_firmware_tables_there_is_xen_or_nothing(tmp_path: Path) -> None:
    assert recognise(tmp_path) == ""
    (tmp_path / "hypervisor").mkdir()
    (tmp_path / "hypervisor/uuid").write_text(UUID)
    assert recognise(tmp_path) == "aws"
    (tmp_path / "class/dmi/id").mkdir(parents=True)
    for vendor, cloud in (("Xen", "aws"), ("Tencent Cloud", "tencent"), ("Supermicro", "")):
        (tmp_path / "class/dmi/id/sys_vendor").write_text(vendor)
        assert recognise(tmp_path) == cloud, "another cloud's Xen may have a UUID that begins so by chance"


def test_a_table_of_garbage_names_nobody(tmp_path: Path) -> None:
    folder = tmp_path / "class/dmi/id"
    folder.mkdir(parents=True)
    (folder / "sys_vendor").write_bytes(b"\xff\xfe" * 100_000)
    (folder / "product_name").mkdir()
    assert recognise(tmp_path) == ""


def test_no_name_is_resolved_for_a_service_that_has_an_address() -> None:
    """A server at metadata.google.internal is not used. Tencent Cloud's service has only a name, so it must name an instance."""
    hosts = {name: urlsplit(cloud.endpoint).hostname or "" for name, cloud in CLOUDS.items()}
    assert hosts.pop("tencent") == "metadata.tencentyun.com"
    assert sorted(hosts) == ["alibaba", "aws", "azure", "gcp"]
    for host in hosts.values():
        address = ipaddress.ip_address(host)
        assert address.is_link_local or host == "100.100.100.200"
