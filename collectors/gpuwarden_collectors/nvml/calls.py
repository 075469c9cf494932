"""NVML calls for one GPU. Remembers which calls are unsupported, and collects the errors of the current pass.

A call that returns "not supported" is not made again, unless it succeeded before. `GPU_IS_LOST` and `TIMEOUT` end the
pass for this GPU at once, because further calls could use up the time of the other GPUs. Any other error is recorded
in the facts of the pass, and the call is made again in the next pass.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

from gpuwarden_collectors.facts import CallError, GpuAnswer
from gpuwarden_collectors.nvml.library import Code, error_text

_UNSUPPORTED: frozenset[int] = frozenset(
    (
        Code.INVALID_ARGUMENT,
        Code.NOT_SUPPORTED,
        Code.FUNCTION_NOT_FOUND,
        Code.ARGUMENT_VERSION_MISMATCH,
        Code.DEPRECATED,
    )
)
_ENDS_THE_PASS: dict[int, GpuAnswer] = {Code.GPU_IS_LOST: GpuAnswer.LOST, Code.TIMEOUT: GpuAnswer.TIMEOUT}
_MOST_ERRORS = 32  # kept per GPU and pass

_FIELD_VALUE = struct.Struct("=IIqqII8s")  # nvmlFieldValue_t: id, scope, time, latency, value type, return code, value
_DOUBLE, _UNSIGNED_LONG_LONG = 0, 3
_DECODE = {  # the member of nvmlValue_t for each nvmlValueType_t
    kind: struct.Struct(member).unpack_from
    for kind, member in {_DOUBLE: "=d", 1: "=I", 2: "=Q", _UNSIGNED_LONG_LONG: "=Q", 4: "=q", 5: "=i", 6: "=H"}.items()
}
_NO_VALUE = {1: 0xFFFFFFFF, 2: 0xFFFFFFFFFFFFFFFF, 3: 0xFFFFFFFFFFFFFFFF}  # NVML_VALUE_NOT_AVAILABLE


class Unanswered(Exception):  # noqa: N818 - it is the answer of the GPU, and no fault of this program
    """The GPU answers no more calls in this pass."""

    def __init__(self, answer: GpuAnswer) -> None:
        super().__init__(answer)
        self.answer = answer


class Calls:
    """The calls of one pass on one GPU.

    `reset_required` is true if any call of this pass returned that code. `errors` lists the failed calls.
    """

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        self.handle: Any = None
        self.errors: list[CallError] = []
        self.reset_required = False
        self._unsupported: set[tuple[Any, ...]] = set()

    def begin(self, handle: Any) -> None:
        self.handle = handle
        self.errors = []
        self.reset_required = False

    def ask(self, function: str, *args: Any) -> Any:
        """Calls an NVML function for this GPU. Returns None if it is unsupported or fails. Raises Unanswered."""
        return self.ask_by(getattr(self.nvml, function), function, *args)

    def ask_by(self, make: Callable[..., Any], function: str, *args: Any) -> Any:
        """Calls `make(handle, …)`, named `function`. Returns None if it is unsupported or fails. Raises Unanswered."""
        question = (function, *args)
        if question in self._unsupported:
            return None
        try:
            return make(self.handle, *args)
        except self.nvml.NVMLError as error:
            if self.failed(function, error.value):
                self._unsupported.add(question)
            return None

    def failed(self, call: str, code: int, *, answered: bool = False) -> bool:
        """True if the GPU or driver does not support the call. Records any other failure. Raises Unanswered.

        A call that has `answered` before counts as supported, even if it now returns "not supported".
        """
        if self.missed(call, code, answered=answered):
            return True
        if code in _ENDS_THE_PASS:
            raise Unanswered(_ENDS_THE_PASS[code])
        if code == Code.RESET_REQUIRED:
            self.reset_required = True
        return False

    def missed(self, call: str, code: int, *, answered: bool = False) -> bool:
        """True if the call is not supported, as for `failed`. For calls whose failure implies nothing about the GPU."""
        if code in _UNSUPPORTED and not answered:
            return True
        self.note(call, code, error_text(self.nvml, code))
        return False

    def note(self, call: str, code: int, text: str) -> None:
        if len(self.errors) < _MOST_ERRORS:
            self.errors.append(CallError(call=call, code=code, text=text))

    def field_values(self, fields: Sequence[tuple[int, int]]) -> list[tuple[int, int, bytes]]:
        """Returns (return code, value type, value) for each (field id, scope); empty if the call itself failed.

        Raises Unanswered.
        """
        try:
            values = self.nvml.nvmlDeviceGetFieldValues(self.handle, fields)
        except self.nvml.NVMLError as error:
            self.failed("nvmlDeviceGetFieldValues", error.value)
            return []
        # One unpacking for all: reading members of pynvml's structures one by one takes longer than the call.
        return [(code, kind, raw) for _, _, _, _, kind, code, raw in _FIELD_VALUE.iter_unpack(values)]


def decode_field(kind: int, raw: bytes) -> int | None:
    """Returns the number in the union of nvmlFieldValue_t, or None where the driver fills in "not available"."""
    value = _DECODE.get(kind, _DECODE[_UNSIGNED_LONG_LONG])(raw)[0]
    if kind == _DOUBLE:
        return round(value) if math.isfinite(value) else None
    return None if value == _NO_VALUE.get(kind) else int(value)
