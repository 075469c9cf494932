r"""The daemon's end of the service that tests the GPUs before a return; `gate/service.py` is the other end.

    {"verb": "probe"}\n                    ->  {"lacking": "what this host lacks for a test, or empty",
                                             "impossible": "why no GPU can be tested, as they are set up, or empty",
                                             "untestable": {"slot of a GPU": "why it cannot be tested, where others can"}}
    {"verb": "test", "level": "quick"}\n   ->  the document of `gpuwarden test --json`

One request a connection. A connection that is closed ends the test. Everything is bounded in size and time; results are not taken from
here but from the ledger, where the test hands them in.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ANSWER_MOST = 8 << 20
"""Bytes: the document of 16 GPUs with all their repeats is below 2 MiB."""
PROBE_WITHIN = 90.0
"""Seconds: a driver without persistence mode takes many for its first answer."""
INTERRUPTED = "interrupted"
"""`Obstacle.INTERRUPTED`, whose module is loaded with the first results of a test."""
_SHOWN = 3
_TEXT_MOST = 120


class NoAnswer(Exception):  # noqa: N818 - a state of the host
    """The service gives no answer. The message says why and what to do."""


class NotBegun(NoAnswer):
    """Nobody took the request: nothing began."""


class NoService(NotBegun):
    """There is no such socket."""


async def ask(path: Path, request: Mapping[str, Any], within: float) -> Mapping[str, Any]:
    """Send one request and return the answer, within so many seconds. Raises NoAnswer."""
    try:
        async with asyncio.timeout(within):
            reader, writer = await asyncio.open_unix_connection(path, limit=1 << 16)
            try:
                writer.write(json.dumps(request).encode() + b"\n")
                answer = await _all_of(reader)
            finally:
                writer.close()
    except TimeoutError:
        raise NoAnswer(f"{path} has not answered within {within:g} s, and the test was ended") from None
    except FileNotFoundError:
        raise NoService(f"{path} does not exist: systemctl enable --now gpuwarden-test.socket") from None
    except OSError as error:
        kind = NotBegun if isinstance(error, ConnectionRefusedError) else NoAnswer
        raise kind(f"cannot use {path}: {error.strerror or error}; systemctl status gpuwarden-test.socket") from None
    try:
        document = json.loads(answer)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise NoAnswer(f"{path} gave no result; the journal of gpuwarden-test@ says why")
    return document


async def _all_of(reader: asyncio.StreamReader) -> bytes:
    """Read until the end of the stream. Empty if there is more than ANSWER_MOST."""
    answer = bytearray()
    while len(answer) <= ANSWER_MOST and (part := await reader.read(1 << 16)):
        answer += part
    return bytes(answer) if len(answer) <= ANSWER_MOST else b""


def shown(document: Mapping[str, Any]) -> str:
    """Result of a test in one line, whatever the document holds."""
    gpus = document.get("gpus")
    lines = [_line(gpu) for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []
    texts = [text for text in dict.fromkeys(lines) if text]
    if not texts:
        nothing = f"it found nothing on {len(lines)} GPUs" if document.get("verdict") == "nothing_found" else ""
        return _one_line(document.get("obstacle"), document.get("text")) or nothing or "it gave no result"
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return "; ".join(texts[:_SHOWN]) + more


def interrupted(document: Mapping[str, Any]) -> bool:
    """True if the test was ended from outside, by a signal or by the daemon, before all GPUs were tested."""
    gpus = document.get("gpus")
    obstacles = [gpu.get("obstacle") for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []
    return INTERRUPTED in (document.get("obstacle"), *obstacles)


def _line(gpu: Mapping[str, Any]) -> str:
    findings = gpu.get("findings")
    texts = (
        [finding.get("text") for finding in findings if isinstance(finding, dict)] if isinstance(findings, list) else []
    )
    text = _one_line(*texts[:1]) or _one_line(gpu.get("obstacle"), gpu.get("text"))
    return f"GPU {_one_line(gpu.get('index')) or '?'}: {text}" if text else ""


def _one_line(*parts: object) -> str:
    """Join texts into one line that is printable and not long."""
    texts = [str(part) for part in parts if isinstance(part, str | int) and str(part)]
    return "".join(char if char.isprintable() else " " for char in ": ".join(texts)[:_TEXT_MOST])
