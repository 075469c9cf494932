"""What a site makes of single conditions and Xids: the tables `[checks.CODE]`, `[xids.N]` and `[sxids.N]`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from gpuwarden.base.durations import format_duration
from gpuwarden.health.conditions import CONDITIONS, condition
from gpuwarden.health.model import Advice, Severity
from gpuwarden.health.view import CheckRule, XidRule

Misfit = tuple[tuple[str, ...], str]
LONGEST = 7 * 86400.0


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """One condition. `shadow`: reported, and nothing follows from it. What is not given is as the table has it."""

    enabled: bool = True
    shadow: bool = False
    rise: float | None = None
    fall: float | None = None
    severity: Severity | None = None


@dataclass(frozen=True, slots=True)
class XidOptions:
    """One Xid or SXid. `severity` record: it is counted and makes no finding."""

    severity: Literal["", "record", "warning", "failure"] = ""
    advice: Advice | None = None


def check_rules(checks: Mapping[str, CheckOptions]) -> dict[str, CheckRule]:
    return {
        code: CheckRule(enabled=c.enabled, shadow=c.shadow, rise=c.rise, fall=c.fall, severity=c.severity)
        for code, c in checks.items()
    }


def xid_rules(xids: Mapping[str, XidOptions]) -> dict[str, XidRule]:
    return {number: XidRule(severity=x.severity, advice=x.advice) for number, x in xids.items()}


def catalogue_misfits(
    checks: Mapping[str, CheckOptions], xids: Mapping[str, XidOptions], sxids: Mapping[str, XidOptions]
) -> Iterator[Misfit]:
    for code, check in checks.items():
        yield from _check_misfits(code, check)
    for table, numbers in (("xids", xids), ("sxids", sxids)):
        for number in numbers:
            if not (number.isascii() and number.isdecimal() and len(number) <= 6) or str(int(number)) != number:
                yield (f"{table}.{number[:40]}",), f"expected the number of an {table[:-1]}, such as {table}.79"


def _check_misfits(code: str, check: CheckOptions) -> Iterator[Misfit]:
    here = f"checks.{code}"
    if condition(code) is None:
        near = get_close_matches(code, list(CONDITIONS), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "; `gpuwarden explain` lists them"
        yield (here,), f"is no condition{hint}"
        return
    for key, value in (("rise", check.rise), ("fall", check.fall)):
        if value is not None and not 0.0 <= value <= LONGEST:
            allowed = f"0s to {format_duration(LONGEST)}"
            yield (f"{here}.{key}",), f"expected {allowed}, found {format_duration(value)}"
