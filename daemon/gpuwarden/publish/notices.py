"""The published termination notice: a file, a document, and the clients that wait for a change.

`act` is true only for an imminent notice, in mode enforce, on real GPUs. Otherwise readers must not act.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpuwarden.policy.model import Notice
from gpuwarden.policy.notices import id_of
from gpuwarden.publish.files.writer import KeptFile
from gpuwarden.publish.snapshot import NoticeSource, Snapshot
from gpuwarden.publish.times import rfc3339, when
from gpuwarden_collectors.base import Clock, host_clock

Document = dict[str, Any]
WAITERS_MOST = 64
WAIT_MOST = 60.0
"""Maximum seconds for which one response waits for a change."""


KEYS = tuple("id source kind reason hard called_off announced_at deadline deadline_boottime".split())


def notice_document(notice: Notice) -> Document:
    """Return the document of one notice. Its `id` changes if the same notice is announced again after its end."""
    return {
        "id": id_of(notice),
        "source": notice.source,
        "kind": notice.kind,
        "reason": notice.reason,
        "hard": notice.hard,
        "called_off": notice.called_off,
        "announced_at": rfc3339(notice.at.wall),
        "deadline": when(notice.deadline),
        "deadline_boottime": None if notice.deadline is None else round(notice.deadline.boottime, 3),
    }


def act(snapshot: Snapshot) -> bool:
    service = snapshot.service
    return snapshot.enforced.notice is not None and service.mode == "enforce" and not service.simulated


def document(snapshot: Snapshot) -> Document:
    """Return the document: `act`, the keys of the imminent notice, and all notices under `notices`."""
    imminent = snapshot.enforced.notice
    return {
        "act": act(snapshot),
        "imminent": imminent is not None,
        **(dict.fromkeys(KEYS) if imminent is None else notice_document(imminent)),
        "boot_id": snapshot.service.boot_id,
        "node": snapshot.service.node,
        "mode": snapshot.service.mode,
        "simulated": snapshot.service.simulated,
        "notices": [notice_document(notice) for notice in snapshot.enforced.notices],
    }


def source_document(source: NoticeSource) -> Document:
    return {"source": source.name, "up": source.up, "error": source.error, "last_answer": when(source.last)}


class Notices:
    """The newest document, its tag, and the clients that wait for a change: at most `waiters` for each server."""

    def __init__(self, waiters: int = WAITERS_MOST) -> None:
        self.body = b""
        self.tag = ""
        self.imminent = False
        self.waiting: Counter[str] = Counter()
        self._most = waiters
        self._changed = asyncio.Event()
        self._closed = False

    def show(self, body: bytes, *, imminent: bool) -> bool:
        """Replace the document and wake waiting clients. Return False if it is unchanged."""
        if body == self.body:
            return False
        self.body, self.imminent = body, imminent
        self.tag = hashlib.sha256(body).hexdigest()[:16]
        self._wake()
        return True

    def close(self) -> None:
        """Release all waiting clients, and admit no more."""
        self._closed = True
        self._wake()

    async def wait(self, seconds: float, tag: str = "", *, server: str = "web") -> bool:
        """Wait until a termination is imminent, or, with the `tag` of the client's document, until the document
        changes, for at most `seconds` and WAIT_MOST. Return False if too many clients already wait at this server.
        """
        if self.waiting[server] >= self._most:
            return False
        self.waiting[server] += 1
        try:
            async with asyncio.timeout(min(max(seconds, 0.0), WAIT_MOST)):
                while not self._closed and (self.tag == tag if tag else not self.imminent):
                    await self._changed.wait()
        except TimeoutError:
            pass
        finally:
            self.waiting[server] -= 1
        return True

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class NoticeFile(KeptFile):
    """Writer of `notice.json` in the run directory, in a thread. Receives the document of each pass, and writes it if
    it changed or the last write failed.
    """

    def __init__(self, run_dir: Path, clock: Clock = host_clock) -> None:
        self._body = b""
        super().__init__(run_dir / "notice.json", clock)

    def publish(self, body: bytes, *, imminent: bool) -> None:
        if body != self._body or self._error:
            self._body = body
            self.write(lambda: f"{body.decode()}\n", urgent=imminent)


# --- samples for metrics

Sample = tuple[tuple[str, ...], float]


def announced(snapshot: Snapshot) -> Iterator[Sample]:
    """Yield 1 for each source and kind that is announced, else 0. Every possible kind exists from the start, so that
    no series first appears with its first notice.
    """
    for source in snapshot.notice_sources:
        for kind in source.kinds:
            yield (source.name, kind), 0
    yield ("operator", "termination"), 0
    for notice in snapshot.enforced.notices:
        if not notice.called_off:
            yield (notice.source, notice.kind), 1


def deadline(snapshot: Snapshot) -> Iterator[Sample]:
    """Yield the Unix time of the earliest deadline of a hard notice, if there is one."""
    hard = [n.deadline for n in snapshot.enforced.notices if n.hard and not n.called_off and n.deadline is not None]
    if hard:
        yield (), min(hard).wall


def sources_up(snapshot: Snapshot) -> Iterator[Sample]:
    return (((source.name,), int(source.up)) for source in snapshot.notice_sources)
