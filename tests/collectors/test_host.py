"""Which boot and which machine this is, on hosts with good, bad or no identifiers."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwarden_collectors.host import MachineIdentity, boot_id, identify, machine_type

UUID = "4c4c4544-004a-3510-8043-cac04f563533"
MACHINE_ID = "3d1219c7c4c5404aaa1f6d2a48adfda4"
AWS = "i-0af01c0123456789a"
GCE = "GoogleCloud-4C4C4544004A35108043CAC04F563533"


def host(root: Path, *, machine_id: str = "", cloud_init: str = "", **dmi: str) -> tuple[Path, Path, Path, Path]:
    """The folders sys, etc and var/lib of a host with files of this content, and its mount table; no file where none is given."""
    files = {"etc/machine-id": machine_id, "lib/cloud/data/instance-id": cloud_init}
    files |= {f"sys/class/dmi/id/{name}": text for name, text in dmi.items()}
    for name, text in files.items():
        if text:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text + "\n", encoding="utf-8")
    return root / "sys", root / "etc", root / "lib", root / "mountinfo"


def test_the_firmware_names_the_machine(tmp_path: Path) -> None:
    assert str(identify(*host(tmp_path, product_uuid=UUID.upper(), machine_id=MACHINE_ID))) == f"dmi:{UUID}"


def test_without_a_firmware_name_the_machine_id_is_used_and_the_reason_is_given(tmp_path: Path) -> None:
    identity = identify(*host(tmp_path, machine_id=MACHINE_ID))
    assert str(identity) == f"machine-id:{MACHINE_ID}"
    assert identity.reasons == (f"{tmp_path}/sys/class/dmi/id/product_uuid: No such file or directory",)


@pytest.mark.parametrize(
    "uuid",
    [
        "00000000-0000-0000-0000-000000000000",
        "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF",
        "03000200-0400-0500-0006-000700080009",
        "Not Settable",
        "Not Specified",
        "To be filled by O.E.M.",
        "4c4c4544",
        f"{UUID}0",
        "\u0664" * 36,
    ],
)
def test_a_uuid_that_many_boards_share_names_no_machine(tmp_path: Path, uuid: str) -> None:
    identity = identify(*host(tmp_path, product_uuid=uuid, machine_id=MACHINE_ID))
    assert str(identity) == f"machine-id:{MACHINE_ID}"
    assert "does not name one machine" in identity.reasons[0]


def test_a_machine_id_of_one_boot_names_no_machine(tmp_path: Path) -> None:
    folders = host(tmp_path, machine_id=MACHINE_ID)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/machine-id").hardlink_to(tmp_path / "etc/machine-id")  # to the reader what a bind mount is
    identity = identify(*folders)
    assert str(identity) == ""
    assert "names one boot" in identity.reasons[1]


IMAGE = "20 1 0:20 / / ro - squashfs image ro"


@pytest.mark.parametrize(
    ("table", "lasts"),
    [
        ("22 1 0:21 / / rw - tmpfs tmpfs rw", False),
        (
            "20 1 0:20 / /rw rw - tmpfs root rw\n22 1 0:21 / / rw - overlay root rw,upperdir=/rw/up,workdir=/rw/work",
            False,
        ),
        (f"{IMAGE}\n23 20 0:22 / @ETC@ rw - tmpfs tmpfs rw", False),
        (f"{IMAGE}\n23 20 8:1 / @ETC@ rw - xfs /dev/sda1 rw", True),
        ("22 1 259:2 / / rw - ext4 /dev/nvme0n1p2 rw", True),
        ("22 1 0:21 / / rw - nfs4 10.0.0.1:/nodes/n1 rw", True),
    ],
)
def test_a_machine_id_in_memory_names_no_machine(tmp_path: Path, table: str, lasts: bool) -> None:
    """A diskless node whose image has none gets another one in each boot, and its ledger may be on a disk."""
    folders = host(tmp_path, machine_id=MACHINE_ID)
    folders[3].write_text(table.replace("@ETC@", str(folders[1])) + "\n")
    identity = identify(*folders)
    assert identity.machine_id == (MACHINE_ID if lasts else "")
    assert lasts or "which a boot empties" in identity.reasons[1]


@pytest.mark.parametrize("machine_id", ["uninitialized", "", MACHINE_ID[:-1]])
def test_an_image_that_was_never_booted_has_no_machine_id(tmp_path: Path, machine_id: str) -> None:
    identity = identify(*host(tmp_path, machine_id=machine_id))
    assert str(identity) == ""
    assert len(identity.reasons) == 2


@pytest.mark.parametrize(
    ("dmi", "cloud_init", "instance"),
    [
        ({"board_asset_tag": AWS}, "i-0123456789abcdef0", AWS),  # the disk is a copy and cloud-init has not run yet
        ({"product_serial": GCE}, "", GCE),
        ({"board_asset_tag": "Not Specified"}, "1234567890123456789", "1234567890123456789"),
        ({"board_asset_tag": "i-am-a-rack-label"}, "", ""),
        ({"product_serial": "JJ5CV53"}, "", ""),
        ({}, "iid-datasource-none", ""),  # cloud-init found no cloud
        ({}, "two words", ""),
        ({}, "x" * 1000, ""),
    ],
)
def test_a_cloud_instance_is_named_by_firmware_before_cloud_init(
    tmp_path: Path, dmi: dict[str, str], cloud_init: str, instance: str
) -> None:
    folders = host(tmp_path, product_uuid=UUID, cloud_init=cloud_init, **dmi)
    assert str(identify(*folders)) == (f"dmi:{UUID}/instance:{instance}" if instance else f"dmi:{UUID}")


def test_a_copied_disk_is_another_machine_in_another_instance(tmp_path: Path) -> None:
    original = host(tmp_path / "a", machine_id=MACHINE_ID, board_asset_tag=AWS)
    copy = host(tmp_path / "b", machine_id=MACHINE_ID, board_asset_tag="i-0fedcba9876543210")
    assert str(identify(*original)) != str(identify(*copy))


def test_the_identifiers_are_kept_apart_for_comparison(tmp_path: Path) -> None:
    folders = host(tmp_path, product_uuid=UUID, machine_id=MACHINE_ID, board_asset_tag=AWS)
    assert identify(*folders) == MachineIdentity(dmi=UUID, machine_id=MACHINE_ID, instance=AWS)


def test_a_host_without_identifiers_has_an_empty_name_and_no_error(tmp_path: Path) -> None:
    assert str(identify(*host(tmp_path))) == ""


def test_files_of_another_kind_and_binary_files_are_no_names(tmp_path: Path) -> None:
    folders = host(tmp_path, product_uuid=UUID)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/machine-id").write_bytes(b"\xff\x00\xfe" * 1000)
    (tmp_path / "sys/class/dmi/id/board_asset_tag").mkdir()
    identity = identify(*folders)
    assert str(identity) == f"dmi:{UUID}"
    assert len(identity.reasons[0]) < 2000


def test_the_boot_id_of_this_host_is_the_kernels() -> None:
    assert boot_id(Path("/proc")) == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@pytest.mark.parametrize("text", [None, "", "not a uuid"])
def test_a_boot_id_that_is_none_is_empty(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "sys/kernel/random").mkdir(parents=True)
        (tmp_path / "sys/kernel/random/boot_id").write_text(text)
    assert boot_id(tmp_path) == ""


# --- the type of machine


@pytest.mark.parametrize(
    ("vendor", "product", "expected"),
    [
        ("Amazon EC2\n", "p5.48xlarge\n", "Amazon EC2/p5.48xlarge"),
        ("QEMU", "Standard PC (Q35 + ICH9, 2009)", "QEMU/Standard PC (Q35 + ICH9, 2009)"),
        ("", "p5.48xlarge", ""),
        ("Amazon EC2", "", ""),
        ("Amazon EC2", "p5\x1b[2J", ""),
        ("Amazon EC2", "x" * 5000, ""),
    ],
)
def test_the_type_of_machine_is_what_the_firmware_names(
    vendor: str, product: str, expected: str, tmp_path: Path
) -> None:
    folder = tmp_path / "class/dmi/id"
    folder.mkdir(parents=True)
    (folder / "sys_vendor").write_text(vendor)
    (folder / "product_name").write_text(product)
    assert machine_type(tmp_path) == expected


def test_a_machine_without_firmware_tables_has_no_type(tmp_path: Path) -> None:
    assert machine_type(tmp_path) == ""
