"""Validates the tables `[checks.CODE]`, `[xids.N]` and `[sxids.N]`: their names must be existing codes and numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gpuwarden.config.structure import near
from gpuwarden.health.conditions import CONDITIONS, condition
from gpuwarden.health.model import Severity
from gpuwarden.health.view import CheckRule
from gpuwarden_collectors.options import Misfit


def catalogue_misfits(checks: Mapping[str, CheckRule], xids: Iterable[str], sxids: Iterable[str]) -> Iterator[Misfit]:
    for code, rule in checks.items():
        row = condition(code)
        if row is not None and row.scope == "job" and rule.severity is Severity.FAILURE:
            message = "expected warning: it is about a job, and a failure would drain its nodes"
            yield (f"checks.{code}.severity",), message
        if row is None:
            hint = near(code, CONDITIONS) or "; `gpuwarden explain` lists them"
            yield (f"checks.{code}",), f"is no condition{hint}"
    for table, numbers in (("xids", xids), ("sxids", sxids)):
        for number in numbers:
            if not (number.isascii() and number.isdecimal() and len(number) <= 6) or str(int(number)) != number:
                yield (f"{table}.{number[:40]}",), f"expected the number of an {table[:-1]}, such as {table}.79"
