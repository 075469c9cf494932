"""A mounted file system whose server is gone: any access to it hangs. For disposable hosts, as root."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

_LIBC = ctypes.CDLL(None, use_errno=True)
_MNT_FORCE, _MNT_DETACH = 1, 2  # umount2(2)
_INIT = 26  # linux/fuse.h
_IN_HEADER = struct.Struct("<IIQQIIIHH")
_OUT_HEADER = struct.Struct("<IiQ")
_INIT_OUT = struct.Struct("<IIIIHHIIHHI28x")


@contextmanager
def hung_mount(folder: Path, *, killable: bool = True, user: int = 0) -> Iterator[Path]:
    """FUSE, served by nobody, until the end of the block: what hung then gets an error.

    Its type is one that is watched only where it is expected, so that tests beside this one do not hang in it too.
    `killable`: as with NFS, a process that hangs can be killed. Else its request was taken and is never answered: the
    process is in D state, and not even SIGKILL ends it. `user`: whose processes hang, if it is in the group
    of that number; all others are refused.
    """
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.fail("this test needs /dev/fuse")
    device = os.open("/dev/fuse", os.O_RDWR)
    folder.mkdir(exist_ok=True)
    options = f"fd={device},rootmode=40000,user_id={user},group_id={user}".encode()
    if _LIBC.mount(b"server:/gone", os.fsencode(folder), b"fuse", 0, options) != 0:
        raise OSError(ctypes.get_errno(), "cannot mount")
    if not killable:
        Thread(target=_take_and_never_answer, args=(os.dup(device),), daemon=True).start()
    try:
        yield folder
    finally:
        _LIBC.umount2(os.fsencode(folder), _MNT_FORCE)  # cuts the connection, if somebody still uses the mount
        _LIBC.umount2(os.fsencode(folder), _MNT_DETACH)
        os.close(device)


def _take_and_never_answer(device: int) -> None:
    try:
        while request := os.read(device, 1 << 20):
            _, opcode, unique, *_ = _IN_HEADER.unpack_from(request)
            if opcode == _INIT:
                reply = _INIT_OUT.pack(7, 31, 0, 0, 16, 12, 1 << 16, 1, 0, 0, 0)
                os.write(device, _OUT_HEADER.pack(_OUT_HEADER.size + len(reply), 0, unique) + reply)
    except OSError:
        os.close(device)  # the connection is cut
