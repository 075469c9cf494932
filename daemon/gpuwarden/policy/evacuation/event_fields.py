"""Reads the fields of an event of an evacuation: a ledger may be of another version, or edited. Pure."""

from __future__ import annotations

from typing import TypeVar

from gpuwarden.health.event_data import read_stamp
from gpuwarden.health.model import Event
from gpuwarden.policy.evacuation.delivery import Process, Way
from gpuwarden.policy.evacuation.model import TEXT_MOST, Requeued, Sent
from gpuwarden.policy.model import Result
from gpuwarden_collectors.facts import Stamp


def text_in(event: Event, name: str, most: int = TEXT_MOST) -> str:
    value = event.data.get(name, "")
    return value[:most] if isinstance(value, str) else ""


def whole_in(event: Event, name: str) -> int | None:
    """Of what counts and numbers; none is below 0 or above what the ledger's integers hold."""
    value = event.data.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else None


def is_true(event: Event, name: str) -> bool:
    return event.data.get(name) is True


def stamp_in(event: Event, name: str) -> Stamp | None:
    return read_stamp(event.data, name)


Choice = TypeVar("Choice", Way, Sent, Requeued, Result)


def enum_in(kind: type[Choice], event: Event, name: str, default: Choice) -> Choice:
    try:
        return kind(text_in(event, name))
    except ValueError:
        return default


def processes_of(text: str) -> frozenset[Process]:
    """From `pid:started pid:started …`; what is nothing of the kind is left out."""
    pairs = (word.partition(":") for word in text.split())
    return frozenset((int(pid), int(began)) for pid, _, began in pairs if is_number(pid) and is_number(began))


_DIGITS_MOST = 19  # of an integer of the ledger


def is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MOST


def processes_in(event: Event, name: str = "processes") -> frozenset[Process]:
    text = event.data.get(name, "")
    return processes_of(text) if isinstance(text, str) else frozenset()
