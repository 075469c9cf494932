"""The doctor on diskless nodes: what the daemon remembers ends with the boot, and with it which GPUs belong here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuwarden.config.model import Config
from gpuwarden.doctor.host import folders
from gpuwarden.doctor.row import Grade, Row

DISK = "22 1 259:2 / / rw,relatime - ext4 /dev/nvme0n1p2 rw"
DISKLESS: dict[str, tuple[str, ...]] = {
    "Warewulf, with its root in memory": ("1 1 0:2 / / rw - rootfs rootfs rw", "22 1 0:21 / / rw,relatime - tmpfs tmpfs rw,mpol=interleave"),
    "an initramfs that stays the root": ("1 1 0:2 / / rw - rootfs rootfs rw,size=1g",),
    "/var in memory beside a root of NFS": ("22 1 0:21 / / ro - nfs4 10.0.0.1:/images/gpu ro", "23 22 0:22 / @VAR@ rw - tmpfs tmpfs rw"),
    "overlayroot of Ubuntu": ("20 1 0:20 / /media/root-rw rw - tmpfs tmpfs-root rw", "22 1 0:21 / / rw - overlay overlayroot rw,lowerdir=/media/root-ro,upperdir=/media/root-rw/overlay,workdir=/w"),
}  # fmt: skip
LASTING: dict[str, tuple[str, ...]] = {
    "a disk": (DISK,),
    "NFS": ("22 1 0:21 / / rw - nfs4 10.0.0.1:/nodes/n1 rw",),
    "a container, whose layer is on a disk": ("22 1 0:21 / / rw - overlay overlay rw,lowerdir=/a:/b,upperdir=/var/lib/docker/1,workdir=/w",),
    "a folder on a disk in a root in memory": ("22 1 0:21 / / rw - tmpfs tmpfs rw", "23 22 8:1 / @VAR@ rw - xfs /dev/sda1 rw"),
}  # fmt: skip


def rows(folder: Path, table: tuple[str, ...], gpus: int | None) -> list[Row]:
    state = folder / "state"
    state.mkdir()
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/self/mountinfo").write_text("\n".join(table).replace("@VAR@", str(folder)) + "\n")
    config = Config()
    config = replace(
        config,
        state=replace(config.state, dir=state),
        paths=replace(config.paths, proc=folder / "proc"),
        inventory=replace(config.inventory, expected_gpus=gpus),
    )
    return [row for row in folders(config) if row.check == "state after a boot"]


@pytest.mark.parametrize("table", DISKLESS.values(), ids=DISKLESS)
def test_a_diskless_node_is_told_that_a_boot_forgets_its_gpus(tmp_path: Path, table: tuple[str, ...]) -> None:
    [row] = rows(tmp_path, table, None)
    assert (row.grade, "inventory.expected_gpus" in row.to_do) == (Grade.WARN, True)
    assert "a GPU that is gone after it is not reported" in row.found


def test_a_diskless_node_whose_gpus_are_configured_misses_them_and_is_told_the_rest(tmp_path: Path) -> None:
    [row] = rows(tmp_path, DISKLESS["an initramfs that stays the root"], 8)
    assert (row.grade, "only an operator lifts" in row.found) == (Grade.OK, True)


@pytest.mark.parametrize("table", LASTING.values(), ids=LASTING)
def test_a_state_directory_that_a_boot_keeps_has_no_such_row(tmp_path: Path, table: tuple[str, ...]) -> None:
    assert rows(tmp_path, table, None) == []
