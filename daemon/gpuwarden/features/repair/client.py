r"""The daemon's end of root's helper, which carries out the steps; `helper/` is the other end.

    {"verb": "probe", "step": "..."}\n     ->  {"able": ["reset_gpu", ...], "unable": {"step": "why it cannot be done here"}}
    {"verb": "step", "id": "...", "step": "reset_gpu", "slot": "...", "uuid": "..."}\n
                                           ->  any number of {"progress": "text"}, then {"done": true, "text": "..."},
                                               or {"done": false, "refused": true or false, "why": "..."}
    {"verb": "result", "id": "..."}\n        ->  {"state": "unknown", "running", "done", "failed" or "refused", "text": "..."}

One request a connection, one JSON object a line. A step goes on when its connection ends; a second request with its id does nothing, and is
answered with what came of the first. Everything is bounded in size and time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from gpuwarden.features.repair.model import TEXT_MOST, Outcome, Step
from gpuwarden_collectors.dataclass import dataclass

LINE_MOST = 64 << 10
LINES_MOST = 10_000
PROBE_WITHIN = 120.0
"""Seconds: more than the helper itself waits for a driver that hangs, for the bus and for systemd (`helper/gpus.py`)."""
RESULT_WITHIN = 10.0
CONNECTED_WITHIN = 5.0


class NoAnswer(Exception):  # noqa: N818 - a state of the host
    """The helper gives no answer. The message says why and what to do."""


class NoHelper(NoAnswer):
    """Nothing was sent: the helper cannot be reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What the helper can do on this host."""

    able: frozenset[str] = frozenset()
    unable: Mapping[str, str] = field(default_factory=dict, hash=False)
    """By step, why not."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a step. `outcome` None: it is still running."""

    outcome: Outcome | None
    text: str = ""


async def probe(path: Path, wanted: Step | None = None, *, within: float = PROBE_WITHIN) -> Probed:
    """Return what the helper can do here; of what `wanted` is not about, only what needs no answer of the driver. Raises NoAnswer."""
    asked = {"verb": "probe", **({} if wanted is None else {"step": wanted.kind.value})}
    answer = await _one(path, asked, within)
    able, unable = answer.get("able"), answer.get("unable")
    texts = unable.items() if isinstance(unable, dict) else ()
    return Probed(
        able=frozenset(name for name in able if isinstance(name, str)) if isinstance(able, list) else frozenset(),
        unable={name: _text(why) for name, why in texts},
    )


async def request(
    path: Path, name: str, step: Step, within: float, *, progress: Callable[[str], None], reason: str = ""
) -> Result:
    """Ask for a step under this name, and return what came of it. Raises NoHelper if it was not sent, NoAnswer if nobody knows."""
    asked = {"verb": "step", "id": name, **step.request(), **({"reason": reason} if reason else {})}
    async for line in _lines(path, asked, within):
        match line:
            case {"progress": str(text)}:
                progress(_text(text))
            case {"done": True}:
                return Result(Outcome.DONE, _text(line.get("text")))
            case {"done": False}:
                refused = line.get("refused") is True
                return Result(Outcome.REFUSED if refused else Outcome.FAILED, _text(line.get("why")))
    raise NoAnswer(f"{path} closed the connection before it said what came of {step}")


async def result(path: Path, name: str) -> Result:
    """Ask what came of the step of this name. Raises NoAnswer."""
    answer = await _one(path, {"verb": "result", "id": name}, RESULT_WITHIN)
    text = _text(answer.get("text"))
    match answer.get("state"):
        case "running":
            return Result(None, text)
        case "done":
            return Result(Outcome.DONE, text)
        case "failed":
            return Result(Outcome.FAILED, text)
        case "refused" | "unknown":  # the helper begins nothing for a closed connection
            return Result(Outcome.REFUSED, text or "the helper does not know of it")
    return Result(Outcome.UNKNOWN, text)


async def _one(path: Path, asked: Mapping[str, Any], within: float) -> Mapping[str, Any]:
    async for line in _lines(path, asked, within):
        return line
    raise NoAnswer(f"{path} gave no answer; the journal of gpuwarden-repair@ says why")


async def _lines(path: Path, asked: Mapping[str, Any], within: float) -> AsyncIterator[Mapping[str, Any]]:
    """Yield the lines of an answer, all within so many seconds. Raises NoAnswer."""
    loop = asyncio.get_running_loop()
    until = loop.time() + within
    reader, writer = await _connected(path)
    try:
        writer.write(json.dumps(asked).encode() + b"\n")
        for _ in range(LINES_MOST):
            try:
                async with asyncio.timeout_at(until):
                    line = await reader.readline()
            except TimeoutError:
                raise NoAnswer(f"{path} has not answered within {within:g} s") from None
            except (OSError, ValueError) as error:  # ValueError: a line that is too long
                raise NoAnswer(f"cannot read the answer of {path}: {error}") from None
            if not line:
                return
            yield _document(path, line)
    finally:
        writer.close()


async def _connected(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    to_do = "systemctl enable --now gpuwarden-repair.socket"
    try:
        async with asyncio.timeout(CONNECTED_WITHIN):
            return await asyncio.open_unix_connection(path, limit=LINE_MOST)
    except TimeoutError:
        raise NoHelper(f"{path} does not take connections: systemctl status gpuwarden-repair.socket") from None
    except FileNotFoundError:
        raise NoHelper(f"{path} does not exist: {to_do}") from None
    except OSError as error:
        raise NoHelper(f"cannot use {path}: {error.strerror or error}; {to_do}") from None


def _document(path: Path, line: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise NoAnswer(f"{path} answers with no document; the journal of gpuwarden-repair@ says why")
    return document


def _text(value: object) -> str:
    """Return a text in one line that is printable and not long."""
    text = value if isinstance(value, str) else ""
    return "".join(char if char.isprintable() else " " for char in text[:TEXT_MOST])
