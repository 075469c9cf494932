"""The result of one check of the doctor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Grade(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Row:
    """`found` is the state, `to_do` what to change: empty exactly if the grade is ok."""

    area: str
    check: str
    grade: Grade
    found: str
    to_do: str = ""


def ok(area: str, check: str, found: str) -> Row:
    return Row(area, check, Grade.OK, found)


def warn(area: str, check: str, found: str, to_do: str) -> Row:
    return Row(area, check, Grade.WARN, found, to_do)


def fail(area: str, check: str, found: str, to_do: str) -> Row:
    return Row(area, check, Grade.FAIL, found, to_do)


def worst(rows: Iterable[Row]) -> Grade:
    grades = {row.grade for row in rows}
    return next((grade for grade in (Grade.FAIL, Grade.WARN) if grade in grades), Grade.OK)
