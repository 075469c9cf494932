"""One answer of a metadata service, and what may be read out of it. Whatever is odd raises ReplyError."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Any, NoReturn

from gpuwarden_collectors.cloud.facts import clean
from gpuwarden_collectors.cloud.times import TimeError, parse_time
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

BODY_MOST = 64 * 1024
"""Bytes. The longest real answers are some kilobytes."""
PAST_MOST = 3_600.0
"""Seconds. A time that passed longer ago is left over from a termination that failed, or a clock that was never set."""
AHEAD_MOST = 400 * 86_400.0
"""Seconds; clouds announce at most some months ahead."""


class ReplyError(ValueError):
    """The answer is not of the shape that its service documents. The message says what was found."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply of a metadata service; `headers` has lower-case names."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """Returns the whole body as one line, stripped of spaces. Raises ReplyError."""
        try:
            text = self.body.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            raise ReplyError("the answer is not text") from error
        if not text.isprintable() or len(text) > 512:
            raise ReplyError("the answer is not one line of text")
        return text

    def json(self) -> Any:
        """Raises ReplyError: also for keys that are there twice, and for numbers that JSON does not have."""
        try:
            return json.loads(self.body.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise ReplyError(f"the answer is not JSON: {str(error)[:80]}") from error

    def expect(self) -> None:
        if self.status != 200:
            raise ReplyError(f"the answer has status {self.status}")

    def deadline(self, wall: float, at: Stamp, *, past_most: float = PAST_MOST) -> Stamp:
        """Returns the instant at which the service's clock shows Unix time `wall`; `at` is when the reply came.

        It is derived from the reply's own Date, so that neither a wrong clock here nor a step of it matters. Raises
        ReplyError if the instant is far from now.
        """
        left = wall - self._now(at)
        if not -past_most <= left <= AHEAD_MOST:
            raise ReplyError(f"the time of the end is {abs(left):.0f} s {'ahead' if left > 0 else 'ago'}")
        return Stamp(at.boottime + max(0.0, left), wall)

    def _now(self, at: Stamp) -> float:
        try:
            return parse_time(self.headers.get("date", ""))
        except TimeError:
            return at.wall


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a key is there twice")
    return document


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


def text_of(item: Mapping[str, Any], key: str) -> str:
    """Raises ReplyError unless it is there and is text."""
    value = item.get(key)
    if not isinstance(value, str):
        raise ReplyError(f"{key} is not text")
    return value


def time_of(item: Mapping[str, Any], key: str) -> float:
    """Unix time of a value of the reply. Raises ReplyError."""
    try:
        return parse_time(text_of(item, key))
    except TimeError as error:
        raise ReplyError(f"{key}: {error}") from error


def choice_of(item: Mapping[str, Any], key: str, choices: Collection[str]) -> str:
    """Raises ReplyError unless it is one of `choices`: the meaning of any other value is not known."""
    value = text_of(item, key)
    if value not in choices:
        raise ReplyError(f"{key} is {clean(value, 40)!r}")
    return value


def listing(value: object) -> list[Any]:
    """Return the value if it is a list. Raises ReplyError if not."""
    if not isinstance(value, list):
        raise ReplyError("the answer is not a JSON list")
    return value


def mapping(value: object) -> Mapping[str, Any]:
    """Return the value if it is an object. Raises ReplyError if not."""
    if not isinstance(value, dict):
        raise ReplyError("the answer is not a JSON object")
    return value
