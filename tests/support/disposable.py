"""What tests that write to the kernel log of this host share: may they, and how.

A line of the form of an Xid makes other software act: a real DCGM engine stops working after Xid 119. Such tests run
only where GPUWARDEN_TEST_HOST=disposable declares that the host may be spoilt and no NVIDIA device is there.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from support.needs import unmet

PRINTK_DEVKMSG = Path("/proc/sys/kernel/printk_devkmsg")


def require_disposable_host() -> None:
    """Skip or fail a test marked `disposable` unless this host may be changed; `needs.unmet` decides which."""
    if missing := list(_missing()):
        unmet(f"this test changes its host: {'; '.join(missing)}")


def _missing() -> Iterator[str]:
    if os.environ.get("GPUWARDEN_TEST_HOST") != "disposable":
        yield "GPUWARDEN_TEST_HOST is not 'disposable'"
    if os.geteuid() != 0:
        yield "it needs root"
    if not os.access("/dev/kmsg", os.R_OK | os.W_OK):
        yield "/dev/kmsg cannot be read and written"
    vendors = Path("/sys/bus/pci/devices").glob("*/vendor")
    if any(vendor.read_text().strip() == "0x10de" for vendor in vendors):
        yield "there is an NVIDIA device"


WITHOUT_KMSG = (
    "unshare", "--mount", "sh", "-c", 'mount --bind /dev/kmsg /dev/kmsg && mount -o remount,bind,nodev /dev/kmsg && exec "$@"', "sh",
)  # fmt: skip
"""Before a command: to it `/dev/kmsg` is no device, as in a pod."""


@contextmanager
def kernel_log_writer() -> Iterator[Callable[[str], None]]:
    """A function that writes one message (`<4>text`: with that priority) into the kernel log, as often as wanted.

    Writers take turns, those of other checkouts too, so that no test sees what another writes meanwhile. The kernel drops what one file writes beyond
    10 lines in 5 s unless kernel.printk_devkmsg is on; the setting is put back afterwards.
    """
    with Path("/dev/kmsg").open("wb", buffering=0) as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        before = PRINTK_DEVKMSG.read_text().strip()
        PRINTK_DEVKMSG.write_text("on\n")
        try:
            # Without its newline a message stays open for continuation and is not readable before the next one.
            yield lambda message: _write(log, f"{message}\n")
        finally:
            PRINTK_DEVKMSG.write_text(f"{before}\n")


@contextmanager
def kernel_log_kept() -> Iterator[None]:
    """Take a turn as a writer does, so that meanwhile nobody fills the ring, which loses the kernel's own lines to whoever reads it."""
    with Path("/dev/kmsg").open("wb", buffering=0) as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        yield


def _write(log: FileIO, message: str) -> None:
    log.write(message.encode())
