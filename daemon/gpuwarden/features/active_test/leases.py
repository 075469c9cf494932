"""The verbs of the control socket by which a running `gpuwarden test` and the daemon communicate.

    test-begin   {pid, level, gpus: [uuid], seconds}                 -> {lease, end: null, or why the test must end}
    test-begin   the same with {lease, workers: [pid]}, each second  -> the same: it renews the lease
    test-result  {lease, workers, tests: [GpuTest]}                  -> {outcomes: {uuid: Outcome}}
    test-end     {lease}                                             -> "ended"

Results are accepted only from root and the user gpuwarden. A lease that is not renewed ends soon, so that a killed test
suppresses no findings for long.
"""

from __future__ import annotations

import asyncio
import math
import os
import pwd
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from gpuwarden.base.peer import Peer
from gpuwarden.base.threads import detached
from gpuwarden.control.durable import Durable
from gpuwarden.engine.journal import Step
from gpuwarden.features.active_test.judging.lease import GPUS_MOST, WORKERS_MOST, Lease, begun, ended, pids
from gpuwarden.features.active_test.judging.submission import submitted
from gpuwarden.features.active_test.memory import memory_of
from gpuwarden.health.model import Event, EventKind
from gpuwarden.policy.model import Act
from gpuwarden.publish.sockets.control import NOT_ALLOWED, TRY_AGAIN, Verb, VerbError
from gpuwarden.runtime.part import Service
from gpuwarden_collectors.active_test.facts import GpuTest
from gpuwarden_collectors.active_test.level import Level
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.codec import CodecError, from_wire, to_wire
from gpuwarden_collectors.facts import Stamp

USER = "gpuwarden"
RENEWED_WITHIN = 10.0
"""Seconds, ten times the interval of renewals."""
LASTS_MOST = 3600.0
"""Most seconds that a lease may hold, whatever the test requests."""
TESTS_MOST = 256
"""Most tests of one submission: more than GPUS_MOST GPUs have, each with a first test and its repeats."""
UUID_MOST = 48
"""Characters of a UUID that a message shows."""
USER_FOUND_WITHIN = 1.0
_NAME = re.compile(r"[0-9a-f]{16}", re.ASCII)
_PID_MOST = 2**22
"""PID_MAX_LIMIT (include/linux/threads.h)."""


class Leases:
    """The lease of the running test, and its results. `appended` is one of the journal's outputs. `user`: accepted,
    like root.

    `cut_short` is called when the daemon ends a running test.
    """

    def __init__(self, service: Service, clock: Clock, user: str = USER) -> None:
        self._user = user
        self._service = service
        self._clock = clock
        self.cut_short: Callable[[], None] = lambda: None
        self._end = ""
        self._timer: asyncio.TimerHandle | None = None

    def table(self) -> Mapping[str, Verb]:
        """Return the verbs. Only results wait for the disk: a full disk must not keep the daemon from ending a test."""
        durable = Durable(self._service.ledger.commit, self._clock).table({"test-result": self._result})
        verbs = {"test-begin": self._begin, "test-end": self._over, **durable}
        return {name: _believed(verb, self._user) for name, verb in verbs.items()}

    def appended(self, events: Iterable[Event]) -> None:
        """End the test when an operator excludes the node, or when the node may get work again.

        An exclusion that was carried out does not end it: it may have been made for the test. When the daemon starts,
        an earlier lease must be renewed within RENEWED_WITHIN.
        """
        for event in events:
            if event.kind == EventKind.ORDERED and event.data.get("order") == Act.EXCLUDE:
                self._end = self._end or "an operator excluded the node"
            elif event.kind == EventKind.INTENDED and event.data.get("intent") == Act.RESTORE:
                self._end = self._end or "gpuwarden restores the node"
            elif event.kind == EventKind.LIFTED:
                self._end = self._end or "somebody ended the exclusion of the node"
            elif event.kind == EventKind.STARTED and self._lease() is not None:
                self._renewed()

    def reloaded(self) -> None:
        self._end = self._end or "the configuration was reloaded"

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    # --- verbs

    async def _begin(self, arguments: dict[str, Any], _: Peer) -> Any:
        lease = self._given(arguments)
        self._need_ledger()
        renewed = "lease" in arguments
        self._end = self._end if renewed else ""
        must_end = self._must_end()
        if must_end and renewed:
            self.cut_short()
        if reason := must_end or (renewed and self._lost(lease)):
            return {"lease": lease.name, "end": reason}
        existing = self._known(lease.name)
        if existing is None:
            self._append(begun(lease), step=Step.NOW)
        elif existing.ended is not None:
            again = replace(existing, at=lease.at, ended=None, workers=lease.workers or existing.workers)
            self._append(begun(again), step=Step.NOW)
        else:
            self._with_workers(existing, lease.workers)
        self._renewed()
        return {"lease": lease.name, "end": None}

    async def _result(self, arguments: dict[str, Any], _: Peer) -> Any:
        tests = _tests(arguments.get("tests"))
        self._need_ledger()
        workers, lease = pids(_numbers(arguments.get("workers", []))), self._known(arguments.get("lease"))
        if lease is not None and lease.holds(self._clock()):
            self._with_workers(lease, workers)
        outcomes, events = submitted(
            self._service.engine.state, tests, self._clock(), self._boot, self._known(arguments.get("lease"))
        )
        self._append(*events, step=Step.NOW)
        return {"outcomes": {uuid: to_wire(outcome) for uuid, outcome in outcomes.items()}}

    async def _over(self, arguments: dict[str, Any], _: Peer) -> Any:
        lease = self._lease()
        if lease is not None and lease.name == arguments.get("lease"):
            self._ended(lease, "the test is over")
        return "ended"

    def _need_ledger(self) -> None:
        if not self._service.journal.recalled:
            raise VerbError("the ledger is not read yet; try again", TRY_AGAIN)

    # --- the lease

    @property
    def _boot(self) -> str:
        return self._service.engine.view.boot_id

    def _lease(self) -> Lease | None:
        """Return the lease while it holds."""
        lease = memory_of(self._service.engine.state).lease
        return lease if lease is not None and lease.holds(self._clock()) else None

    def _known(self, name: Any) -> Lease | None:
        """Return the lease of this name, also after its end, until another test begins."""
        lease = memory_of(self._service.engine.state).lease
        return lease if lease is not None and lease.name == name else None

    def _lost(self, lease: Lease) -> str:
        """Return why this lease cannot be renewed; empty if it can."""
        holds, existing = self._lease(), self._known(lease.name)
        if existing is None and holds is not None:
            return f"another test began (pid {holds.pid})"
        if existing is not None and existing.until is not None and existing.until.boottime <= lease.at.boottime:
            return "it takes longer than announced"
        return ""

    def _append(self, *events: Event, step: Step = Step.SOON) -> None:
        if events:
            self._service.journal.append(self._service.engine.active_tested(events, self._clock()), step=step)

    def _with_workers(self, lease: Lease, workers: str) -> None:
        if workers and workers != lease.workers:
            self._append(begun(replace(lease, at=self._clock(), workers=workers)))

    def _renewed(self) -> None:
        self.stop()
        self._timer = asyncio.get_running_loop().call_later(RENEWED_WITHIN, self._not_renewed)

    def _not_renewed(self) -> None:
        if (lease := self._lease()) is not None:
            self._ended(lease, f"it was not renewed for {RENEWED_WITHIN:g} s: its process is gone, or hangs")

    def _ended(self, lease: Lease, by: str) -> None:
        self.stop()
        self._append(ended(lease, by, self._clock()))

    def _must_end(self) -> str:
        notice = self._service.holder.snapshot.enforced.notice
        return "the end of this machine is announced" if notice is not None else self._end

    def _given(self, arguments: Mapping[str, Any]) -> Lease:
        level, gpus, seconds = arguments.get("level"), arguments.get("gpus"), arguments.get("seconds")
        name, (pid, *_) = arguments.get("lease") or secrets.token_hex(8), _numbers([arguments.get("pid")])
        if level not in list(Level) or not isinstance(name, str) or not _NAME.fullmatch(name):
            raise VerbError(
                "test-begin needs a level (gate, quick, standard), and may name a lease that the daemon gave out"
            )
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
            raise VerbError("test-begin needs the seconds that the test takes at most")
        now, lasts = self._clock(), min(float(seconds), LASTS_MOST)
        return Lease(
            at=now,
            name=name,
            gpus=" ".join(self._known_gpus(gpus)),
            level=Level(level),
            pid=pid,
            boot_id=self._boot,
            until=Stamp(now.boottime + lasts, now.wall + lasts),
            workers=pids(_numbers(arguments.get("workers", []))),
        )

    def _known_gpus(self, uuids: Any) -> list[str]:
        if (
            not isinstance(uuids, list)
            or not 0 < len(uuids) <= GPUS_MOST
            or not all(isinstance(uuid, str) for uuid in uuids)
        ):
            raise VerbError(f"test-begin needs the UUIDs of 1 to {GPUS_MOST} GPUs")
        here = {pin.uuid for pin in self._service.engine.state.pins.values() if pin.uuid}
        if strange := [uuid[:UUID_MOST] for uuid in uuids if uuid not in here]:
            raise VerbError(f"no GPU of this node has the UUID {strange[0]!r}; `gpuwarden inventory` lists them")
        return list(dict.fromkeys(uuids))


def _tests(documents: Any) -> list[GpuTest]:
    if not isinstance(documents, list) or not 0 < len(documents) <= TESTS_MOST:
        raise VerbError(f"test-result needs 1 to {TESTS_MOST} tests")
    try:
        return [from_wire(GpuTest, document) for document in documents]
    except CodecError as error:
        raise VerbError(f"a result is not of this version's form: {error}") from error


def _numbers(numbers: Any) -> list[int]:
    good = isinstance(numbers, list) and len(numbers) <= WORKERS_MOST
    if not good or not all(type(number) is int and 0 < number <= _PID_MOST for number in numbers):
        raise VerbError(f"pid is a process number, and workers are {WORKERS_MOST} of them at most")
    return list(numbers)


def _believed(verb: Verb, user: str) -> Verb:
    async def answer(arguments: dict[str, Any], peer: Peer) -> Any:
        if peer.uid not in (0, os.geteuid()) and peer.uid != await _uid_of(user):
            raise VerbError(
                f"uid {peer.uid} may not do this: results of tests are accepted from root and {user} only", NOT_ALLOWED
            )
        return await verb(arguments, peer)

    return answer


async def _uid_of(name: str) -> int | None:
    """Return the uid of a user name; None if the host has no such user or the lookup does not answer in time."""
    finding: asyncio.Future[int] = detached("user", lambda: pwd.getpwnam(name).pw_uid)
    await asyncio.wait((finding,), timeout=USER_FOUND_WITHIN)
    return finding.result() if finding.done() and finding.exception() is None else None
