"""What must hold of the tables `[checks.CODE]`, `[xids.N]` and `[sxids.N]`: their names are codes and numbers that there are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches

from gpuwarden.health.conditions import CONDITIONS, condition
from gpuwarden_collectors.options import Misfit


def catalogue_misfits(checks: Iterable[str], xids: Iterable[str], sxids: Iterable[str]) -> Iterator[Misfit]:
    for code in checks:
        if condition(code) is None:
            near = get_close_matches(code, list(CONDITIONS), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "; `gpuwarden explain` lists them"
            yield (f"checks.{code}",), f"is no condition{hint}"
    for table, numbers in (("xids", xids), ("sxids", sxids)):
        for number in numbers:
            if not (number.isascii() and number.isdecimal() and len(number) <= 6) or str(int(number)) != number:
                yield (f"{table}.{number[:40]}",), f"expected the number of an {table[:-1]}, such as {table}.79"
