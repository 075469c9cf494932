"""The newest archive in `gpuwarden status`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuwarden.cli.text import clean, when

Document = dict[str, Any]


def sections(status: Document) -> Iterator[tuple[str, list[str]]]:
    yield "archive for the vendor", list(_lines(status.get("bundle")))


def _lines(last: Document | None) -> Iterator[str]:
    if not last:
        return
    about = f"{when(last['at'])}, {clean(last['finding'])}"
    if not last["made"]:
        yield f"{about}: none could be made: {clean(last['why'])}"
        return
    lacks = f"; without {clean(last['missing'])}" if last["missing"] else ""
    yield f"{about}: {clean(last['file'])}{lacks}"
