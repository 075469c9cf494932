"""Opening a ledger that is damaged, or that is another machine's. Nothing is ever deleted."""

from __future__ import annotations

import contextlib
import itertools
import time
from pathlib import Path

from gpuwarden.health.model import Event, EventKind
from gpuwarden.ledger import seal
from gpuwarden.ledger.errors import LedgerCorrupt, LedgerError, LedgerUnavailable, translated
from gpuwarden.ledger.machine import completed, of_text, same_machine
from gpuwarden.ledger.store import Entry, Store
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.host import MachineIdentity

_MOVED_MAX = 20  # a disk that damages every ledger must not be filled with them


@dataclass(frozen=True, slots=True, kw_only=True)
class Opener:
    """The machine and boot that open the ledger, and the time, for the events that opening it may cause."""

    machine: MachineIdentity
    boot_id: str
    at: Stamp

    def event(self, kind: EventKind, **data: str) -> Event:
        return Event(kind=kind, at=self.at, boot_id=self.boot_id, data=data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """An open ledger.

    `store`: bound to this machine. `moved`: the new name of a corrupt file. `lost`: number of events missing at its
    end.
    """

    store: Store
    moved: str = ""
    lost: int = 0


def open_ledger(path: Path, opener: Opener) -> Opened:
    """Open the ledger, or replace a corrupt one by a new one. Raises LedgerUnavailable or LedgerRefused."""
    store = None
    existed = path.exists()
    try:
        store = Store.open(path, now=opener.at.wall)
        sealed = seal.read(path) if existed else None
        lost = store.lost(sealed)
        if sealed is not None:
            _check_machine(store, sealed, opener.machine)
        store.memory()  # fails on unreadable rows now, while the file can still be moved aside
    except LedgerCorrupt as error:
        return replace_corrupt(path, opener, error, store)
    if lost:
        store.append([Entry(events=(opener.event(EventKind.LEDGER_LOST, count=str(lost)),))])
    _settle_in(store, opener)
    return Opened(store=store, lost=lost)


def replace_corrupt(path: Path, opener: Opener, error: LedgerCorrupt, broken: Store | None = None) -> Opened:
    """Move the corrupt ledger aside and create a new one, whose first event records that. `broken`: the store that has
    it open.

    Raises LedgerUnavailable.
    """
    try:
        moved = move_aside(path, opener.at.wall).name
    finally:
        # After the rename: closing deletes the WAL under the name with which the database was opened.
        if broken is not None:
            with contextlib.suppress(LedgerError):
                broken.close()
    store = Store.open(path, now=opener.at.wall)
    _settle_in(store, opener)
    store.append([Entry(events=(opener.event(EventKind.LEDGER_MOVED, moved_to=moved, why=str(error)),))])
    return Opened(store=store, moved=moved)


def move_aside(path: Path, now: float) -> Path:
    """Rename the ledger and its side files to free names that still form a database.

    The database file comes last: a new ledger must not find, and discard, the WAL of the old one.
    """
    with translated(path):
        earlier = {
            file.name.removesuffix("-wal").removesuffix("-shm").removesuffix(seal.SUFFIX)
            for file in path.parent.glob(f"{path.name}.corrupt-*")
        }
        if len(earlier) >= _MOVED_MAX:
            raise LedgerUnavailable(
                f"ledger {path} is corrupt and {len(earlier)} others lie beside it: check the disk, then remove them"
            )
        name = f"{path.name}.corrupt-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}"
        numbered = (f"{name}-{number}" for number in itertools.count(2))
        free = next(name for name in itertools.chain([name], numbered) if name not in earlier)
        for side in ("-wal", "-shm", seal.SUFFIX, ""):
            with contextlib.suppress(FileNotFoundError):
                path.with_name(path.name + side).rename(path.with_name(free + side))
    return path.with_name(free)


def _check_machine(store: Store, sealed: seal.Seal, here: MachineIdentity) -> None:
    """A ledger that was sealed on this machine but names another is damaged. Raises LedgerCorrupt."""
    if (
        sealed.era == store.era()
        and same_machine(of_text(sealed.machine), here)
        and not same_machine(store.machine(), here)
    ):
        raise LedgerCorrupt(
            f"ledger {store.path} is corrupt: it does not name this machine any more, on which it was sealed"
        )


def _settle_in(store: Store, opener: Opener) -> None:
    """Bind the ledger to this machine. If another machine used it, its events are archived."""
    recorded, here = store.machine(), opener.machine
    if not same_machine(recorded, here):
        store.archive(here, opener.event(EventKind.MACHINE_CHANGED, was=str(recorded), now=str(here)))
    elif completed(here, recorded) != recorded:
        store.set_machine(completed(here, recorded))
