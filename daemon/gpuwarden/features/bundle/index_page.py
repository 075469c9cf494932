"""The index page of an archive: what failed and since when, the board, kernel lines, what was tried, what to do."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from html import escape

from gpuwarden.cli import html_page
from gpuwarden.cli.html_page import WIDTH, line, svg, text
from gpuwarden.cli.text import event_data
from gpuwarden.features.bundle.contents import Contents, Document, Overview
from gpuwarden.features.bundle.entry import Completeness, Entry
from gpuwarden.features.bundle.series import METRICS, Point, Series
from gpuwarden.publish.evidence_text import evidence_text

_ROWS_MOST, _LINES_MOST, _LINE_MOST = 200, 60, 300
BOARD = (
    ("index", "GPU"),
    ("slot", "PCI address"),
    ("name", "Product"),
    ("serial", "Serial number"),
    ("part", "Part number"),
    ("module", "Module"),
    ("chassis", "Chassis"),
    ("vbios", "VBIOS"),
    ("inforom", "InfoROM"),
    ("gsp", "GSP firmware"),
    ("remapped", "Remapped rows"),
    ("retired", "Retired pages"),
    ("uuid", "UUID"),
)
"""Keys of a board and their headings."""
_MACHINE = (
    ("node", "Node"),
    ("sys_vendor", "Vendor"),
    ("product_name", "Product"),
    ("product_serial", "System serial number"),
    ("chassis_serial", "Chassis serial number"),
    ("board_serial", "Board serial number"),
    ("bios_version", "BIOS"),
    ("kernel", "Kernel"),
    ("distribution", "Distribution"),
    ("driver", "Driver"),
    ("up_since", "Up since"),
    ("gpuwarden", "gpuwarden"),
)


def page(contents: Contents) -> bytes:
    overview = contents.overview
    title = f"GPU failure on {overview.host['node']}, {overview.made_at[:19].replace('T', ' ')} UTC"
    return html_page.page(title, "\n".join(_body(contents))).encode(errors="replace")


def _body(contents: Contents) -> Iterator[str]:
    overview = contents.overview
    failed = frozenset(failure["slot"] for failure in overview.failures if failure["slot"])
    if overview.simulated:
        yield "<p><strong>These GPUs are simulated: they do not exist.</strong></p>"
    yield "<h2>What failed</h2>"
    if not overview.failures:
        none = f"What fails is not known: {overview.unknown}." if overview.unknown else "No failure is in force."
        yield f"<p>{escape(none)}</p>"
    for failure in overview.failures:
        yield from _failure(failure, overview)
    yield f"<h2>This machine</h2>{_table(('', ''), [(label, overview.host.get(key, '')) for key, label in _MACHINE if overview.host.get(key)])}"
    yield "<h2>Its boards</h2>"
    shown = [(key, label) for key, label in BOARD if any(board[key] for board in overview.boards)]
    yield _table([label for _, label in shown], [[board[key] for key, _ in shown] for board in overview.boards])
    yield "<h2>Kernel log</h2>"
    yield (
        f"<pre>{escape(_last_lines(overview.lines))}</pre>"
        if overview.lines
        else _nothing("No line about GPUs or their bus.", contents.unknown("kernel.txt"))
    )
    yield "<p>What the codes mean is in xids.txt.</p>"
    yield "<h2>What was tried, and what happened to the node</h2>"
    if why := contents.unknown("events.jsonl"):
        yield _nothing("", why)
    else:
        yield from _tried(overview)
    yield "<h2>The last 30 minutes</h2>"
    names = {board["slot"]: f"GPU {board['index'] or board['slot']}" for board in overview.boards}
    drawn = list(plots(contents.series, failed, names))
    if not drawn:
        yield "<p>There is no black box to draw them from: see below.</p>"
    else:
        yield "<p>One line for each GPU, red where it failed. Hold the pointer over a line for its GPU.</p>"
    yield from (f"<h3>{escape(name)}</h3>{plot}" for name, plot in drawn)
    yield from _archive(contents.entries)
    if overview.anonymised:
        yield "<p>Names of hosts, users, jobs, processes and addresses, and UUIDs, were replaced. Serial numbers are the real ones.</p>"


def _failure(failure: Document, overview: Overview) -> Iterator[str]:
    board = next((board for board in overview.boards if board["slot"] == failure["slot"]), None)
    over = " It has ended since then." if failure["over"] else ""
    yield f"<h3>{escape(failure['title'])}</h3><p><b>{escape(failure['id'])}</b>, since {escape(failure['since'])}.{over}</p>"
    if board is not None:
        yield _table(("", ""), [(label, board[key]) for key, label in BOARD if board[key]])
    if failure["evidence"]:
        yield f"<p>Seen: {escape(evidence_text(failure['evidence'])[:2000])}</p>"
    yield f"<p><b>To do:</b> {escape(failure['to_do'])}</p>"


def _archive(entries: Iterable[Entry]) -> Iterator[str]:
    there = [entry for entry in entries if entry.is_there]
    yield "<h2>In this archive</h2>"
    yield _table(
        ("File", "What it is", "Bytes", ""),
        [
            (
                entry.name,
                entry.about,
                f"{len(entry.content):,}",
                f"not whole: {entry.why}" if entry.state is Completeness.CUT else "",
            )
            for entry in there
        ],
    )
    yield "<h2>Not in this archive</h2>"
    yield _table(
        ("File", "What it is", "Why not"),
        [(entry.name, entry.about, entry.why) for entry in entries if not entry.is_there],
    )


def _last_lines(lines: list[str]) -> str:
    more = f"… {len(lines) - _LINES_MOST} lines before these are in kernel.txt\n" if len(lines) > _LINES_MOST else ""
    return more + "\n".join(line[:_LINE_MOST] for line in lines[-_LINES_MOST:])


def _tried(overview: Overview) -> Iterator[str]:
    yield _table(
        ("Time", "What", "About", ""),
        [
            (
                event["at"][:19].replace("T", " "),
                event["kind"],
                event["id"] or "",
                event_data(event["data"])[:_LINE_MOST],
            )
            for event in overview.tried
        ],
    )


def _nothing(text: str, unknown: str) -> str:
    return f"<p>{escape(f'Not known: {unknown}' if unknown else text)}</p>"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    cells = [[cell if isinstance(cell, str) else json.dumps(cell) for cell in row] for row in rows]
    return html_page.table(tuple(head), cells, most=_ROWS_MOST, all_of="events.jsonl")


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
