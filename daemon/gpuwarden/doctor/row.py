"""The result of one check of the doctor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from enum import StrEnum

from gpuwarden_collectors.dataclass import dataclass


class Grade(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the report.

    `found` is the state. `to_do` is the advice, empty if and only if the grade is ok. `examination` sets the `area`.
    """

    area: str = field(default="host", kw_only=True)
    check: str
    grade: Grade
    found: str
    to_do: str = ""


def ok(check: str, state: str) -> Row:
    return Row(check, Grade.OK, state)


def warn(check: str, state: str, to_do: str) -> Row:
    return Row(check, Grade.WARN, state, to_do)


def fail(check: str, state: str, to_do: str) -> Row:
    return Row(check, Grade.FAIL, state, to_do)


def worst(rows: Iterable[Row]) -> Grade:
    grades = {row.grade for row in rows}
    return next((grade for grade in (Grade.FAIL, Grade.WARN) if grade in grades), Grade.OK)
