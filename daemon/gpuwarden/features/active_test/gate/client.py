r"""The daemon's end of the service that tests the GPUs before a return; `gate/service.py` is the other end.

    {"verb": "probe"}\n                    ->  {"lacking": "what this host lacks for a test, or empty",
                                             "impossible": "why no GPU can be tested, as they are set up, or empty",
                                             "untestable": {"slot of a GPU": "why it cannot be tested, where others can"}}
    {"verb": "test", "level": "quick"}\n   ->  the document of `gpuwarden test --json`

One request per connection. Closing the connection ends the test. Requests and answers are bounded in size and time. The
gate judges by the results in the ledger, to which the test submits them, and not by the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuwarden.base.printable import one_line
from gpuwarden.base.services import answer_of

ANSWER_MOST = 8 << 20
"""Bytes: the document of 16 GPUs with all their repeats is below 2 MiB."""
PROBE_WITHIN = 90.0
"""Seconds. Without persistence mode the driver takes long for its first answer."""
INTERRUPTED = "interrupted"
"""Value of `Obstacle.INTERRUPTED`, repeated because its module is loaded only with the first results of a test."""
_SHOWN = 3
_TEXT_MOST = 120


async def ask(path: Path, request: Mapping[str, Any], within: float) -> Mapping[str, Any]:
    """Send one request and return the answer, within so many seconds. Raises NoAnswer."""
    return await answer_of(path, request, within, unit="gpuwarden-test", most=ANSWER_MOST)


def shown(document: Mapping[str, Any]) -> str:
    """Return the result of a test in one line. Accepts any document."""
    gpus = document.get("gpus")
    lines = [_line(gpu) for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []
    texts = [text for text in dict.fromkeys(lines) if text]
    if not texts:
        nothing = f"it found nothing on {len(lines)} GPUs" if document.get("verdict") == "nothing_found" else ""
        return _one_line(document.get("obstacle"), document.get("text")) or nothing or "it gave no result"
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return "; ".join(texts[:_SHOWN]) + more


def interrupted(document: Mapping[str, Any]) -> bool:
    """Return True if a signal or the daemon ended the test before all GPUs were tested."""
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
    return one_line(": ".join(texts), _TEXT_MOST)
