"""Writes a line to the system log, which outlives a boot if the site keeps it or forwards it."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path

TAG = "gpuwarden-repair"
_PRIORITY = 3 << 3 | 2  # LOG_DAEMON and LOG_CRIT of syslog(3)
_WITHIN = 1.0


def send_line(log: Path, text: str, now: float) -> None:
    """Send a critical line, in the form of syslog(3), to the datagram socket `log`. Returns once the log has taken it, or after a second; a log
    that is absent or full hinders no step. `now`: Unix time.
    """
    at = time.strftime("%b %e %H:%M:%S", time.localtime(now))
    line = f"<{_PRIORITY}>{at} {TAG}[{os.getpid()}]: {text}"
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
        sending.settimeout(_WITHIN)
        sending.connect(str(log))
        sending.send(line.encode("utf-8", "replace"))
