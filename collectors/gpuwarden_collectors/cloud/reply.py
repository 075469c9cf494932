"""The reply of a metadata service, and its strict parsers: anything unexpected raises ReplyError."""

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
"""Largest body in bytes. The longest real answers have some kilobytes."""
PAST_MOST = 3_600.0
"""Seconds. An older time is left over from a failed termination, or comes from a clock that was never set."""
AHEAD_MOST = 400 * 86_400.0
"""Seconds. Clouds announce at most some months ahead."""


class ReplyError(ValueError):
    """The answer does not have the form that its service documents. The message describes the difference."""


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
        """Parses the body. Raises ReplyError, also for duplicate keys and for NaN or Infinity."""
        try:
            return json.loads(self.body.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise ReplyError(f"the answer is not JSON: {str(error)[:80]}") from error

    def expect(self) -> None:
        if self.status != 200:
            raise ReplyError(f"the answer has status {self.status}")

    def deadline(self, wall: float, at: Stamp, *, past_most: float = PAST_MOST) -> Stamp:
        """Returns the instant at which the service's clock shows Unix time `wall`; `at` is when the reply came.

        The reply's Date header is the reference, so a wrong or stepped local clock does not matter. Raises ReplyError
        if the instant is implausibly far from now.
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
        raise ValueError("a key is duplicated")
    return document


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def text_of(item: Mapping[str, Any], key: str) -> str:
    """Returns the text under `key`. Raises ReplyError if it is missing or not text."""
    value = item.get(key)
    if not isinstance(value, str):
        raise ReplyError(f"{key} is not text")
    return value


def time_of(item: Mapping[str, Any], key: str) -> float:
    """Unix time of the timestamp under `key`. Raises ReplyError."""
    try:
        return parse_time(text_of(item, key))
    except TimeError as error:
        raise ReplyError(f"{key}: {error}") from error


def choice_of(item: Mapping[str, Any], key: str, choices: Collection[str]) -> str:
    """Returns the text under `key`. Raises ReplyError unless it is one of `choices`."""
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
