"""A feature that is in no release, and has bugs: it raises in each call that a file names. Here are its tables.

`beside_the_real_ones` gives the environment of Python processes in whose list of features it is from their start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuwarden.publish.metrics.lines import GAUGE
from gpuwarden.publish.metrics.row import Metric

VARIABLE = "FAULTY_CALLS"
"""The file with the names of the calls that raise."""
LISTED = """
from gpuwarden import features
features.FEATURES = {"faulty": frozenset({"daemon", "metrics", "status", "snapshot"}), **features.FEATURES}
features.parts.__defaults__ = (features.FEATURES,)
features.__path__.append(FOLDER)
"""
MODULES = {
    "__init__": "",
    "daemon": "from support.faulty_feature import part",
    "metrics": "from support.faulty_tables import METRICS",
    "status": "from support.faulty_tables import document",
    "snapshot": "from support.faulty_tables import looked_at, shown",
}


def beside_the_real_ones(folder: Path, calls: Path) -> Mapping[str, str]:
    (folder / "sitecustomize.py").write_text(f"FOLDER = {str(folder)!r}\n{LISTED}")
    (folder / "faulty").mkdir()
    for name, text in MODULES.items():
        (folder / f"faulty/{name}.py").write_text(text)
    return {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path]), VARIABLE: str(calls)}


def may_raise(call: str) -> None:
    if call in Path(os.environ[VARIABLE]).read_text().split():
        raise LookupError(f"a bug in {call}")


def _samples(_: Any) -> list[tuple[tuple[str, ...], int]]:
    may_raise("metrics")
    return [((), 1)]


METRICS = (Metric("gpuwarden_faulty", GAUGE, (), _samples, "Always 1."),)


def document(_: Any) -> dict[str, object]:
    may_raise("status")
    return {"faulty": "well"}


def shown(_: Any, __: Any) -> str:
    may_raise("snapshot")
    return "well"


def looked_at(_: Any) -> Mapping[str, tuple[str, ...]]:
    return {}
