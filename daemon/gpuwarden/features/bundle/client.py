r"""The daemon's end of the service that makes archives as root; `service.py` is the other end.

    {"findings": ["xid.79@gpu/0000:4e:00.0"]}\n   ->  {"file": "/var/lib/…", "missing": ["nvidia-bug-report.log.gz"], "not_found": []}
                                                      {"error": "why there is none", "busy": false}

One request per connection. Everything is bounded in size and time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from gpuwarden.base.printable import one_line
from gpuwarden.base.services import Document, NoAnswer, answer_of
from gpuwarden_collectors.dataclass import dataclass

REQUEST_MOST, ANSWER_MOST = 8 << 10, 64 << 10
"""Bytes."""
FINDINGS_MOST = 16
"""Most findings of one request."""
_BUSY_AGAIN = 20.0
"""Seconds until the next request to a service that is making another archive."""
_TEXT_MOST = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A finished archive."""

    file: str
    """Its path."""
    missing: tuple[str, ...]
    """Names of files that are not in it, or incomplete."""
    not_found: tuple[str, ...] = ()
    """Findings that it does not cover, because the ledger does not have them."""


async def ask(path: Path, findings: Sequence[str], within: float, busy_again: float = _BUSY_AGAIN) -> Bundle:
    """Have an archive made about these findings, within so many seconds. Raises NoAnswer if there is none."""
    request = {"findings": list(findings[:FINDINGS_MOST])}
    try:
        async with asyncio.timeout(within):
            while True:
                answer = await answer_of(path, request, within, unit="gpuwarden-bundle", most=ANSWER_MOST)
                if answer.get("busy") is not True:
                    return _made(path, answer, findings)
                await asyncio.sleep(busy_again)
    except TimeoutError:
        raise NoAnswer(f"{path} has not answered within {within:g} s; see the journal of gpuwarden-bundle@") from None


def _made(path: Path, answer: Document, findings: Sequence[str]) -> Bundle:
    """Return the archive that the answer names. Raises NoAnswer if it names none."""
    match answer:
        case {"file": str(file), "missing": list(missing)}:
            names = tuple(one_line(name, _TEXT_MOST) for name in missing[:64] if isinstance(name, str))
            unknown = answer.get("not_found")
            not_found = tuple(finding for finding in findings if isinstance(unknown, list) and finding in unknown)
            return Bundle(file=one_line(file, _TEXT_MOST), missing=names, not_found=not_found)
        case {"error": str(error)}:
            raise NoAnswer(one_line(error, _TEXT_MOST))
    raise NoAnswer(f"{path} gave no result; see the journal of gpuwarden-bundle@")
