"""The requirement after a repair, before the node returns: good readings, and no Xid for a while. Pure.

The same events also require a test before a return (the gate of active tests), if this host can test. This requirement
applies in any case.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, replace
from typing import Annotated

from gpuwarden.features.repair.memory import NAME
from gpuwarden.features.repair.model import Try
from gpuwarden.health.event_data import cut, no_key, read, write
from gpuwarden.health.model import NODE, Event, EventKind, Json, Key, Verdict
from gpuwarden.policy.situation import Situation
from gpuwarden.policy.state import PolicyState
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

QUIET_FOR = 120.0
"""Seconds without an Xid after the step, or after the newest Xid."""
_CHECK = Key("repair_check", NODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The check that a step requires."""

    step: Annotated[str, cut(64)] = ""
    running: bool = False
    at: Stamp = field(metadata=no_key())
    """When the step ended, or when the newest Xid after it came."""
    boot_id: str = field(metadata=no_key())


@dataclass(frozen=True, slots=True)
class Seen:
    """Input of the requirement that is not in the situation."""

    unwell: str = ""
    """Which readings are bad; empty if none are."""
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer. `text` is "" if the node may return."""

    text: str


@dataclass(frozen=True, slots=True)
class ReadWell:
    """The requirement of good readings after a repair. `check` is None while none is required."""

    check: Check | None = None

    @property
    def applies(self) -> bool:
        return self.check is not None

    def after(self, event: Event) -> ReadWell:
        check = _after(self.check, event)
        return self if check is self.check else ReadWell(check)

    def over(self) -> ReadWell:
        running = self.check is not None and self.check.running
        return self if running else ReadWell()

    def events(self, now: Stamp, boot_id: str) -> Iterator[Event]:  # noqa: ARG002 - they have their own
        check = self.check
        if check is not None:
            yield Event(kind=EventKind.SUMMED, at=check.at, boot_id=check.boot_id, key=_CHECK, data=write(check))

    def news(self, state: PolicyState, seen: Situation, now: Stamp) -> Iterator[tuple[EventKind, dict[str, Json]]]:  # noqa: ARG002 - nothing follows
        return iter(())

    def answer(self, seen: Situation, now: Stamp) -> Answered:
        check = self.check
        if check is None:
            return Answered("")
        if check.running:
            return Answered(f"{check.step} was begun to repair it, and has not ended")
        sees: Seen = seen.features.get(NAME, Seen("the GPUs could not be read"))
        if sees.unwell:
            return Answered(f"after {check.step} it must read well: {sees.unwell}")
        waited = now.boottime - check.at.boottime if check.boot_id == seen.boot_id else 0.0
        if waited < QUIET_FOR:
            return Answered(
                f"after {check.step} no Xid must come for {QUIET_FOR:.0f} s, {max(0.0, waited):.0f} s so far"
            )
        return Answered("")

    def standing(self, seen: Situation, now: Stamp) -> str:
        if self.check is None:
            return ""
        sees: Seen = seen.features.get(NAME, Seen())
        well = f"after {self.check.step} all {sees.gpus} GPUs, their links and remapped rows read well"
        return self.answer(seen, now).text or well

    def unmet(self, verdict: Verdict) -> str:  # noqa: ARG002 - a person's word wins over what is read
        if self.check is None or not self.check.running:
            return ""
        return (
            f"not restored: {self.check.step} was begun to repair this node, and has not ended; wait for it,"
            " or restore the node anyway: gpuwarden restore --untested"
        )


def _after(check: Check | None, event: Event) -> Check | None:
    match event.kind:
        case EventKind.REPAIR_BEGUN:
            begun = read(Try, event)
            return Check(step=str(begun.what), running=True, at=event.at, boot_id=event.boot_id)
        case EventKind.REPAIR_ENDED if check is not None and check.running:
            return replace(check, running=False, at=event.at, boot_id=event.boot_id)
        case EventKind.XID | EventKind.BOOT if check is not None:
            return replace(check, at=event.at, boot_id=event.boot_id)
        case EventKind.SUMMED if event.key == _CHECK:
            return read(Check, event)
    return check
