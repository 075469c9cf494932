"""NVML's own stream of Xids, a second source in addition to the kernel log.

An event set only covers the GPUs registered with it. Therefore a new one is created whenever the reader finds another
GPU or initialises NVML again: the reader publishes a new `Session`, and the loop here compares it.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import field
from typing import Any

from gpuwarden_collectors.backoff import Backoff
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.event_facts import Source, XidEvent
from gpuwarden_collectors.facts import Stamp, slot_of
from gpuwarden_collectors.nvml.library import Code, read_text
from gpuwarden_collectors.nvml.mig import instance_id

_WAIT_MS = 750
"""Most ms until `stop` takes effect. An event ends the wait at once; each wait costs 0.1 ms of CPU (by schedstat)."""
_IDLE = 0.1  # seconds between checks while NVML is not initialised
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # seconds after an error, doubling
_XID_CRITICAL = 0x8  # nvmlEventTypeXidCriticalError
_XID_UNKNOWN = 999  # nvml.h, nvmlEventData_t: an Xid whose number the library does not know


@dataclass(frozen=True, slots=True, eq=False)
class Session:
    """An initialised library and the (handle, slot) of its GPUs. Each session needs its own event set.

    `initialisation` identifies the nvmlInit call: an event set is only valid until nvmlShutdown.
    """

    nvml: Any
    devices: tuple[tuple[Any, str], ...] = ()
    initialisation: object = field(default_factory=object)


class XidEvents:
    """Emits the Xids of the session that `session` returns. Holds `library` while NVML must stay initialised."""

    def __init__(
        self,
        session: Callable[[], Session | None],
        library: threading.Lock,
        emit: Callable[[XidEvent], None],
        clock: Clock,
    ) -> None:
        self._session = session
        self._library = library
        self._emit = emit
        self._clock = clock

    def follow(self, stop: threading.Event) -> None:
        """Follows the events until `stop`; blocks and never raises."""
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while not stop.is_set():
            current = self._session()
            if current is None or not current.devices:
                stop.wait(_IDLE)
                continue
            began = time.monotonic()
            try:
                self._follow_session(current, stop)
            except Exception:  # noqa: BLE001 - the kernel log is the other source; this one must never end
                if time.monotonic() - began > _LONGEST_PAUSE:
                    backoff.succeeded()
                stop.wait(backoff.failed())

    def _follow_session(self, mine: Session, stop: threading.Event) -> None:
        """Follows one session until it is no longer the current one. Raises NVMLError."""
        slots = {_address(handle): slot for handle, slot in mine.devices}
        with self._library:
            if self._session() is not mine:
                return
            events = _register(mine)
        try:
            while not stop.is_set():
                with self._library:
                    if self._session() is not mine:
                        return
                    event = _wait(mine.nvml, events)
                if event is not None:
                    self._emit(_xid(mine.nvml, event, slots, self._clock()))
        finally:
            self._free(mine, events)

    def _free(self, mine: Session, events: Any) -> None:
        with self._library, suppress(mine.nvml.NVMLError):
            current = self._session()
            if current is not None and current.initialisation is mine.initialisation:
                mine.nvml.nvmlEventSetFree(events)


def _register(session: Session) -> Any:
    events = session.nvml.nvmlEventSetCreate()
    for handle, _ in session.devices:
        with suppress(session.nvml.NVMLError):  # the GPU is lost or does not support events: continue with the others
            session.nvml.nvmlDeviceRegisterEvents(handle, _XID_CRITICAL, events)
    return events


def _wait(nvml: Any, events: Any) -> Any:
    """Returns the next Xid event, or None if none arrived in time. Raises NVMLError for other errors."""
    try:
        event = nvml.nvmlEventSetWait_v2(events, _WAIT_MS)
    except nvml.NVMLError as error:
        if error.value == Code.TIMEOUT:
            return None
        raise
    return event if event.eventType == _XID_CRITICAL else None


def _xid(nvml: Any, event: Any, slots: dict[int | None, str], at: Stamp) -> XidEvent:
    slot = slots.get(_address(event.device))
    if slot is None:
        try:
            slot = slot_of(read_text(lambda: nvml.nvmlDeviceGetPciInfo(event.device).busId))
        except (nvml.NVMLError, ValueError):
            slot = ""
    return XidEvent(
        at=at,
        source=Source.NVML,
        slot=slot,
        xid=event.eventData,
        text="NVML did not know the number" if event.eventData == _XID_UNKNOWN else "",
        gpu_instance=instance_id(event.gpuInstanceId),
        compute_instance=instance_id(event.computeInstanceId),
    )


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
