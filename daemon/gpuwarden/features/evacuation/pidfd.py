"""Signals processes of jobs on this host. Each process is checked again right before its signal.

A pidfd is opened first: it refers to one process even if the PID is reused. If the start time that is then read by PID
is the expected one, all that is read is of this process, because a PID has one process at a time.
Only SIGNALS are sent, and only to processes that catch them at that moment: their default action ends a process.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import signal
import threading
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from gpuwarden.base.threads import detached
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.host_files import read_bytes
from gpuwarden_collectors.process_stat import process_stat
from gpuwarden_collectors.receivers.facts import SIGNALS

DEADLINE = 2.0
"""Seconds for all processes of one call; 512 take some tens of milliseconds."""
_STATUS_MOST = 16 << 10  # bytes
_NEEDED = re.compile(rb"^(Uid|TracerPid|SigCgt):\t(.*)$", re.MULTILINE)


class Result(StrEnum):
    """The result for one process. Only SENT was signalled; UNKNOWN may have been."""

    SENT = "sent"
    GONE = "gone"  # it has ended
    REPLACED = "replaced"  # its PID was reused
    DEAF = "deaf"  # it no longer catches the signal, which would end it
    FOREIGN = "foreign"  # it now runs as another user
    TRACED = "traced"  # a debugger would get the signal instead
    NOT_PERMITTED = "not_permitted"
    REFUSED = "refused"  # not to be signalled at all: this daemon, process 1, a signal that is never sent
    UNSUPPORTED = "unsupported"  # the kernel has no pidfd
    FAILED = "failed"  # a temporary error of the kernel or this daemon
    UNKNOWN = "unknown"  # no result by the deadline


PASSING = frozenset({Result.DEAF, Result.TRACED, Result.FAILED})
"""Results of a signal that was surely not sent, for a reason that may pass: a handler was being replaced, a debugger
detaches, a thread can be started again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One process to signal."""

    pid: int
    started: int
    """Ticks since boot."""
    uid: int
    """The user it must run as."""
    signal: str
    """One of SIGNALS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """The result of one order."""

    pid: int
    started: int
    result: Result
    text: str = ""
    """Why it was not sent; empty if it was."""


async def send_all(
    orders: Sequence[Order], *, deadline: float = DEADLINE, proc: Path = Path("/proc")
) -> tuple[Sent, ...]:
    """Send all of them, in a thread. Returns a result for each, in the same order. Raises nothing.

    After `deadline` seconds no further one is begun; one that is not done by then is UNKNOWN.
    """
    round_ = _Round(orders, proc)
    going = detached("signals", round_.go)
    await asyncio.wait((going,), timeout=deadline)
    if going.done() and isinstance(error := going.exception(), RuntimeError):  # no thread can be started
        return round_.results(f"not sent: {error}; raise the daemon's limit on threads (TasksMax)")
    return round_.results(f"not sent: the {deadline:g} s for all signals had passed")


class _Round:
    def __init__(self, orders: Sequence[Order], proc: Path) -> None:
        self._orders = tuple(orders)
        self._proc = proc
        self._sent: list[Sent] = []
        self._begun = 0
        self._over = False
        self._turn = threading.Lock()  # held for two assignments, so that nothing waits for it

    def go(self) -> None:
        for order in self._orders:
            with self._turn:
                if self._over:
                    return
                self._begun += 1
            self._sent.append(send(order, self._proc))

    def results(self, not_begun: str) -> tuple[Sent, ...]:
        """Return the results of all orders, and begin no other."""
        with self._turn:
            self._over = True
        sent = tuple(self._sent)
        late = self._orders[len(sent) :]
        hanging = self._begun - len(sent)
        unknown = "whether it was sent is unknown: the call has not returned"
        return (
            *sent,
            *(_not_sent(order, Result.UNKNOWN, unknown) for order in late[:hanging]),
            *(_not_sent(order, Result.FAILED, not_begun) for order in late[hanging:]),
        )


def send(order: Order, proc: Path = Path("/proc")) -> Sent:
    """Carry out one order now. Takes some tens of microseconds. Raises nothing."""
    if order.signal not in SIGNALS:
        return _not_sent(order, Result.REFUSED, f"only {', '.join(SIGNALS)} are ever sent, not {order.signal[:20]!r}")
    if order.pid <= 1 or order.pid == os.getpid():
        return _not_sent(order, Result.REFUSED, "the first process of the host and this daemon are never signalled")
    try:
        handle = os.pidfd_open(order.pid)
    except (OSError, OverflowError) as error:
        return _not_sent(order, *_cause(error, "pidfd_open"))
    try:
        objection = _objection(order, handle, proc)
        if objection is not None:
            return _not_sent(order, *objection)
        signal.pidfd_send_signal(handle, signal.Signals[f"SIG{order.signal}"])
    except OSError as error:
        return _not_sent(order, *_cause(error, "pidfd_send_signal"))
    finally:
        with contextlib.suppress(OSError):
            os.close(handle)
    return Sent(pid=order.pid, started=order.started, result=Result.SENT)


Objection = tuple[Result, str]


def _objection(order: Order, handle: int, proc: Path) -> Objection | None:
    """Return why not to send now, or None. `handle` refers to the process that has the PID now. Raises OSError if that
    process is gone.
    """
    stat = process_stat(proc, order.pid)
    status = _status(proc, order.pid)
    if stat is None or not status:
        signal.pidfd_send_signal(handle, 0)
        return Result.NOT_PERMITTED, f"it cannot be read in {proc}; is that mounted with hidepid?"
    if stat.started != order.started:
        return Result.REPLACED, "its pid belongs to another process by now"
    if stat.over:
        return Result.GONE, "it has ended"
    return _unready(order, status)


def _unready(order: Order, status: dict[str, str]) -> Objection | None:
    users = set(status.get("Uid", "").split()[:3])  # real, effective, saved
    tracer = status.get("TracerPid", "?")
    if users != {str(order.uid)}:
        return Result.FOREIGN, f"it is not user {order.uid}'s alone: it runs as {', '.join(sorted(users))}"
    if tracer != "0":
        return Result.TRACED, f"process {tracer} traces it, and would get the signal instead"
    if not _catches(status, signal.Signals[f"SIG{order.signal}"]):
        return Result.DEAF, f"it does not catch {order.signal} now"
    return None


def _status(proc: Path, pid: int) -> dict[str, str]:
    """Return the needed fields of /proc/PID/status (proc(5)); empty if it cannot be read. A process name cannot imitate
    a line of it.
    """
    try:
        text = read_bytes(f"{proc}/{pid}/status", _STATUS_MOST)
    except OSError:
        return {}
    return {key.decode(): value.decode("ascii", "replace") for key, value in _NEEDED.findall(text)}


def _catches(status: dict[str, str], number: signal.Signals) -> bool:
    try:
        return bool(int(status.get("SigCgt", ""), 16) >> (number - 1) & 1)
    except ValueError:
        return False


_CAUSES = {
    errno.ESRCH: (Result.GONE, "it has ended"),
    errno.EPERM: (
        Result.NOT_PERMITTED,
        "this daemon may not signal it; it must run as root, with CAP_KILL (in a pod: jobs.signal of the chart)",
    ),
    errno.ENOSYS: (Result.UNSUPPORTED, "this kernel has no pidfd; Linux 5.3 or later has"),
}


def _cause(error: OSError | OverflowError, call: str) -> Objection:
    objection = _CAUSES.get(error.errno or 0) if isinstance(error, OSError) else None
    return objection or (Result.FAILED, f"{call}: {error}")


def _not_sent(order: Order, result: Result, text: str) -> Sent:
    return Sent(pid=order.pid, started=order.started, result=result, text=text)
