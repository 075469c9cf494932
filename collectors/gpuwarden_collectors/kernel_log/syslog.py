r"""The kernel log by syslog(2), for a process that may not open `/dev/kmsg`: a pod without privilege, whose devices the kernel refuses.

What it takes is root and CAP_SYSLOG, or kernel.dmesg_restrict 0. Its call READ_ALL gives the newest lines of the ring as text, and
nothing reports that there are new ones: the end of the ring is read each `POLL` seconds, and what follows the last `ANCHOR` lines
of the read before is new. If these are not in the end of the ring, the whole of it is read. The kernel walks over all records for each
read: where that takes more than `SHARE` of a core, as with a large ring on a slow one, it is read less often, but while so much comes
that the end of the ring is too short.

Each line is made a record in the form of `/dev/kmsg`. What such a line lacks:

| `/dev/kmsg` has | here |
|---|---|
| the number of the record | the time of the line, made greater than that of the line before: the same lines have the same numbers after a restart |
| how many records were lost | not known: a gap of unknown size, if the oldest line there is comes after the last that was read, or `dmesg --clear` hid the lines |
| where a record ends | not known: the kernel begins each line of one record with the same `<priority>[time]` |
| the moment at which it comes | up to `poll` seconds later |

The facility is there, in the priority (kernel/printk/printk.c, print_syslog): a line that a process wrote is recognised as such. But a
record of the kernel's own can have a text in it that a user chose, with a newline and behind it a line that seems to be a driver's. So
lines that begin alike count as one record, as they were at `/dev/kmsg` if they are one. Only where each of them is of a driver or of a PCI
device are they records of their own: these have nothing of a user's in them but the name of a process, which is
shorter than any pattern. The lines in such a record that seem to be a driver's and may be one are counted as written by a process.

Lines without times (printk.time off) are not taken: neither their order nor their ends could be known. The kernel keeps the times, so
that nothing is lost when it is switched on within the life of the ring.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator

from gpuwarden_collectors.base import CollectorError
from gpuwarden_collectors.event_facts import BY_TIME
from gpuwarden_collectors.kernel_log.belief import of_a_packet_filter
from gpuwarden_collectors.kernel_log.sources import DEVICE, Turn

POLL, LONGEST_POLL = 2.0, 10.0
SHARE = 0.01  # of a core
ANCHOR = 64  # lines
WINDOW = 128 << 10  # bytes at the end of the ring; 64 lines of the longest take half of it
RING_MOST = 32 << 20  # bytes
_READ_ALL, _SIZE_BUFFER = 3, 10  # linux/syslog.h
_ORDINALS = 10  # bits: lines of one microsecond
_USER = 1 << 3  # facility of a process

_HEAD = re.compile(
    rb"<(\d{1,5})>\[ *(\d{1,9})\.(\d{6})\](?:\[ *[TC]\d{1,10}\])? "
)  # CONFIG_PRINTK_CALLER adds the last
_OF_A_DRIVER = re.compile(
    rb"NVRM: |nvidia-nvswitch\d{1,3}: |[\w.-]{1,64} [0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]: "
)
_PROBE = b"NVRM: The NVIDIA GPU "  # the one record of several lines that has a pattern (`lines.py`)
_NO_TIMES = "syslog(2) gives lines without times; echo Y > /sys/module/printk/parameters/time on the host, and printk.time=1 for its next boot"


def open_syslog(*, instead_of: OSError) -> SyslogRing:
    """Opens the log by syslog(2). `instead_of` says why the device cannot be opened.

    Raises CollectorError if this cannot be read either.
    """
    try:
        size = min(RING_MOST, 2 * ring_size())  # a line has a longer head as text than in the ring
        read_all(1024)
    except OSError as error:
        raise CollectorError(
            f"cannot read the kernel log: {DEVICE}: {instead_of.strerror}; syslog(2): {error.strerror}; give the service /dev/kmsg and "
            "CAP_SYSLOG; a pod needs runAsUser 0 and the capability SYSLOG (kernelLog.enabled of the chart). "
            "Where it has them, see ausearch -m avc for what SELinux denies"
        ) from error
    return SyslogRing(read_all, size)


def ring_size() -> int:
    """Size of the kernel's ring buffer in bytes. Raises OSError."""
    return _klogctl(_SIZE_BUFFER, None, 0)


def read_all(size: int) -> bytes:
    """The newest lines of the ring, whole ones, as many as fit into `size` bytes. Raises OSError."""
    buffer = ctypes.create_string_buffer(size)
    return ctypes.string_at(buffer, _klogctl(_READ_ALL, buffer, size))


def _klogctl(action: int, buffer: ctypes.Array[ctypes.c_char] | None, size: int) -> int:
    result: int = ctypes.CDLL(None, use_errno=True).klogctl(action, buffer, size)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


class SyslogRing:
    """A record source over `read(size)`, which gives the newest lines; `size` bytes hold all of them."""

    wait: int | None = None

    def __init__(self, read: Callable[[int], bytes], size: int, poll: float = POLL) -> None:
        self.poll: float | None = poll
        self._shortest = poll
        self._read_newest = read
        self._size = size
        self._anchor: bytes | None = None  # None: nothing was read; empty: the ring was
        self._waiting: deque[bytes] = deque()
        self._last = 0  # the number that the last line has beyond BY_TIME

    def read(self, limit: int) -> Turn:
        """Raises OSError if the ring may not be read any more, or its lines have no times."""
        restarted = not self._waiting and self._take()
        records = list(self._records(limit))
        return Turn(records, drained=not self._waiting, restarted=restarted)

    def slow(self) -> bool:
        """True unless records of the last read are left: for a read the kernel walks over the whole ring."""
        return not self._waiting

    def close(self) -> None:
        """No-op: this source keeps nothing open."""

    def _take(self) -> bool:
        """Adds the new lines. True if they begin with the oldest line there is."""
        text, begin = self._unread()
        if text and _HEAD.match(text) is None:
            raise OSError(errno.ENOMSG, _NO_TIMES)
        new = text[begin or 0 :]
        self._waiting.extend(new.split(b"\n")[:-1])
        if begin is None:
            self._last = 0
        if new or begin is None:
            self._anchor = b"\n".join(text.split(b"\n")[-ANCHOR - 1 :])
        return begin is None

    def _unread(self) -> tuple[bytes, int | None]:
        """Returns lines, and where the new ones begin among them; None if the lines that were read are not there."""
        anchor = self._anchor
        if anchor and self._size > WINDOW:
            begun = time.thread_time()
            text = self._read_newest(WINDOW)
            if (begin := _behind(text, anchor)) is not None:
                taken = time.thread_time() - begun
                self.poll = max(self._shortest, min(taken / SHARE, LONGEST_POLL))
                return text, begin
        self.poll = self._shortest
        text = self._read_newest(self._size)
        if anchor is None:
            return text, None
        return text, _behind(text, anchor) if anchor else 0

    def _records(self, limit: int) -> Iterator[bytes]:
        while self._waiting and limit > 0:
            match = _HEAD.match(line := self._waiting.popleft())
            if match is None:
                yield line
                limit -= 1
                continue
            lines = [line[match.end() :]]
            while self._waiting and self._waiting[0].startswith(match[0]):
                lines.append(self._waiting.popleft()[match.end() :])
            for priority, text in _separated(int(match[1]), lines):
                yield self._numbered(priority, int(match[2] + match[3]), text)
                limit -= 1

    def _numbered(self, priority: int, microseconds: int, text: bytes) -> bytes:
        self._last = max(self._last + 1, microseconds << _ORDINALS)
        escaped = text.replace(b"\\", rb"\x5c").replace(b"\n", rb"\x0a")
        return b"%d,%d,%d,-;%b" % (priority, BY_TIME + self._last, microseconds, escaped)


def _separated(priority: int, lines: list[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yields the records, with their priorities, that lines with the same beginning contain."""
    whole = b"\n".join(lines)
    if len(lines) == 1 or lines[0].startswith(_PROBE):
        yield priority, whole
    elif all(map(_OF_A_DRIVER.match, lines)) and not of_a_packet_filter(whole.decode("utf-8", "replace")):
        yield from ((priority, line) for line in lines)
    else:
        yield priority, whole
        yield from ((priority | _USER, line) for line in lines[1:])


def _behind(text: bytes, anchor: bytes) -> int | None:
    """Returns the offset at which `anchor` ends in `text` as whole lines, or None if it is not there."""
    at = text.rfind(anchor)
    return at + len(anchor) if at == 0 or (at > 0 and text[at - 1 : at] == b"\n") else None
