"""The worker process: one reader of one native library, whose hangs, crashes and wrong data do not harm the daemon.

Run as `python -m gpuwarden_collectors.worker.process READER PARENT_PID PAGE`, with frames on stdin and stdout and the
descriptor of a shared page (see in_flight). The main thread makes every library call. The process can exit even while a
library call hangs:
- SIGTERM keeps its default disposition, because a Python handler never runs while a C call hangs;
- a second thread reads stdin and exits the process soon after the end of stdin;
- the kernel sends SIGTERM when the daemon dies (PR_SET_PDEATHSIG), in case a library hangs with the interpreter lock.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Event, Lock, Thread
from time import sleep
from typing import Any, Protocol

from gpuwarden_collectors.base import CollectorError, SourceAbsent
from gpuwarden_collectors.changes import changed
from gpuwarden_collectors.codec import from_wire, to_wire
from gpuwarden_collectors.event_facts import HostEvent
from gpuwarden_collectors.worker.frames import Frame, FrameBuffer, FrameError, Kind, pack
from gpuwarden_collectors.worker.hung import Hung
from gpuwarden_collectors.worker.in_flight import Page
from gpuwarden_collectors.worker.separation import end_with, own_streams

CLOSING_TIME = 1.0  # seconds between the end of stdin and the end of the process
_EVENTS_STOP = 2.0  # seconds that `Reader.events` has to return before a new connection is made
_LONGEST_TEXT = 2000


class Reader(Protocol):
    """A reader for the worker process. Its constructor takes the worker's options, if it has any.

    Optional members: `events(emit, stop)` runs in its own thread from the connection on, until it returns or `stop` is
    set. `spent` is true after a read if the process must be replaced before the next pass (only a new process can load
    an upgraded library). A reader of several parts has `page`, set before `connect`, to which it writes each part and
    call before it starts it, and `read_around(hung, partial)`: a pass that reads the parts in `hung` last or not at
    all, and passes the facts of the others to `partial` before each of them.
    """

    def connect(self) -> None:
        """Initialises the library. Raises SourceAbsent or CollectorError; the next pass then tries again."""

    def read(self) -> Any:
        """Returns the facts of one pass.

        After an exception the connection is closed, and the next pass connects again.
        """

    def close(self) -> None:
        """Closes the library. Called once after each `connect` that returned."""


class _Session:
    """The reader's connection, opened at the first request and again after each failed read."""

    def __init__(self, reader: Reader, send: Callable[..., None]) -> None:
        self._reader = reader
        self._send = send
        self._connected = False
        self._stop = Event()
        self._events: Thread | None = None
        self._sent: tuple[int, Any] | None = None  # the last facts, and under which number

    def answer(self, sequence: int, held: object, hung: Sequence[Hung]) -> None:
        """Answers a request.

        If `held` is the number of the last facts, only the changes since then are sent.
        """
        try:
            if not self._connected:
                self._connect()
            facts = self._read(sequence, hung)
            if self._sent is not None and self._sent[0] == held and type(self._sent[1]) is type(facts):
                self._send(Kind.CHANGES, sequence, changed(type(facts), self._sent[1], facts))
            else:
                self._send(Kind.FACTS, sequence, to_wire(facts))
            self._sent = sequence, facts
        except SourceAbsent as error:
            self._fail(Kind.ABSENT, sequence, str(error))
        except CollectorError as error:
            self._fail(Kind.FAILED, sequence, str(error))
        except Exception as error:  # noqa: BLE001 - whatever a library raises costs a pass, not the process
            self._fail(Kind.FAILED, sequence, f"{type(error).__name__}: {error}")

    def _read(self, sequence: int, hung: Sequence[Hung]) -> Any:
        around = getattr(self._reader, "read_around", None) if hung else None
        if around is None:
            return self._reader.read()
        return around(hung, lambda facts: self._send(Kind.PARTIAL, sequence, to_wire(facts)))

    def _fail(self, kind: Kind, sequence: int, text: str) -> None:
        self._send(kind, sequence, text[:_LONGEST_TEXT])
        self.close()

    def _connect(self) -> None:
        self._reader.connect()
        self._connected = True
        self._send(Kind.CONNECTED)
        if hasattr(self._reader, "events"):
            self._stop = Event()
            self._events = Thread(target=self._reader.events, args=(self._emit, self._stop), daemon=True)
            self._events.start()

    def _emit(self, event: HostEvent) -> None:
        self._send(Kind.EVENT, 0, to_wire(event, HostEvent))

    def close(self) -> None:
        """Closes the connection, if there is one; ends the process if the events thread does not return."""
        if not self._connected:
            return
        self._connected = False
        self._stop.set()
        if self._events is not None:
            self._events.join(_EVENTS_STOP)
            if self._events.is_alive():
                os._exit(0)  # a library must not be shut down while a thread is inside it
        with contextlib.suppress(Exception):
            self._reader.close()


class _Outlet:
    """Sends whole frames from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = Lock()

    def send(self, kind: Kind, sequence: int = 0, value: object = None) -> None:
        frame = memoryview(pack(kind, sequence, value))
        with self._lock:
            while frame:
                frame = frame[os.write(self._descriptor, frame) :]


def _serve(reader: Reader, inbox: SimpleQueue[Frame | None], outlet: _Outlet) -> None:
    session = _Session(reader, outlet.send)
    trimmed = False
    while (question := inbox.get()) is not None:
        asked = question.value()
        session.answer(question.sequence, asked["held"], [from_wire(Hung, each) for each in asked["hung"]])
        if getattr(reader, "spent", False):
            break
        if not trimmed:
            _trim()
            trimmed = True
    session.close()


def _trim() -> None:
    """Returns unused memory to the system: 10 MiB if the bindings had to be compiled (no bytecode kept)."""
    gc.collect()
    with contextlib.suppress(AttributeError):  # musl has no such function
        ctypes.CDLL(None).malloc_trim(0)


def _listen(descriptor: int, inbox: SimpleQueue[Frame | None]) -> None:
    buffer = FrameBuffer()
    with contextlib.suppress(FrameError):
        while data := os.read(descriptor, 65536):
            for frame in buffer.feed(data):
                inbox.put(frame)
    inbox.put(None)
    sleep(CLOSING_TIME)
    os._exit(0)


def _named(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _reader(name: str, start: dict[str, Any], page: Page) -> Reader:
    reader = _named(name)
    options_type = start["options_type"]
    made: Reader = reader(from_wire(_named(options_type), start["options"])) if options_type else reader()
    if hasattr(made, "page"):
        made.page = page
    page.part()
    return made


def main() -> None:
    name, parent, page = sys.argv[1:]
    questions, answers = own_streams()
    end_with(int(parent))
    inbox: SimpleQueue[Frame | None] = SimpleQueue()
    Thread(target=_listen, args=(questions, inbox), daemon=True).start()
    start = inbox.get()
    if start is not None:
        _serve(_reader(name, start.value(), Page(int(page))), inbox, _Outlet(answers))
    os._exit(0)  # a normal exit of the interpreter would wait for, or collide with, threads inside the library


if __name__ == "__main__":
    main()
