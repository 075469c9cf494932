"""The table of readings, asked of one GPU: what is due in this pass is asked, slow answers are kept in between."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any

from gpuwarden_collectors.facts import GpuAnswer
from gpuwarden_collectors.nvml.calls import Calls, Unanswered, decode_field
from gpuwarden_collectors.nvml.readings import CALLS, FIELDS, VITAL, Cadence, Call


class _Question:
    """A row of the table: the function to call, how to take its result apart, when it is due, whether it ever answered."""

    __slots__ = ("answered", "due", "function", "members", "name", "row")

    def __init__(self, row: Call, nvml: Any) -> None:
        self.row = row
        self.due = 0.0
        self.answered = False
        self.name = row.function if isinstance(row.function, str) else row.into[0]
        self.function: Callable[..., Any] = (
            getattr(nvml, row.function) if isinstance(row.function, str) else partial(row.function, nvml)
        )
        self.members = attrgetter(*row.parts.split()) if row.parts not in ("", "[]") else None

    def named(self, result: Any) -> dict[str, Any]:
        """The values in `result` by attribute."""
        row = self.row
        if self.members is not None:
            result = self.members(result)
        if len(row.into) > 1 or row.parts == "[]":
            return dict(zip(row.into, result, strict=False))
        return {row.into[0]: None if row.most is not None and result > row.most else result}


def _questions(rows: tuple[Call, ...], nvml: Any) -> list[_Question]:
    """What the bindings have of `rows`: the second choice for a row whose function they lack."""
    chosen: list[_Question] = []
    for row in rows:
        choice: Call | None = row
        while choice is not None and isinstance(choice.function, str) and not hasattr(nvml, choice.function):
            choice = choice.otherwise
        if choice is not None:
            chosen.append(_Question(choice, nvml))
    return chosen


class Questions:
    """`values`: the answers by attribute of GpuReadings, None where the last answer was an error."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._vital = _questions(VITAL, calls.nvml)
        self._others = _questions(CALLS, calls.nvml)
        self._fields = list(FIELDS)
        self._answered: set[str] = set()  # fields that had a value once
        self.values: dict[str, Any] = {}

    def ask(self, now: float, *, hourly: bool) -> None:
        """One pass. Raises Unanswered, also if none of the vital questions is answered."""
        if not self._ask(self._vital, now, hourly=hourly) and not self._calls.reset_required:
            raise Unanswered(GpuAnswer.UNKNOWN)
        self._ask(self._others, now, hourly=hourly)
        self._ask_fields()

    def _ask(self, questions: list[_Question], now: float, *, hourly: bool) -> int:
        """The number of answers."""
        values, calls, handle, answers = self.values, self._calls, self._calls.handle, 0
        nvml_error = calls.nvml.NVMLError
        unsupported = []
        for question in questions:  # grows on the way, see `otherwise`
            row = question.row
            if question.due > now or (row.cadence is Cadence.HOUR and not hourly):
                continue
            try:
                result = question.function(handle, *row.args)
            except nvml_error as error:
                values.update(dict.fromkeys(row.into))
                if calls.failed(question.name, error.value, answered=question.answered):
                    unsupported.append(question)
                    questions.extend(_questions((row.otherwise,), calls.nvml) if row.otherwise else ())
            else:
                answers += 1
                question.answered = True
                question.due = now + row.cadence
                values.update(question.named(result))
        for question in unsupported:
            questions.remove(question)
        return answers

    def _ask_fields(self) -> None:
        values, unsupported = self.values, []
        values.update(dict.fromkeys([field.into for field in self._fields]))
        answers = self._calls.field_values([(field.id, field.scope) for field in self._fields])
        for field, (code, kind, raw) in zip(self._fields, answers, strict=False):
            if code == 0:
                self._answered.add(field.into)
                value = decode_field(kind if field.kind is None else field.kind, raw)
                values[field.into] = None if value is None or (field.most and value > field.most) else value
            elif self._calls.failed(f"field {field.id}", code, answered=field.into in self._answered):
                unsupported.append(field)
        for field in unsupported:
            self._fields.remove(field)
