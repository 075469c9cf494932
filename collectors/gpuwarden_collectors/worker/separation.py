"""The first steps of a process whose library may hang or print, and which must not outlive its parent."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def own_streams() -> tuple[int, int]:
    """Returns descriptors for input and output. Output of the library goes to stderr, and its stdin is empty."""
    streams = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return streams


def end_with(parent: int) -> None:
    """Makes the process exit with its parent and on SIGTERM, even while a library call hangs."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends this process
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM))
    if os.getppid() != parent:  # the parent died before prctl took effect
        os._exit(0)
