"""Parses JSON of other programs, which may be any text."""

from __future__ import annotations

import json
from typing import Any


def parsed(text: str | bytes | bytearray) -> Any:
    """Return the JSON value; None for a text that is not JSON, or is nested too deeply."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def parsed_object(text: str | bytes | bytearray) -> dict[str, Any] | None:
    """Return the JSON object; None for anything else."""
    value = parsed(text)
    return value if isinstance(value, dict) else None
