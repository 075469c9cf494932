"""The plots of the index page: one for each metric, with a line for each GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from gpuwarden.cli.svg import WIDTH, line, svg, text
from gpuwarden.features.bundle.series import METRICS, Point, Series

_LEFT, _TOP, _HIGH = 70, 10, 120
_FAILED = "#c0392b"
_OTHERS = ("#5d7fa8", "#3c8d5a", "#8e6bad", "#b07d2b", "#4f9aa0", "#7d7d7d", "#a05a78", "#6a8a2f")


def plots(series: Series, failed: frozenset[str], names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each title with its plot. `failed`: slots of the GPUs concerned. `names`: label of each GPU, by slot."""
    for metric in METRICS:
        if lines := series.lines.get(metric.title):
            yield metric.title, _plot(lines, failed, names)


def _plot(lines: Mapping[str, list[Point]], failed: frozenset[str], names: Mapping[str, str]) -> str:
    points = [point for each in lines.values() for point in each]
    start, end = min(at for at, _ in points), max(at for at, _ in points)
    least, most = min(value for _, value in points), max(value for _, value in points)
    wide, high = (WIDTH - _LEFT) / ((end - start) or 1.0), _HIGH / ((most - least) or 1.0)
    parts = [text(0, _TOP + 10, f"{most:,.0f}"), text(0, _TOP + _HIGH, f"{least:,.0f}")]
    for place, slot in enumerate(sorted(lines, key=lambda gpu: (gpu in failed, gpu))):  # those that failed lie on top
        drawn = [(_LEFT + (at - start) * wide, _TOP + (most - value) * high) for at, value in lines[slot]]
        colour = _FAILED if slot in failed else _OTHERS[place % len(_OTHERS)]
        last = lines[slot][-1][1]
        parts.append(line(drawn, colour=colour, title=f"{names.get(slot, slot)}: {last:,.0f} at the end"))
    parts += [text(_LEFT, _TOP + _HIGH + 16, _moment(start)), text(WIDTH, _TOP + _HIGH + 16, _moment(end), "end")]
    return svg(_TOP + _HIGH + 22, parts)


def _moment(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"
