"""Reads the due rows of the table of readings for one GPU, and keeps the other values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from typing import Any

from gpuwarden_collectors.facts import GpuAnswer
from gpuwarden_collectors.nvml.calls import Calls, Unanswered, decode_field
from gpuwarden_collectors.nvml.due import Due, period, phases
from gpuwarden_collectors.nvml.readings import CALLS, FIELDS, SINCE_LOAD, VITAL, Cadence, Call, Field

Take = Callable[[Any], Mapping[str, Any]]
"""Converts the result of a call to its values by attribute."""


class _Row:
    """A row of the table: its schedule, the pass in which it was last read, and whether it ever returned a value."""

    __slots__ = ("answered", "asked", "daily", "due", "row", "trigger", "triggered")

    def __init__(self, row: Call | Field, due: Due) -> None:
        self.row = row
        self.due = due
        self.daily = row.cadence is Cadence.DAY
        self.trigger = row.trigger
        self.asked = 0
        self.answered = False
        self.triggered = False

    def wanted(self, now: float, values: Mapping[str, Any], *, its_turn: bool) -> bool:
        """True if the row is read in this pass. Call it at most once per pass.

        `its_turn` allows rows of the cadence DAY.
        """
        if self.trigger is None:
            return now >= self.due.next and (its_turn or not self.daily)
        before, self.triggered = self.triggered, self.trigger.holds(values)
        return self.triggered or before or self.due(now)


class _Question(_Row):
    """The function to call, and the conversion of its result."""

    __slots__ = ("function", "name", "named")
    row: Call

    def __init__(self, row: Call, due: Due, nvml: Any) -> None:
        super().__init__(row, due)
        self.name = row.function if isinstance(row.function, str) else row.into[0]
        self.function: Callable[..., Any] = (
            getattr(nvml, row.function) if isinstance(row.function, str) else partial(row.function, nvml)
        )
        self.named = _taker(row)


def _taker(row: Call) -> Take:
    into, most = row.into, row.most
    members = attrgetter(*row.parts.split()) if row.parts not in ("", "[]") else None
    if len(into) > 1 or row.parts == "[]":
        return lambda result: dict(zip(into, result if members is None else members(result), strict=False))
    (name,) = into
    if members is not None:
        return lambda result: {name: members(result)}
    return lambda result: {name: None if most is not None and result > most else result}


class _FieldRow(_Row):
    __slots__ = ()
    row: Field


def _question(row: Call | None, due: Due, nvml: Any) -> tuple[_Question, ...]:
    """Returns the call of a row, or of its `otherwise` if the bindings lack the function; empty if they lack both."""
    while row is not None and isinstance(row.function, str) and not hasattr(nvml, row.function):
        row = row.otherwise
    return () if row is None else (_Question(row, due, nvml),)


class Questions:
    """All rows of the table for one GPU.

    `values` has the values by attribute of GpuReadings; None if the last call failed. `interval` is the time between
    two passes in seconds; `phase`, from 0 to 1, is this GPU's position within a cadence (`due`).
    """

    def __init__(self, calls: Calls, interval: float, phase: float) -> None:
        self._calls = calls
        rows: tuple[Call | Field, ...] = (*VITAL, *CALLS, *FIELDS)
        dues = [Due(period(row.cadence, interval), at) for row, at in zip(rows, phases(rows, phase), strict=True)]
        of_row = dict(zip(rows, dues, strict=True))
        self._vital = [question for row in VITAL for question in _question(row, of_row[row], calls.nvml)]
        self._others = [question for row in CALLS for question in _question(row, of_row[row], calls.nvml)]
        self._fields = [_FieldRow(row, of_row[row]) for row in FIELDS]
        self._daily = [question for question in self._others if question.daily]
        self._passes = 0
        self._its_turn = False
        self._read_at: dict[str, float] = {}
        self._doubtful = False
        self.values: dict[str, Any] = {}

    def ask(self, now: float, *, its_turn: bool) -> bool:
        """Reads every row that is due; rows of the cadence DAY only if `its_turn`.

        Reads all rows and returns True if earlier values may be outdated: the GPU requires a reset, required one in the
        previous pass, or its counters restarted. Raises Unanswered, also if no vital row returns a value.
        """
        self._passes += 1
        self._its_turn = its_turn
        before = [self.values.get(name) for name in SINCE_LOAD]
        again = self._doubtful
        if again:
            self._all_at_once()
        if not self._ask(self._vital, now) and not self._calls.reset_required:
            raise Unanswered(GpuAnswer.UNKNOWN)
        self._ask_the_rest(now)
        self._doubtful = self._calls.reset_required
        if not again and (self._doubtful or self._counts_again(before)):
            again = True
            self._all_at_once()
            self._ask_the_rest(now)
        return again

    def waits_for_turn(self, now: float) -> bool:
        return any(question.due(now) and question in self._others for question in self._daily)

    @property
    def read_at(self) -> dict[str, float]:
        """Returns when values with a cadence were read, in seconds, rounded to milliseconds."""
        return self._read_at.copy()

    def _all_at_once(self) -> None:
        for row in (*self._others, *self._fields):
            row.due.at_once()

    def _counts_again(self, before: list[Any]) -> bool:
        pairs = ((old, self.values.get(name)) for name, old in zip(SINCE_LOAD, before, strict=True))
        return any(old is not None and new is not None and new < old for old, new in pairs)

    def _ask_the_rest(self, now: float) -> None:
        self._ask(self._others, now)
        self._ask_fields(now)

    def _ask(self, questions: list[_Question], now: float) -> int:
        """Makes the calls and returns the number of successful ones."""
        values, calls, handle, answers = self.values, self._calls, self._calls.handle, 0
        nvml_error, passes, its_turn = calls.nvml.NVMLError, self._passes, self._its_turn
        unsupported = []
        for question in questions:  # grows during the loop, see `otherwise`
            if question.asked == passes or not question.wanted(now, values, its_turn=its_turn):
                continue
            question.asked = passes
            row = question.row
            try:
                result = question.function(handle, *row.args)
            except nvml_error as error:
                self._keep(row, dict.fromkeys(row.into), now)
                if question.daily:
                    question.due.put_off(now + Cadence.MINUTE)  # the call is slow, and other GPUs wait
                if calls.failed(question.name, error.value, answered=question.answered):
                    unsupported.append(question)
                    questions.extend(_question(row.otherwise, question.due, calls.nvml))
            else:
                answers += 1
                question.answered = True
                question.due.read(now)
                self._keep(row, question.named(result), now)
        for question in unsupported:
            questions.remove(question)
        return answers

    def _keep(self, row: Call | Field, values: Mapping[str, Any], now: float) -> None:
        self.values.update(values)
        if row.cadence:
            for name, value in values.items():
                if value is None:
                    self._read_at.pop(name, None)
                else:
                    self._read_at[name] = round(now, 3)

    def _ask_fields(self, now: float) -> None:
        values, passes, its_turn = self.values, self._passes, self._its_turn
        asked = [row for row in self._fields if row.asked != passes and row.wanted(now, values, its_turn=its_turn)]
        if not asked:
            return
        unsupported = []
        for row in asked:
            row.asked = passes
            values[row.row.into] = None
            self._read_at.pop(row.row.into, None)
        answers = self._calls.field_values([(row.row.id, row.row.scope) for row in asked])
        for row, (code, kind, raw) in zip(asked, answers, strict=False):
            field = row.row
            if code == 0:
                row.answered = True
                row.due.read(now)
                value = decode_field(kind if field.kind is None else field.kind, raw)
                if value is not None and not (field.most and value > field.most):
                    values[field.into] = value
                    if field.cadence:
                        self._read_at[field.into] = round(now, 3)
            elif self._calls.failed(f"field {field.id}", code, answered=row.answered):
                unsupported.append(row)
        for row in unsupported:
            self._fields.remove(row)
