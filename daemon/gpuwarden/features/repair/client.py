r"""The daemon's end of root's helper, which carries out the steps; `helper/` is the other end.

    {"verb": "probe", "step": "..."}\n     ->  {"able": ["reset_gpu", ...], "unable": {"step": "why it cannot be done here"}}
    {"verb": "step", "id": "...", "step": "reset_gpu", "slot": "...", "uuid": "..."}\n
                                           ->  any number of {"progress": "text"}, then {"done": true, "text": "..."},
                                               or {"done": false, "refused": true or false, "why": "..."}
    {"verb": "result", "id": "..."}\n        ->  {"state": "unknown", "running", "done", "failed" or "refused", "text": "..."}

One request per connection, one JSON object per line. A step continues when its connection closes. A second request with
its id does nothing, and returns the result of the first. Everything is bounded in size and time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path

from gpuwarden.base.printable import one_line
from gpuwarden.base.services import NoAnswer, answer_of, answers_of
from gpuwarden.features.repair.model import TEXT_MOST, Outcome, Step
from gpuwarden_collectors.dataclass import dataclass

UNIT = "gpuwarden-repair"
LINE_MOST = 64 << 10
PROBE_WITHIN = 120.0
"""Seconds: more than the helper itself waits for a hung driver, for the bus and for systemd (`helper/gpus.py`)."""
RESULT_WITHIN = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What the helper can do on this host."""

    able: frozenset[str] = frozenset()
    unable: Mapping[str, str] = field(default_factory=dict, hash=False)
    """By step, why it cannot be done."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a step. `outcome` None: it is still running."""

    outcome: Outcome | None
    text: str = ""


async def probe(path: Path, wanted: Step | None = None, *, within: float = PROBE_WITHIN) -> Probed:
    """Return what the helper can do here. If `wanted` is no reset, the driver is not queried. Raises NoAnswer."""
    asked = {"verb": "probe", **({} if wanted is None else {"step": wanted.kind.value})}
    answer = await answer_of(path, asked, within, unit=UNIT, most=LINE_MOST)
    able, unable = answer.get("able"), answer.get("unable")
    texts = unable.items() if isinstance(unable, dict) else ()
    return Probed(
        able=frozenset(name for name in able if isinstance(name, str)) if isinstance(able, list) else frozenset(),
        unable={name: _text(why) for name, why in texts},
    )


async def request(
    path: Path, name: str, step: Step, within: float, *, progress: Callable[[str], None], reason: str = ""
) -> Result:
    """Ask for a step under this name, and return what came of it. Raises NotBegun if it was not sent, NoAnswer if nobody knows."""
    asked = {"verb": "step", "id": name, **step.request(), **({"reason": reason} if reason else {})}
    async for line in answers_of(path, asked, within, unit=UNIT, most=LINE_MOST):
        match line:
            case {"progress": str(text)}:
                progress(_text(text))
            case {"done": True}:
                return Result(Outcome.DONE, _text(line.get("text")))
            case {"done": False}:
                refused = line.get("refused") is True
                return Result(Outcome.REFUSED if refused else Outcome.FAILED, _text(line.get("why")))
    raise NoAnswer(f"{path} closed the connection before it reported the result of {step}")


async def result(path: Path, name: str) -> Result:
    """Ask what came of the step of this name. Raises NoAnswer."""
    answer = await answer_of(path, {"verb": "result", "id": name}, RESULT_WITHIN, unit=UNIT, most=LINE_MOST)
    text = _text(answer.get("text"))
    match answer.get("state"):
        case "running":
            return Result(None, text)
        case "done":
            return Result(Outcome.DONE, text)
        case "failed":
            return Result(Outcome.FAILED, text)
        case "refused" | "unknown":  # the helper begins nothing for a closed connection
            return Result(Outcome.REFUSED, text or "the helper has no record of it")
    return Result(Outcome.UNKNOWN, text)


def _text(value: object) -> str:
    """Return a text in one line that is printable and not long."""
    text = value if isinstance(value, str) else ""
    return one_line(text, TEXT_MOST)
