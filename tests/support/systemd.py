"""A systemd of our own, in namespaces of its own, that runs the units a test gives it. For disposable hosts, as root."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

_SYSTEMD = Path("/lib/systemd/systemd")
_NAMESPACES = ("--mount", "--pid", "--fork", "--mount-proc", "--propagation=private", "--cgroup", "--ipc", "--uts")
_START = """
mount -t tmpfs tmpfs /run
mount --bind "$UNITS" /etc/systemd/system
umount --lazy /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
exec env -i PATH="$PATH" container=test "$SYSTEMD" --system --unit=test.target --log-target=null
"""
_BOOT = 180.0


@dataclass(frozen=True, slots=True)
class Systemd:
    """`command`: systemctl, where this systemd is the one that answers. `run`: its /run, as seen from here."""

    command: tuple[str, ...]
    run: Path


@contextmanager
def systemd(folder: Path, units: Mapping[str, str]) -> Iterator[Systemd]:
    """`units`: the `[Service]` section of each, by name. Those are enabled, and started, whose name ends in `-enabled`."""
    if not _SYSTEMD.exists() or not shutil.which("nsenter"):
        pytest.fail("this test needs systemd and nsenter (packages systemd, util-linux)")
    _write(folder, units)
    cgroup = _cgroup_mount() / f"gpuwarden-test-{os.getpid()}"
    cgroup.mkdir()
    join = f"echo $$ > {cgroup}/cgroup.procs; exec unshare {' '.join(_NAMESPACES)} --kill-child sh -c '{_START}'"
    environment = {"PATH": os.environ["PATH"], "UNITS": str(folder), "SYSTEMD": str(_SYSTEMD)}
    process = subprocess.Popen(["/bin/sh", "-c", join], env=environment, stdin=subprocess.DEVNULL)
    try:
        yield _booted(process)
    finally:
        process.kill()
        process.wait()
        remove_cgroup(cgroup)


def _write(folder: Path, units: Mapping[str, str]) -> None:
    wants = folder / "test.target.wants"
    wants.mkdir(parents=True)
    (folder / "test.target").write_text("[Unit]\nDefaultDependencies=no\n")
    for name, service in units.items():
        text = f"[Unit]\nDefaultDependencies=no\n[Service]\n{service}\n[Install]\nWantedBy=test.target\n"
        (folder / f"{name}.service").write_text(text)
        if name.endswith("-enabled"):
            (wants / f"{name}.service").symlink_to(f"../{name}.service")


def _booted(process: subprocess.Popen[bytes]) -> Systemd:
    deadline = time.monotonic() + _BOOT
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while time.monotonic() < deadline and process.poll() is None:
        for pid in children.read_text().split():
            command = ("nsenter", "--target", pid, "--mount", "--pid", "--cgroup", "systemctl")
            asked = subprocess.run([*command, "is-active", "test.target"], capture_output=True, timeout=60, check=False)
            if asked.stdout == b"active\n":
                return Systemd(command, Path(f"/proc/{pid}/root/run"))
        time.sleep(0.1)
    raise TimeoutError(f"systemd has not come up within {_BOOT:g} s")


def _cgroup_mount() -> Path:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if " - cgroup2 " in line:
            return Path(line.split()[4])
    pytest.fail("this test needs a mounted cgroup2")


def remove_cgroup(cgroup: Path) -> None:
    """Remove the group with all below it, once its processes have gone."""
    for _ in range(100):
        folders = [*(folder for folder in cgroup.rglob("*") if folder.is_dir()), cgroup]
        try:
            for folder in sorted(folders, key=lambda folder: -len(folder.parts)):
                folder.rmdir()
        except OSError:  # its processes are still going
            time.sleep(0.1)
        else:
            return
