"""A dashboard: rows of panels, as plain values. `build` turns them into Grafana's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    STAT = "one number, or a few"
    TILES = "one coloured tile a series, with its name"
    TABLE = "rows as they are now"
    SERIES = "lines over time"
    BARS = "what came within each interval"
    TIMELINE = "states over time"


GREEN, YELLOW, ORANGE, RED, PURPLE, BLUE, GREY = "green", "yellow", "orange", "red", "purple", "blue", "#6e7079"

Texts = Mapping[str, tuple[str, str]]
"""The text and the colour shown in place of each value."""
Steps = tuple[tuple[float, str], ...]
"""Colours by lower bound; values below the first bound are green."""

BAD_FROM_ONE: Steps = ((1, RED),)
WARN_FROM_ONE: Steps = ((1, YELLOW),)


@dataclass(frozen=True, slots=True)
class Query:
    """`legend`: of a line, with labels in double braces."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """`field`: a label, or `Value` (`Value #A`, `Value #B` of more than one query). `node`: links to the dashboard of the node."""

    field: str
    name: str
    unit: str = ""
    texts: Texts | None = None
    width: int = 0
    node: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """`text`: what it shows and how to read it. `none`: the text while there is nothing to show.

    `width`: of 24. `limit`: the legend of lines that are limits, drawn dashed and red. `sort`: the column that is sorted by, the
    highest first unless `upwards`.
    """

    title: str
    kind: Kind
    text: str
    queries: tuple[Query, ...]
    width: int
    height: int = 8
    unit: str = "none"
    none: str = ""
    steps: Steps = ()
    texts: Texts | None = None
    columns: tuple[Column, ...] = ()
    sort: str = ""
    upwards: bool = False
    limit: str = ""
    low: float | None = None
    high: float | None = None
    to_node: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """`query` as Grafana writes it. `any_of`: may be All or several; else one. `hidden`: follows from the others."""

    name: str
    label: str
    query: str
    any_of: bool = True
    hidden: bool = False
    numbers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One dashboard."""

    uid: str
    title: str
    text: str
    since: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]
