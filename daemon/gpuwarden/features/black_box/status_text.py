"""The frozen black boxes in `gpuwarden status`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuwarden.cli.text import clean, when

Document = dict[str, Any]


def sections(status: Document) -> Iterator[tuple[str, list[str]]]:
    yield "black boxes (gpuwarden replay FILE)", list(_lines(status))


def _lines(status: Document) -> Iterator[str]:
    """Yield nothing if none was frozen."""
    for box in (status.get("black_box") or {}).get("kept", ()):
        missing = f"; missing: {clean(box['missing'])}" if box["missing"] else ""
        yield f"{clean(box['finding'])} ({when(box['until'])}): {clean(box['file'])}{missing}"
