r"""The daemon's end of the service that makes archives as root; `service.py` is the other end.

    {"findings": ["xid.79@gpu/0000:4e:00.0"]}\n   ->  {"file": "/var/lib/…", "missing": ["nvidia-bug-report.log.gz"], "not_found": []}
                                                      {"error": "why there is none", "busy": false}

One request a connection. Everything is bounded in size and time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from gpuwarden_collectors.dataclass import dataclass

REQUEST_MOST, ANSWER_MOST = 8 << 10, 64 << 10
"""Bytes."""
FINDINGS_MOST = 16
"""Findings of one request."""
_BUSY_AGAIN = 20.0
"""Seconds after which a service that makes another archive is asked again."""
_TEXT_MOST = 400


class NoBundle(Exception):  # noqa: N818 - a state of the host
    """There is no archive. The message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A finished archive."""

    file: str
    """Its path."""
    missing: tuple[str, ...]
    """Names of what is not in it, or not whole."""
    not_found: tuple[str, ...] = ()
    """Findings that it is not about, since the ledger does not know them."""


async def ask(path: Path, findings: Sequence[str], within: float, busy_again: float = _BUSY_AGAIN) -> Bundle:
    """Have an archive made about these findings, within so many seconds. Raises NoBundle."""
    try:
        async with asyncio.timeout(within):
            while True:
                if (made := await _asked(path, findings)) is not None:
                    return made
                await asyncio.sleep(busy_again)
    except TimeoutError:
        raise NoBundle(
            f"{path} has not answered within {within:g} s; the journal of gpuwarden-bundle@ says why"
        ) from None
    except FileNotFoundError:
        raise NoBundle(f"{path} does not exist: systemctl enable --now gpuwarden-bundle.socket") from None
    except OSError as error:
        why = error.strerror or str(error)
        raise NoBundle(f"cannot use {path}: {why}; systemctl status gpuwarden-bundle.socket") from None


async def _asked(path: Path, findings: Sequence[str]) -> Bundle | None:
    """Send one request. Returns None while the service makes another archive. Raises NoBundle, OSError."""
    reader, writer = await asyncio.open_unix_connection(path, limit=ANSWER_MOST)
    try:
        writer.write(json.dumps({"findings": list(findings[:FINDINGS_MOST])}).encode() + b"\n")
        answer = await _all_of(reader)
    finally:
        writer.close()
    try:
        document = json.loads(answer)
    except (ValueError, RecursionError):
        document = None
    match document:
        case {"file": str(file), "missing": list(missing)}:
            names = tuple(_one_line(finding) for finding in missing[:64] if isinstance(finding, str))
            unknown = document.get("not_found")
            not_found = tuple(finding for finding in findings if isinstance(unknown, list) and finding in unknown)
            return Bundle(file=_one_line(file), missing=names, not_found=not_found)
        case {"busy": True}:
            return None
        case {"error": str(error)}:
            raise NoBundle(_one_line(error))
    raise NoBundle(f"{path} gave no result; the journal of gpuwarden-bundle@ says why")


async def _all_of(reader: asyncio.StreamReader) -> bytes:
    """Read until the end of the stream. Empty if there is more than ANSWER_MOST."""
    answer = bytearray()
    while len(answer) <= ANSWER_MOST and (part := await reader.read(1 << 14)):
        answer += part
    return bytes(answer) if len(answer) <= ANSWER_MOST else b""


def _one_line(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text[:_TEXT_MOST])
