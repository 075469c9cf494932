"""CPU cost of making classes and of garbage collection during imports: both variants, in turns within one run.

Classes: 400 frozen ones of six fields, made by `dataclasses.dataclass` and by `gpuwarden_collectors.dataclass`. Garbage: the modules of
`gpuwarden run` in a process of their own, with collections and without, as `gpuwarden` imports them. Compiled modules are needed:
`make bytecode`.
"""

from __future__ import annotations

import dataclasses
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from common import spread, table
from gpuwarden_collectors.dataclass import dataclass

TURNS = 11
CLASSES = 400
IMPORTS = (
    "import gc, time; {} begun = time.process_time(); import gpuwarden.cli.run_main; print(time.process_time() - begun)"
)


def of_class(decorate: Callable[..., Any]) -> float:
    """Milliseconds of CPU for each class."""
    begun = time.process_time()
    for _ in range(CLASSES):

        @decorate(frozen=True, slots=True, kw_only=True)
        class Made:
            """Has a docstring, as classes of the daemon do."""

            a: int
            b: str
            c: float = 0.0
            d: tuple[int, ...] = ()
            e: str = ""
            f: int = 0

    return (time.process_time() - begun) * 1e3 / CLASSES


def of_imports(before: str) -> float:
    """Milliseconds of CPU for all modules of `gpuwarden run`."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS.format(before)], capture_output=True, check=True, text=True, timeout=60
    )
    return float(done.stdout) * 1e3


PAIRS: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {
    "a class: of the standard library, sharing its methods": (
        lambda: of_class(dataclasses.dataclass),
        lambda: of_class(dataclass),
    ),
    "all imports: with collections, without": (lambda: of_imports(""), lambda: of_imports("gc.disable();")),
}


def main() -> None:
    rows = []
    for name, (before, now) in PAIRS.items():
        turns = [(before(), now()) for _ in range(TURNS)]
        first, second = zip(*turns, strict=True)
        ratio = statistics.median(second) / statistics.median(first)
        rows.append((name, spread(first), spread(second), f"{ratio:.2f}"))
    table("imports of a start", ("what", "first, ms of CPU", "second, ms of CPU", "ratio"), rows)


if __name__ == "__main__":
    main()
