"""Repairs in the status document as text: what is done or would be done now, and the newest tries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuwarden.cli.text import clean, when

Document = dict[str, Any]
_TRIES_MOST = 3


def sections(status: Document) -> Iterator[tuple[str, list[str]]]:
    yield "repair", list(_lines(status))


def _lines(status: Document) -> Iterator[str]:
    repair = status.get("repair") or {}
    finding, step, text = (clean(repair.get(key) or "") for key in ("finding", "step", "text"))
    match repair.get("state"):
        case "running":
            yield f"running: {step} for {finding}"
        case "waiting":
            yield f"waiting: {f'{step} for ' if step else ''}{finding}: {text}"
        case "person":
            yield f"needs an operator: {finding}: {text}"
    for attempt in repair.get("tries", ())[-_TRIES_MOST:]:
        if attempt["outcome"] is not None:
            said = f": {clean(attempt['text'])}" if attempt["text"] else ""
            yield f"{clean(attempt['step'])} for {clean(attempt['finding'])}: {clean(attempt['outcome'])} ({when(attempt['begun'])}){said}"
