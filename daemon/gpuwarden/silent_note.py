"""What a health check wrote while the daemon hung, as the daemon finds it when it goes on: a drain of its own making."""

from __future__ import annotations

import contextlib
from pathlib import Path

from gpuwarden.health.model import Event, EventKind, Json
from gpuwarden.policy import reasons
from gpuwarden.policy.model import Why
from gpuwarden_collectors.base import Clock

NOTE = "silent-drain"
REASON = reasons.unknown(["daemon_silent"])


def taken(state_dir: Path, boot_id: str, clock: Clock) -> tuple[Event, ...]:
    """The drain as the event that it is, once: the note is gone then. Nothing for a note of another boot."""
    note = state_dir / NOTE
    try:
        boot, _, since = note.read_text(encoding="utf-8", errors="replace").strip().partition(" ")
    except OSError:
        return ()
    with contextlib.suppress(OSError):
        note.unlink()
    if boot != boot_id or not since.isdecimal() or len(since) > 12:
        return ()
    data: dict[str, Json] = {"actuator": "slurm", "why": Why.FAILURE.value, "reason": REASON, "since": float(since)}
    return (Event(kind=EventKind.EXCLUDED, at=clock(), boot_id=boot_id, data=data),)
