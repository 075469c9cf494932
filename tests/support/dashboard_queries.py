"""The queries of the dashboards, as in the files."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from dashboards import FOLDER, PAGES

Json = Any


@dataclass(frozen=True, slots=True)
class Asked:
    """One query of one panel, as in the file."""

    page: str
    panel: str
    ref: str
    expr: str
    instant: bool

    @property
    def where(self) -> tuple[str, str]:
        return self.page, self.panel


def read(name: str) -> Json:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def panels(name: str) -> list[Json]:
    return [panel for panel in read(name)["panels"] if panel["type"] != "row"]


QUERIES = [
    Asked(name, panel["title"], target["refId"], target["expr"], target.get("instant", False))
    for name in PAGES
    for panel in panels(name)
    for target in panel["targets"]
]
VARIABLES = [
    (name, variable["name"], *re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]).groups())  # type: ignore[union-attr]
    for name in PAGES
    for variable in read(name)["templating"]["list"]
    if variable["type"] == "query"
]
