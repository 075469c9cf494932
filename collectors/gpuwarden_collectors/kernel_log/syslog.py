r"""Reads the kernel log by syslog(2), for a process that may not open `/dev/kmsg`, such as an unprivileged pod.

It needs root and CAP_SYSLOG, or kernel.dmesg_restrict 0. The call READ_ALL returns the newest lines of the ring buffer
as text; the kernel does not signal new lines. Every `POLL` seconds the end of the ring is read, and the lines after the
last `ANCHOR` lines of the previous read are new. If the end of the ring does not contain these, the whole ring is read.
For each read the kernel walks all records: if that takes more than `SHARE` of a core (a large ring on a slow core), the
interval grows, unless lines arrive so fast that the end of the ring is too short.

Each line is converted to a record in the format of `/dev/kmsg`. Differences:

| `/dev/kmsg` has | syslog(2) |
|---|---|
| the number of the record | the time of the line, increased so that numbers rise; the same lines get the same numbers after a restart |
| how many records were lost | unknown: a gap of unknown size, if the oldest line is newer than the last one read, or `dmesg --clear` hid the lines |
| where a record ends | unknown: the kernel begins each line of one record with the same `<priority>[time]` |
| the time of arrival | up to `poll` seconds later |

The priority contains the facility (kernel/printk/printk.c, print_syslog), so lines written by a process are detected.
But a kernel record can contain text that a user chose, with a newline followed by a forged line of a driver. Therefore
lines with the same beginning count as one record, as at `/dev/kmsg`. They count as separate records only if each is a
line of a driver or of a PCI device: the only text of a user in such a line is a process name, which is shorter than any
pattern. The later lines of a combined record are also yielded as if a process had written them, so that those in the
form of an event are counted.

Lines without times (printk.time off) are rejected, because neither their order nor their ends are known. The kernel
keeps the times internally, so no lines in the ring are lost when printk.time is enabled.
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
_PROBE = b"NVRM: The NVIDIA GPU "  # the only pattern that spans several lines (`lines.py`)
_NO_TIMES = "syslog(2) gives lines without times; echo Y > /sys/module/printk/parameters/time on the host, and printk.time=1 for its next boot"


def open_syslog(*, instead_of: OSError) -> SyslogRing:
    """Opens the log by syslog(2). `instead_of`: why the device cannot be opened.

    Raises CollectorError if syslog(2) fails, too.
    """
    try:
        size = min(RING_MOST, 2 * ring_size())  # as text, the prefix of a line is longer than in the ring
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
    """Returns the newest complete lines of the ring that fit into `size` bytes. Raises OSError."""
    buffer = ctypes.create_string_buffer(size)
    return ctypes.string_at(buffer, _klogctl(_READ_ALL, buffer, size))


def _klogctl(action: int, buffer: ctypes.Array[ctypes.c_char] | None, size: int) -> int:
    result: int = ctypes.CDLL(None, use_errno=True).klogctl(action, buffer, size)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


class SyslogRing:
    """A record source that reads the newest lines with `read(size)`; `size` is enough for the whole ring."""

    wait: int | None = None

    def __init__(self, read: Callable[[int], bytes], size: int, poll: float = POLL) -> None:
        self.poll: float | None = poll
        self._shortest = poll
        self._read_newest = read
        self._size = size
        self._anchor: bytes | None = None  # last lines read; None before the first read; empty if the ring was empty
        self._waiting: deque[bytes] = deque()
        self._last = 0  # number of the last line, minus BY_TIME

    def read(self, limit: int) -> Turn:
        """Returns the next records. Raises OSError if the ring is no longer readable, or its lines have no times."""
        restarted = not self._waiting and self._take()
        records = list(self._records(limit))
        return Turn(records, drained=not self._waiting, restarted=restarted)

    def slow(self) -> bool:
        """True unless records of the last read are left: a new read makes the kernel walk the whole ring."""
        return not self._waiting

    def close(self) -> None:
        """No-op: this source keeps nothing open."""

    def _take(self) -> bool:
        """Queues the new lines. True if they begin with the oldest line of the ring."""
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
        """Returns lines and the offset of the new ones; the offset is None if the lines of the last read are gone."""
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
    """Splits lines with the same prefix into records, each with its priority."""
    whole = b"\n".join(lines)
    if len(lines) == 1 or lines[0].startswith(_PROBE):
        yield priority, whole
    elif all(map(_OF_A_DRIVER.match, lines)) and not of_a_packet_filter(whole.decode("utf-8", "replace")):
        yield from ((priority, line) for line in lines)
    else:
        yield priority, whole
        yield from ((priority | _USER, line) for line in lines[1:])


def _behind(text: bytes, anchor: bytes) -> int | None:
    """Returns the offset in `text` after the complete lines `anchor`, or None if `text` does not contain them."""
    at = text.rfind(anchor)
    return at + len(anchor) if at == 0 or (at > 0 and text[at - 1 : at] == b"\n") else None
