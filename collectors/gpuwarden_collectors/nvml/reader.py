"""One pass over all GPUs through NVML.

Each pass reads the device list and all handles again, so that lost, missing and renumbered GPUs are detected; cached
data belongs to a GPU's slot, not to its index. Each GPU is read separately: its errors only affect its own facts. A GPU
at which an earlier process hung is read last, after the others were reported, or not at all. If NVML as a whole is
unusable (no driver, a library of another version), that is a fact, too, and the next pass initialises it again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpuwarden_collectors.base import Clock, host_clock
from gpuwarden_collectors.event_facts import XidEvent
from gpuwarden_collectors.facts import CallError, GpuAnswer, GpuFacts, NvmlFacts, NvmlProblem, slot_of
from gpuwarden_collectors.nvml import devices
from gpuwarden_collectors.nvml.due import phase_of_gpu
from gpuwarden_collectors.nvml.gpu import Gpu
from gpuwarden_collectors.nvml.library import PROBLEMS, Code, bounded, error_text, open_library, read_text
from gpuwarden_collectors.nvml.options import NvmlOptions
from gpuwarden_collectors.nvml.reading_time import ReadingTime
from gpuwarden_collectors.nvml.watched import Watched
from gpuwarden_collectors.nvml.xid_events import Session, XidEvents
from gpuwarden_collectors.worker.hung import Hung
from gpuwarden_collectors.worker.in_flight import Page

if TYPE_CHECKING:  # saves the worker 0.6 MiB
    from pathlib import Path

_MOST_GPUS = 64
_ALL = -1  # the reading time that belongs to no single GPU
_SECOND_OPINION = 60.0  # seconds after which a process whose library never matched the driver requests a replacement
_ANSWERS: dict[int, GpuAnswer] = {
    Code.GPU_IS_LOST: GpuAnswer.LOST,
    Code.RESET_REQUIRED: GpuAnswer.RESET_REQUIRED,
    Code.TIMEOUT: GpuAnswer.TIMEOUT,
}


_Located = tuple[Any, str, CallError | None]


class NvmlReader:
    """Reads all GPUs. Call `connect`, `read` and `close` from one thread; `events` blocks a second thread.

    `clock` returns seconds of CLOCK_BOOTTIME, for the schedule of readings. `spent` is true if the loaded library does
    not match the driver, and only a new process can load the newly installed one. `page`: shared memory to which each
    call in progress is written, with its GPU.
    """

    def __init__(
        self,
        options: NvmlOptions,
        *,
        clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
        stamp: Clock = host_clock,
        dev: Path | str = devices.DEV,
    ) -> None:
        self._options = options
        self._dev = dev
        self._clock = clock
        self._stamp = stamp
        self.page = Page()
        self._bindings: Any = None  # for the event thread, whose calls are not recorded
        self._nvml: Any = None
        # Held by a thread that initialises NVML, shuts it down, or needs it to stay initialised.
        self._library = threading.Lock()
        self._session: Session | None = None
        self._versions: dict[str, Any] = {}
        self._gpus: dict[str, Gpu] = {}
        self._slots: list[str] = []  # by index, as of the last pass; empty if the GPU never reported it
        self._time = ReadingTime()
        self._turn: int = 0  # index of the first candidate for slow readings, which one GPU per pass makes
        self._replace_at: float | None = None  # time from which a mismatched library makes this process spent
        self.spent = False

    def connect(self) -> None:
        """Loads and initialises NVML. Raises SourceAbsent without a library; a missing driver is not an error here."""
        self.close()
        self._bindings = open_library(self._options)
        self._nvml = Watched(self._bindings, self.page)
        with suppress(self._nvml.NVMLError):
            self._initialise()

    def read(self) -> NvmlFacts:
        """Reads all GPUs once; connects first if necessary. Raises SourceAbsent as `connect` does, no NVML error."""
        return self.read_around((), lambda _: None)

    def read_around(self, hung: Sequence[Hung], partial: Callable[[NvmlFacts], None]) -> NvmlFacts:
        """Reads all GPUs as `read` does, but those in `hung` last or not at all.

        Before it reads one of these, it passes the facts of the other GPUs to `partial`.
        """
        self.page.part()
        self._time = ReadingTime()
        if self._nvml is None:
            self.connect()
        simulated = self._options.simulate > 0
        try:
            self._initialise()
            gpus = self._read_gpus(
                hung, lambda gpus: partial(NvmlFacts(gpus=gpus, simulated=simulated, **self._versions))
            )
        except self._nvml.NVMLError as error:
            self.close()
            problem = PROBLEMS.get(error.value, NvmlProblem.OTHER)
            self.spent = problem is NvmlProblem.LIBRARY_MISMATCH and self._misfit_lasts()
            text = error_text(self._nvml, error.value)
            refused = self._refused(text) if problem is NvmlProblem.OTHER else None
            return refused or NvmlFacts(
                problem=problem, problem_code=error.value, problem_text=text, simulated=simulated
            )
        if _strange(gpus) and (facts := self._refused("unknown error, of some GPUs")):
            return facts
        self._replace_at = 0.0  # versions match; a later mismatch means that another library was installed
        return NvmlFacts(gpus=gpus, simulated=simulated, read_seconds=self._time.total(), **self._versions)

    def _refused(self, error: str) -> NvmlFacts | None:
        """Returns facts with NO_PERMISSION if this user may not open the device files, which explains NVML's error."""
        paths = () if self._options.simulate else devices.refused(self._dev)
        if not paths:
            return None
        text = f"{devices.refusal(paths)}; NVML reports: {error}"
        return NvmlFacts(problem=NvmlProblem.NO_PERMISSION, problem_text=text)

    def _misfit_lasts(self) -> bool:
        """True if a new process should replace this one because library and driver do not match.

        At once for a library that matched before. Otherwise after a delay: a new process with the same mismatch would
        be replaced in each pass.
        """
        if self._replace_at is None:
            self._replace_at = self._clock() + _SECOND_OPINION
        return self._clock() >= self._replace_at

    def events(self, emit: Callable[[XidEvent], None], stop: threading.Event) -> None:
        """Emits NVML's Xid events from now on, until `stop`. Blocks and never raises."""
        XidEvents(lambda: self._session, self._library, emit, self._stamp).follow(stop)

    def close(self) -> None:
        """Shuts NVML down. The next `read` initialises it again."""
        session, self._session = self._session, None
        if session is None:
            return
        for gpu in self._gpus.values():
            gpu.close()
        self._gpus.clear()
        self._slots.clear()
        with self._library, suppress(session.nvml.NVMLError):
            session.nvml.nvmlShutdown()

    def _initialise(self) -> None:
        if self._session is not None:
            return
        nvml = self._nvml
        with self._library:
            nvml.nvmlInit()
        self._session = Session(self._bindings)
        self._versions = {
            "driver_version": self._version(nvml.nvmlSystemGetDriverVersion),
            "nvml_version": self._version(nvml.nvmlSystemGetNVMLVersion),
            "cuda_version": self._version(_cuda_version, nvml),
        }

    def _version(self, function: Callable[..., str], *args: Any) -> str:
        try:
            return read_text(function, *args)
        except self._nvml.NVMLError:
            return ""

    def _read_gpus(self, hung: Sequence[Hung], partial: Callable[[tuple[GpuFacts, ...]], None]) -> tuple[GpuFacts, ...]:
        """Reads all GPUs. Raises NVMLError if the library cannot count them."""
        count = min(self._nvml.nvmlDeviceGetCount(), _MOST_GPUS)
        avoided = {each.number: each for each in hung if each.total == count}  # otherwise indices may have shifted
        self._time.add(_ALL)
        located = [self._locate(index, count) for index in range(count) if index not in avoided]
        handles = _with_avoided(located, avoided)
        slots = self._name_slots([slot for _, slot, _ in handles])
        now = self._clock()
        turn = self._next_turn(slots, now)
        facts: dict[str, GpuFacts] = {}
        for index, each in avoided.items():
            facts[slots[index] or f"?{index}"] = self._hung_gpu(slots[index], each)
        for index in sorted(range(count), key=lambda index: index in avoided):
            if index in avoided:
                if not avoided[index].last:
                    continue
                partial(_by_index(facts))
                del facts[slots[index] or f"?{index}"]
                handles[index] = self._locate(index, count, slots[index])
                slots[index] = handles[index][1] or slots[index]
            handle, _, error = handles[index]
            slot = slots[index]
            if slot and slot in facts:
                facts[slot] = _with_error(facts[slot], f"GPU {index} reports the same slot and is left out")
                continue
            self.page.part(slot or _nameless(index), index, count)
            self._time.add(_ALL)
            gpu = self._read_gpu(slot, index, handle, error, now, its_turn=index == turn)
            self._time.add(index)
            facts[slot or f"?{index}"] = replace(gpu, read_seconds=self._time.of(index))
        self.page.part()
        self._remember(slots, [handle for handle, _, _ in handles])
        return _by_index(facts)

    def _hung_gpu(self, slot: str, hung: Hung) -> GpuFacts:
        """Returns the facts of a GPU that is not read, because a process that read it hung."""
        error = CallError(call=hung.call, code=0, text=f"no answer for {hung.seconds} s")
        gpu = self._gpus.get(slot)
        if gpu is None:
            return GpuFacts(slot=slot, index=hung.number, answer=GpuAnswer.HUNG, silent=hung.seconds, errors=(error,))
        gpu.forget()
        return replace(gpu.unanswered(hung.number, GpuAnswer.HUNG, error), silent=hung.seconds)

    def _next_turn(self, slots: Sequence[str], now: float) -> int | None:
        """Returns the index of the GPU that may make slow readings in this pass; the GPUs take turns."""
        order: list[int] = [*range(self._turn, len(slots)), *range(min(self._turn, len(slots)))]
        for index in order:
            gpu = self._gpus.get(slots[index])
            if gpu is None or gpu.waits_for_turn(now):
                self._turn = index + 1
                return index
        return None

    def _locate(self, index: int, count: int, known_slot: str = "") -> _Located:
        """Returns the handle and slot of the GPU with this index, or the error. `known_slot`: by an earlier worker."""
        located = self._handle(index, count, known_slot)
        self._time.add(index)
        return located

    def _handle(self, index: int, count: int, known_slot: str) -> _Located:
        last = known_slot or (self._slots[index] if len(self._slots) == count else "")
        self.page.part(last or _nameless(index), index, count)
        nvml, handle = self._nvml, None
        call = "nvmlDeviceGetHandleByIndex"
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            call = "nvmlDeviceGetPciInfo"
            return handle, slot_of(read_text(lambda: nvml.nvmlDeviceGetPciInfo(handle).busId)), None
        except nvml.NVMLError as error:
            return handle, "", CallError(call=call, code=error.value, text=error_text(nvml, error.value))
        except ValueError as error:
            return handle, "", CallError(call=call, code=0, text=bounded(str(error)))

    def _name_slots(self, located: list[str]) -> list[str]:
        """Returns slots by index. A GPU that does not report its slot keeps it, if no index can have shifted."""
        if len(located) != len(self._slots):
            return located
        return [slot or (last if last not in located else "") for slot, last in zip(located, self._slots, strict=True)]

    def _read_gpu(
        self, slot: str, index: int, handle: Any, error: CallError | None, now: float, *, its_turn: bool
    ) -> GpuFacts:
        options = self._options
        gpu = self._gpus.get(slot) or Gpu(
            self._nvml, slot, interval=options.interval, phase=phase_of_gpu(index), gpm=options.gpm
        )
        if slot:
            self._gpus[slot] = gpu
        if error is not None:
            gpu.forget()
            return gpu.unanswered(index, _ANSWERS.get(error.code, GpuAnswer.UNKNOWN), error)
        try:
            return gpu.read(handle, index, now, its_turn=its_turn or options.in_full)
        except Exception as mishap:  # noqa: BLE001 - bindings that stumble over one GPU must not hide the others
            gpu.forget()
            text = bounded(f"{type(mishap).__name__}: {mishap}")
            return gpu.unanswered(
                index, GpuAnswer.UNKNOWN, CallError(call="pynvml", code=Code.UNKNOWN.value, text=text)
            )

    def _remember(self, slots: list[str], handles: list[Any]) -> None:
        """Stores data for the next pass and the event thread; drops GPUs that are no longer listed."""
        for slot in self._gpus.keys() - set(slots):
            self._gpus.pop(slot).close()
        self._slots = slots
        devices = tuple((handle, slot) for handle, slot in zip(handles, slots, strict=True) if handle is not None)
        session = self._session
        if session is not None and {slot for _, slot in devices} - {slot for _, slot in session.devices}:
            self._session = replace(session, devices=devices)


def _cuda_version(nvml: Any) -> str:
    number = nvml.nvmlSystemGetCudaDriverVersion_v2()
    return f"{number // 1000}.{number % 1000 // 10}"


def _with_error(facts: GpuFacts, text: str) -> GpuFacts:
    error = CallError(call="nvmlDeviceGetPciInfo", code=0, text=text)
    return replace(facts, errors=(*facts.errors, error))


def _nameless(index: int) -> str:
    """Returns a name for a GPU whose slot is unknown."""
    return f"GPU {index}"


def _with_avoided(located: Sequence[_Located], avoided: Mapping[int, Hung]) -> list[_Located]:
    """Merges located and avoided GPUs by index; avoided GPUs keep their slots."""
    rest = iter(located)
    return [
        (None, "" if avoided[index].part == _nameless(index) else avoided[index].part, None)
        if index in avoided
        else next(rest)
        for index in range(len(located) + len(avoided))
    ]


def _by_index(facts: Mapping[str, GpuFacts]) -> tuple[GpuFacts, ...]:
    return tuple(sorted(facts.values(), key=lambda gpu: gpu.index))


def _strange(gpus: Collection[GpuFacts]) -> bool:
    """True if a GPU returns only unknown errors, and no GPU a specific error, which must not be replaced."""
    answers = {gpu.answer for gpu in gpus}
    return GpuAnswer.UNKNOWN in answers and answers <= {GpuAnswer.OK, GpuAnswer.UNKNOWN}
