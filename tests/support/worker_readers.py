"""Readers for real worker processes. `Reader` misbehaves in the way that its options name; the ways are below it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpuwarden_collectors.base import CollectorError, SourceAbsent
from gpuwarden_collectors.event_facts import HostEvent, Source, XidEvent
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.worker.frames import MAX_PAYLOAD


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`how` names one of the WAYS, taken in `where` ("connect" or "read") while the file `trigger` exists, if one is named;
    "answer_late" answers once it is gone.

    `events`: so many Xids are sent at the start. `closed`: a file that is written when the reader is closed.
    """

    how: str = ""
    where: str = "read"
    trigger: str = ""
    events: int = 0
    closed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderFacts:
    """Facts that show which process answered, and for how many times."""

    pid: int
    reads: int
    text: str = ""


class Reader:
    def __init__(self, options: Options) -> None:
        self._options = options
        self._reads = 0
        self.spent = False

    def connect(self) -> None:
        self._misbehave("connect")

    def read(self) -> ReaderFacts:
        self._reads += 1
        text = self._misbehave("read")
        self.spent = text == "spent"
        return ReaderFacts(pid=os.getpid(), reads=self._reads, text=text)

    def events(self, emit: Callable[[HostEvent], None], stop: threading.Event) -> None:
        for number in range(self._options.events):
            emit(XidEvent(at=Stamp(1.0, 2.0), source=Source.NVML, slot="0000:4e:00.0", xid=number))
        stop.wait()

    def close(self) -> None:
        if self._options.closed:
            Path(self._options.closed).write_text(str(os.getpid()))

    def _misbehave(self, where: str) -> str:
        options = self._options
        if not options.how or options.where != where or (options.trigger and not Path(options.trigger).exists()):
            return ""
        if options.how == "answer_late":
            return answer_late(Path(options.trigger))
        return WAYS[options.how]() or ""


class OddReader:
    """Takes no options, has no events, and answers with what has no JSON form."""

    def connect(self) -> None: ...

    def read(self) -> object:
        return ReaderFacts(pid=object(), reads=1)  # type: ignore[arg-type]  # on purpose

    def close(self) -> None: ...


def hang() -> None:
    time.sleep(100)


def hang_ignoring_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(100)


def hang_locked() -> None:
    """Hang with the interpreter lock held: no thread of the process runs on, and signals keep their dispositions."""
    ctypes.PyDLL(None).sleep(100)


def hang_deaf() -> None:
    """Hang so that only SIGKILL ends the process."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hang_locked()


def hang_in_kernel() -> None:
    """D state for real: the parent of a vfork sleeps uninterruptibly until its child is gone."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    libc = ctypes.PyDLL(None)
    if libc.vfork() == 0:
        libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: nothing is left when the parent is killed
        libc.sleep(100)


def hang_as_for_a_disk() -> None:
    """D state that a signal ends, as that of a process whose memory is read from a disk."""
    libc = ctypes.PyDLL(None)
    if libc.vfork() == 0:
        libc.prctl(1, signal.SIGKILL)
        libc.sleep(100)


def answer_late(trigger: Path) -> str:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while trigger.exists():
        time.sleep(0.01)
    return "late"


def segfault() -> None:
    ctypes.string_at(0)


def leave() -> None:
    sys.exit("a line before leaving")


def print_garbage() -> str:
    os.write(1, b"\x07\xff garbage " * 10_000 + b"\n")
    return "printed"


def answer_hugely() -> str:
    return "x" * (MAX_PAYLOAD + 1)


def be_absent() -> None:
    raise SourceAbsent("there is no such library here")


def fail() -> None:
    raise CollectorError("the library refused")


def raise_anything() -> None:
    raise ZeroDivisionError("by a library")


def spend() -> str:
    return "spent"


def print_environment() -> str:
    return " ".join(sorted(os.environ))


WAYS: dict[str, Callable[[], str | None]] = {
    way.__name__: way
    for way in (
        hang,
        hang_ignoring_sigterm,
        hang_locked,
        hang_deaf,
        hang_in_kernel,
        hang_as_for_a_disk,
        segfault,
        leave,
        print_garbage,
        answer_hugely,
        be_absent,
        fail,
        raise_anything,
        spend,
        print_environment,
    )
}
