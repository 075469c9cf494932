"""The fleet as text for people: a summary line, and a row for each node."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from gpuwarden.base.fisher import MARKED_LEAST
from gpuwarden.cli.text import clean, table, wrapped
from gpuwarden.fleet.model import Finding, Notice, Out, Row
from gpuwarden.fleet.status import RANK, Status
from gpuwarden.fleet.why import Why

_CHECKS_MOST = 3
_DOMAINS_MOST = 10
_OWNERS = {
    "failure": "gpuwarden, for a failure",
    "termination": "gpuwarden, for a termination",
    "operator": "an operator",
    "foreign": "another party",
    "maintenance": "a maintenance reservation",
}
_LAST_KNOWN = {Out.FAILURE: "when last recorded, for a failure", Out.PLANNED: "when last recorded, as planned"}


def fleet_text(shown: Sequence[Row], all_rows: Sequence[Row]) -> Iterator[str]:
    yield _headline(all_rows)
    yield from _domains(all_rows)
    if len(shown) < len(all_rows):
        yield f"shown: {len(shown)}; --all shows every node"
    if not shown:
        return
    columns = dict(_COLUMNS)
    if all(not row.cluster for row in shown):
        del columns["CLUSTER"]
    if all(not row.domain for row in shown):
        del columns["DOMAIN"]
    yield ""
    yield from table(list(columns), [[clean(column(row)) for column in columns.values()] for row in shown])


def why_text(comparison: Why) -> Iterator[str]:
    if comparison.failing < MARKED_LEAST:
        yield f"why: {comparison.failing} such nodes are too few to compare with the others; {MARKED_LEAST} are needed"
    elif not comparison.causes:
        yield f"why: no common cause of {comparison.failing} nodes; {comparison.tests} values of labels were compared"
    else:
        yield f"why: what {comparison.failing} nodes have in common, of {comparison.tests} values of labels that were compared"
    for cause in comparison.causes:
        labels = ", ".join(f"{clean(name)}={clean(value)}" for name, value in cause.labels.items())
        others = f"{cause.having - cause.failing_with} of {cause.nodes - cause.failing} others"
        yield f"  {labels}: {cause.failing_with} of {cause.failing} of them, {others} (p = {cause.p:.1g})"


def fitted(lines: Iterable[str], notes: Iterable[str], columns: int, rows: int) -> list[str]:
    """Return the lines for a terminal of that size, wrapped and cut so that the first ones stay on it: the worst nodes.

    One line above them is for the time, one below the notes for the cursor.
    """
    below = sum(-(-len(_note(note)) // columns) for note in notes)
    room = max(rows - 2 - below, 1)
    fitting = list(wrapped(lines, columns))
    if len(fitting) <= room:
        return fitting
    return [*fitting[: room - 1], f"… {len(fitting) - room + 1} more lines"]


def print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        print(_note(note), file=sys.stderr)


def _note(note: str) -> str:
    return f"gpuwarden fleet: {clean(note)}"


def span(seconds: float) -> str:
    """Text of a time span, coarser the longer it is: `45s`, `12m`, `1h05m`, `2d03h`."""
    whole = int(seconds)
    if whole < 100:
        return f"{whole}s"
    minutes, hours = whole // 60, whole // 3600
    if minutes < 60:
        return f"{minutes}m{whole % 60:02}s" if minutes < 10 else f"{minutes}m"
    return f"{hours}h{minutes % 60:02}m" if hours < 48 else f"{hours // 24}d{hours % 24:02}h"


def _headline(rows: Sequence[Row]) -> str:
    of = Counter(row.status for row in rows)
    counts = ", ".join(f"{of[status]} {status}" for status in sorted(of, key=RANK.__getitem__, reverse=True))
    out = sum(row.out for row in rows)
    return f"{len(rows)} node{'s' * (len(rows) != 1)}: {counts}; {out} kept out of scheduling"


def _domains(all_rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each NVLink domain with remarkable nodes, those with most of them first."""
    of: dict[str, list[Row]] = {}
    for row in all_rows:
        of.setdefault(row.domain, []).append(row)
    of.pop("", None)
    remarkable = {domain: sum(row.remarkable for row in rows) for domain, rows in of.items()}
    marked = sorted(filter(remarkable.get, of), key=lambda domain: (-remarkable[domain], domain))
    yield from (f"NVLink domain {clean(domain)}: {_headline(of[domain])}" for domain in marked[:_DOMAINS_MOST])
    if len(marked) > _DOMAINS_MOST:
        yield f"… {len(marked) - _DOMAINS_MOST} more domains"


def _node(row: Row) -> str:
    shared = any("shares its name with" in reason for reason in row.reasons)
    return f"{row.node} [{row.instance}]" if shared else row.node


def _gpus(row: Row) -> str:
    if row.present is None and row.expected is None:
        return "-"
    return "/".join("?" if number is None else str(number) for number in (row.present, row.expected))


def _status(row: Row) -> str:
    if row.busy is None or row.status is Status.UNREACHABLE:
        return str(row.status)
    work = "busy" if row.busy else "idle"
    return work if row.status is Status.HEALTHY else f"{work} ({row.status})"


def _why(row: Row) -> str:
    checks = list(_checks(row.findings))
    more = [f"{len(checks) - _CHECKS_MOST} more"] if len(checks) > _CHECKS_MOST else []
    left = [] if row.seconds_left is None else [_until("its termination deadline", row.seconds_left)]
    return ", ".join([*checks[:_CHECKS_MOST], *more, *row.reasons, *left])


def _checks(findings: Iterable[Finding]) -> Iterator[str]:
    """Yield texts of findings, worst first: `xid 79 on GPU 3`, `nvlink_down x18`."""
    of: dict[str, list[Finding]] = {}
    for finding in findings:
        of.setdefault(finding.check, []).append(finding)
    for check, same in of.items():
        if len(same) > 1:
            yield f"{check} x{len(same)}"
        else:
            detail = f" {same[0].detail[:60]}" if same[0].detail else ""
            yield f"{check}{detail}{f' on GPU {same[0].gpu}' if same[0].gpu else ''}"


def _until(event: str, left: float) -> str:
    return f"{span(left)} until {event}" if left >= 0 else f"{event} passed {span(-left)} ago"


def _excluded(row: Row) -> str:
    if not row.excluded_by:
        return _LAST_KNOWN.get(row.last_known_out, "-") if row.last_known_out else "-"
    return "; ".join(_by_whom(exclusion) for exclusion in row.excluded_by)


def _by_whom(exclusion: str) -> str:
    actuator, _, owner = exclusion.rpartition(":")
    return f"{_OWNERS.get(owner, owner)}{f' ({actuator})' if actuator else ''}"


def _notice(notice: Notice | None) -> str:
    if notice is None:
        return "-"
    label = " ".join(filter(None, (notice.source, notice.kind))) or "announced"
    left = notice.seconds_left
    if left is None:
        return label
    return f"{label}, {span(left)} left" if left >= 0 else f"{label}, {span(-left)} overdue"


_COLUMNS: dict[str, Callable[[Row], str]] = {
    "NODE": _node,
    "CLUSTER": lambda row: row.cluster or "-",
    "DOMAIN": lambda row: row.domain or "-",
    "GPUS": _gpus,
    "STATUS": _status,
    "EXCLUDED BY": _excluded,
    "HEARTBEAT": lambda row: "-" if row.age_seconds is None else f"{span(row.age_seconds)} ago",
    "NOTICE": lambda row: _notice(row.notice),
    "MODE": lambda row: row.mode or "-",
    "WHY": _why,
}
