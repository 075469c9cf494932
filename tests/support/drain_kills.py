"""One failure of a GPU on a node of a real Slurm, from the drain to the restoration, with a daemon that is killed meanwhile.

In some rounds an administrator drains or resumes the node. What the controller did is read from its own log.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from gpuwarden.features.slurm.node_actuator import RETURNED
from support.daemons import RunningDaemon, slots
from support.slurm import CONTROLLER, Slurm
from support.slurm_hosts import REASON, SlurmHost, acting_of, excluded_by

GPUS = 4
KILL_WITHIN = 0.9
"""Seconds after the failure, or after the repair, within which the daemon is killed."""
AGAIN_WITHIN = 3.0
"""Seconds after its start within which it is killed again: it has drained by then, even on a busy machine."""
KILLS_MOST = 2
REPAIRS_KILLED = 0.3
"""The share of the rounds in which the daemon is killed after the repair, too."""
POLL = 0.2
"""Seconds: many rounds share a machine."""
STEADY_PASSES = 10
"""Passes after which nothing more is expected; two seconds."""
RACE = 250.0
"""Milliseconds from our last read of the node to our write of its drain, at most, on a busy machine."""
THEIRS = "new fan, ticket 12"


@dataclass(frozen=True, slots=True)
class Fault:
    """`reasons`: with its number, or with its address where the daemon has only just started and the driver has not answered yet."""

    name: str
    reasons: tuple[str, ...]
    breaks: Callable[[SlurmHost], object]
    repairs: Callable[[SlurmHost], object]


FAULTS = (
    Fault(
        "kernel record", (REASON, REASON.replace("gpu=3", f"gpu={slots(4)[3]}")), SlurmHost.breaks, SlurmHost.is_mended
    ),
    Fault(
        "fact of the library", ("gpuwarden: failure gpu=3 gpu_recovery_action - reset the GPU when it is empty",),
        lambda host: host.fake.reading(3, "recovery_action", 1), lambda host: host.fake.clear(),
    ),
)  # fmt: skip


class Admin(StrEnum):
    """What an administrator does to the node in a round."""

    NOTHING = "nothing"
    DRAINED = "drained it before"
    DRAINS = "drains it meanwhile"
    TAKES_OVER = "gives our drain another reason"
    RESUMES = "resumes it within a second"
    RESUMES_LATER = "resumes it later"


ADMINS = (*[Admin.NOTHING] * 5, Admin.DRAINED, Admin.DRAINS, Admin.TAKES_OVER, Admin.RESUMES, Admin.RESUMES_LATER)


@dataclass(slots=True)
class Result:
    """`lost`: not drained, or not restored. `doubled`: a drain or a restoration was written twice. `wrong`: with another reason, or
    without a failure. `foreign`: what an administrator did was undone. Each with what was seen.

    Apart from these, since Slurm has no compare-and-set and keeps no history: `overtaken`, milliseconds by which our write came after
    an administrator's drain that our read before it had not seen; `undecided`, rounds in which the node was resumed, and the daemon
    killed, before the outcome of the drain was in the ledger, so that the next start drained once more.
    """

    kills: int = 0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    overtaken: list[float] = field(default_factory=list)
    undecided: int = 0

    @property
    def faults(self) -> list[str]:
        return [*self.lost, *self.doubled, *self.wrong, *self.foreign]


@dataclass(frozen=True, slots=True)
class Update:
    """A line of the controller's log about a node. `what`: `reason` or `state`."""

    at: float
    what: str
    value: str


def updates(slurm: Slurm, node: str, since: int) -> list[Update]:
    """Return the updates of the node in the controller's log, in order, from the byte `since` on."""
    with log_of(slurm).open("rb") as file:
        file.seek(since)
        text = file.read().decode(errors="replace")
    matches = re.findall(rf"^\[(\S+)\] update_node: node {node} (reason|state) set to:? (.*)$", text, re.MULTILINE)
    return [
        Update(datetime.fromisoformat(at).timestamp(), kind, value) for at, kind, value in matches if value != RETURNED
    ]


def log_of(slurm: Slurm) -> Path:
    return slurm.folder / f"{CONTROLLER}.log"


class DrainRound:
    """The host is new, and its node idle; both are used up by the round."""

    def __init__(self, host: SlurmHost, chance: random.Random, fault: Fault, admin: Admin) -> None:
        self.result = Result()
        self._host = host
        self._slurm = host.slurm
        self._node = host.node
        self._chance = chance
        self._fault = fault
        self._admin = admin
        self._since = log_of(self._slurm).stat().st_size
        self._resumed = 0.0
        self._daemon: RunningDaemon

    def run(self) -> None:
        if self._admin is Admin.DRAINED:
            self._slurm.drain(self._node, THEIRS)
        self._daemon = self._host.starts()
        try:
            self._wait_healthy()
            self._fail()
            self._repair()
        except AssertionError as error:
            self._note(self.result.lost, str(error))
        finally:
            self._daemon.kill()

    # --- what occurs

    def _fail(self) -> None:
        self._fault.breaks(self._host)
        acts = {Admin.DRAINS: self._drains, Admin.TAKES_OVER: self._takes_over, Admin.RESUMES: self._resumes}
        self._kill(acts.get(self._admin))
        self._wait_settled()
        if self._admin is Admin.RESUMES_LATER:
            self._kill(self._resumes)
            self._wait_settled()
        self._check_failed()

    def _repair(self) -> None:
        drained, written = self._is_out_by_us, len(self._own_drains())
        self._fault.repairs(self._host)
        if self._chance.random() < REPAIRS_KILLED:
            self._kill()
        self._wait_healthy()
        self._wait(lambda: not self._is_out_by_us, "the node to come back")
        self._wait_settled()
        self._check_repaired(drained=drained, written=written)

    def _kill(self, act: Callable[[], None] | None = None) -> None:
        """Some kills, each with a new start, and between them or after them the administrator's act."""
        began = time.monotonic()
        acts_at = began + self._chance.uniform(0.0, KILL_WITHIN)
        kills_at = began + self._chance.uniform(0.0, KILL_WITHIN)
        for _ in range(self._chance.randint(1, KILLS_MOST)):
            if act is not None and acts_at <= kills_at:
                _sleep_until(acts_at)
                act()
                act = None
            _sleep_until(kills_at)
            self._daemon.kill()
            self.result.kills += 1
            self._daemon = self._host.starts()
            kills_at = time.monotonic() + self._chance.uniform(0.0, AGAIN_WITHIN)
        if act is not None:
            _sleep_until(acts_at)
            act()

    def _drains(self) -> None:
        self._slurm.drain(self._node, THEIRS)

    def _takes_over(self) -> None:
        self._daemon.wait(self._own_drains, "the drain")
        self._slurm.scontrol("update", f"NodeName={self._node}", f"Reason={THEIRS}")

    def _resumes(self) -> None:
        self._daemon.wait(self._own_drains, "the drain")
        self._resumed = time.time()
        self._slurm.scontrol("update", f"NodeName={self._node}", "State=RESUME")

    # --- what is waited for

    def _wait(self, condition: Callable[[], object], awaited: str) -> None:
        self._daemon.wait(condition, awaited, every=POLL)

    def _wait_healthy(self) -> None:
        self._wait((self._host.run_dir / "control.sock").exists, "the daemon to start")
        self._daemon.find_port()
        self._wait(lambda: self._daemon.is_now("healthy"), "the node to be well")

    def _wait_settled(self) -> None:
        """Nothing is wanted any more, and the daemon knows how the node is, still after some passes."""
        self._daemon.find_port()
        self._wait(self._is_settled, "the end of all that is wanted")
        passes = self._daemon.heartbeat()["sequence"] + STEADY_PASSES
        self._wait(lambda: self._daemon.heartbeat()["sequence"] >= passes, "some passes")
        self._wait(self._is_settled, "the end of all that is wanted")

    def _is_settled(self) -> bool:
        heartbeat = self._daemon.heartbeat()
        if heartbeat["sequence"] < 2 or acting_of(self._daemon)["wanted"]:
            return False
        by = excluded_by(self._daemon)
        if not self._host.is_drained():  # a failed node is in where somebody resumed it
            return by == [] and (heartbeat["status"] == "healthy" or self._resumed > 0.0)
        return by == ["slurm:foreign" if self._slurm.reason(self._node) == THEIRS else "slurm:failure"]

    # --- what is counted

    @property
    def _is_out_by_us(self) -> bool:
        return self._slurm.reason(self._node) in self._fault.reasons

    def _updates(self, kind: str) -> list[Update]:
        return [update for update in updates(self._slurm, self._node, self._since) if update.what == kind]

    def _own_drains(self) -> list[Update]:
        return [update for update in self._updates("reason") if update.value != THEIRS]

    def _note(self, faults: list[str], text: str) -> None:
        log = updates(self._slurm, self._node, self._since)
        faults.append(f"{self._host.folder}, {self._fault.name}, an administrator {self._admin}: {text}; {log}")

    def _check_failed(self) -> None:
        written, result = self._own_drains(), self.result
        if any(update.value not in self._fault.reasons for update in written):
            self._note(result.wrong, "another reason")
        fewest, most = {Admin.DRAINED: (0, 0), Admin.DRAINS: (0, 1)}.get(self._admin, (1, 1))
        if self._admin is Admin.RESUMES and len(written) == 2 and not self._is_known_before(self._resumed):
            result.undecided += 1
            most = 2
        if len(written) < fewest:
            self._note(result.lost, "no drain")
        if len(written) > most:
            mine = self._admin in (Admin.NOTHING, Admin.RESUMES)
            self._note(result.doubled if mine else result.foreign, f"{len(written)} drains")
        if self._admin is Admin.NOTHING:
            self._wait(lambda: self._events("excluded"), "the drain to be in the ledger")
        if self._admin is Admin.NOTHING and (drains := len(self._events("excluded"))) != 1:
            self._note(result.doubled, f"{drains} drains in the ledger")
        if self._admin is Admin.DRAINS:
            self._check_overtaken(written)
        if self._admin in (Admin.DRAINED, Admin.TAKES_OVER) and self._slurm.reason(self._node) != THEIRS:
            self._note(result.foreign, "their reason is gone")

    def _check_overtaken(self, written: list[Update]) -> None:
        theirs = next(update.at for update in self._updates("reason") if update.value == THEIRS)
        late = [(update.at - theirs) * 1000.0 for update in written if update.at > theirs]
        self.result.overtaken += [gap for gap in late if gap <= RACE]
        if any(gap > RACE for gap in late):
            self._note(self.result.foreign, "drained over their drain")

    def _check_repaired(self, *, drained: bool, written: int) -> None:
        """`drained`: by us, before the repair, with that many drains of gpuwarden so far."""
        result = self.result
        if len(self._own_drains()) > written:
            self._note(result.wrong, "drained after the repair")
        restored = sum(update.value.startswith("IDLE") for update in self._updates("state")) - (self._resumed > 0.0)
        if restored > drained:
            self._note(result.doubled, f"{restored} restorations")
        if self._admin in (Admin.DRAINED, Admin.TAKES_OVER) and self._slurm.reason(self._node) != THEIRS:
            self._note(result.foreign, "their drain is gone after the repair")
        if self._admin is Admin.DRAINS and not drained and self._slurm.reason(self._node) != THEIRS:
            self._note(result.foreign, "their drain is gone after the repair")

    def _is_known_before(self, wall: float) -> bool:
        """Return True if the outcome of a drain was in the ledger by then."""
        return any(datetime.fromisoformat(event["at"]).timestamp() <= wall for event in self._events("excluded"))

    def _events(self, kind: str) -> list[dict[str, Any]]:
        events = json.loads(self._daemon.get("/v1/events?since=0")[1])["events"]
        return [event for event in events if event["kind"] == kind]


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))
