"""Getting at a ledger that is damaged, or that is another machine's. Nothing is ever deleted."""

from __future__ import annotations

import contextlib
import itertools
import time
from dataclasses import dataclass
from pathlib import Path

from gpuwarden.health.model import Event, EventKind
from gpuwarden.ledger.errors import LedgerCorrupt, LedgerError, LedgerUnavailable, translated
from gpuwarden.ledger.machine import completed, same_machine
from gpuwarden.ledger.store import Entry, Store
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.host import MachineIdentity

_MOVED_MAX = 20  # a disk that damages every ledger must not be filled with them


@dataclass(frozen=True, slots=True, kw_only=True)
class Opener:
    """Who opens the ledger, where and when: what goes into the events that opening it may cause."""

    machine: MachineIdentity
    boot_id: str
    at: Stamp

    def event(self, kind: EventKind, **data: str) -> Event:
        return Event(kind=kind, at=self.at, boot_id=self.boot_id, data=data)


def open_ledger(path: Path, opener: Opener) -> tuple[Store, str]:
    """The store, settled in on this machine, and the name that a corrupt file was moved to, or "".

    Raises LedgerUnavailable or LedgerRefused.
    """
    try:
        store = Store.open(path, now=opener.at.wall)
    except LedgerCorrupt as error:
        return begin_again(path, opener, error)
    _settle_in(store, opener)
    return store, ""


def begin_again(path: Path, opener: Opener, error: LedgerCorrupt, broken: Store | None = None) -> tuple[Store, str]:
    """Move the corrupt ledger aside and begin another, which tells of it. `broken`: the store that has it open.

    Raises LedgerUnavailable.
    """
    try:
        moved = move_aside(path, opener.at.wall).name
    finally:
        # Only now: closing removes the log beside the file under the name it was opened with.
        if broken is not None:
            with contextlib.suppress(LedgerError):
                broken.close()
    store = Store.open(path, now=opener.at.wall)
    _settle_in(store, opener)
    store.append([Entry(events=(opener.event(EventKind.LEDGER_MOVED, moved_to=moved, why=str(error)),))])
    return store, moved


def move_aside(path: Path, now: float) -> Path:
    """Rename the ledger and its side files to free names under which they are a database again.

    The file itself goes last: a new ledger must not find, and discard, the log of the old one.
    """
    with translated(path):
        earlier = {
            file.name.removesuffix("-wal").removesuffix("-shm") for file in path.parent.glob(f"{path.name}.corrupt-*")
        }
        if len(earlier) >= _MOVED_MAX:
            raise LedgerUnavailable(
                f"ledger {path} is corrupt and {len(earlier)} others lie beside it: check the disk, then remove them"
            )
        name = f"{path.name}.corrupt-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}"
        numbered = (f"{name}-{number}" for number in itertools.count(2))
        free = next(name for name in itertools.chain([name], numbered) if name not in earlier)
        for side in ("-wal", "-shm", ""):
            with contextlib.suppress(FileNotFoundError):
                path.with_name(path.name + side).rename(path.with_name(free + side))
    return path.with_name(free)


def _settle_in(store: Store, opener: Opener) -> None:
    """Bind the ledger to this machine; what another machine left in it is set aside."""
    known, ours = store.machine(), opener.machine
    if not same_machine(known, ours):
        store.archive(ours, opener.event(EventKind.MACHINE_CHANGED, was=str(known), now=str(ours)))
    elif completed(ours, known) != known:
        store.set_machine(completed(ours, known))
