"""Selects lines of the kernel log about GPUs and their bus, and explains Xids and SXids in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpuwarden.base.files import read_regular
from gpuwarden.cli.explain_codes import LINE
from gpuwarden.cli.explain_main import explanation
from gpuwarden.cli.parser import CommandError
from gpuwarden.health.view import Rules
from gpuwarden_collectors.kernel_log.lines import parse_record

_ABOUT_GPUS = re.compile(
    r"NVRM|[Nn]vidia|\bS?Xid\b|\bAER\b|pcieport|PCIe Bus Error|\bDPC\b|pciehp|mlx5|\bmce\b|EDAC|\bMCE\b|Hardware Error|blocked for more than|soft lockup|hung_task"
)
_FILE_MOST = 8 << 20
_LINES_EACH = 50
"""Most lines that are shown for one code."""
_CODES_MOST = 200


def of_file(path: Path) -> str:
    """Return the texts of a kernel log that is a file in the form of /dev/kmsg, such as a test's. Raises OSError."""
    records = (parse_record(line) for line in read_regular(path, _FILE_MOST).splitlines())
    return "".join(f"[{record.microseconds / 1e6:12.6f}] {record.text}\n" for record in records if record is not None)


def about_gpus(log: str) -> str:
    """Return the lines about GPUs, their bus and other parts that may fail with them."""
    return "".join(f"{line}\n" for line in log.splitlines() if _ABOUT_GPUS.search(line))


def explained(lines: Iterable[str], rules: Rules, driver: str) -> str:
    """Return each kind of line with an Xid or SXid, its lines and its meaning."""
    alike: dict[str, list[str]] = {}
    meanings: dict[str, list[str]] = {}
    for line in lines:
        if not LINE.search(line):
            continue
        try:
            title, *rest = explanation(line, rules, driver)
        except CommandError:
            continue
        if title in alike or len(alike) < _CODES_MOST:
            alike.setdefault(title, []).append(line.strip())
            meanings.setdefault(title, rest)
    return "\n".join(text for title in alike for text in _one(title, meanings[title], alike[title]))


def _one(title: str, meaning: list[str], lines: list[str]) -> Iterator[str]:
    yield title
    yield from meaning
    yield f"  lines:           {len(lines)}" + (f", the last {_LINES_EACH}" if len(lines) > _LINES_EACH else "")
    yield from (f"    {line}" for line in lines[-_LINES_EACH:])
    yield ""
