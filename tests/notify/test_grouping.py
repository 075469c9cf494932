"""One incident, one notification: what receivers get of findings that follow from others, over restarts too."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpuwarden.health.judge import Step
from gpuwarden.health.memory import State, Track
from gpuwarden.health.model import NODE, Advice, Event, EventKind, Key, Latch, Severity
from gpuwarden.health.severity import in_shadow
from gpuwarden.health.view import CheckRule
from gpuwarden.notify.grouping import ACTIVE, SINGLY_MOST, Grouping
from gpuwarden.notify.messages import Origin, message
from gpuwarden_collectors.event_facts import HostEvent, SxidEvent
from gpuwarden_collectors.facts import Stamp
from support.hosts import SWITCHES, Host, slot

LOST, MISSING = f"xid.79@gpu/{slot(3)}", f"gpu_missing@gpu/{slot(3)}"
SWITCH = f"sxid.20034@switch/{SWITCHES[0]}"


class Receivers(Host):
    """A host whose events reach receivers, step by step, as the journal sends them."""

    def __init__(self) -> None:
        super().__init__(8)
        self.grouping = Grouping()
        self._passed = 0
        self._sent: list[Event] = []
        self.run(60)

    def step(self, *events: HostEvent, **passes: Any) -> Step:
        step = super().step(*events, **passes)
        self._send()
        return step

    def acknowledge(self, key: str) -> None:
        super().acknowledge(key)
        self._send()

    def restarts(self) -> None:
        self.restart_daemon()
        self.grouping = Grouping()

    def _send(self) -> None:
        new_events, self._passed = self.ledger[self._passed :], len(self.ledger)
        kinds = (EventKind.RAISED, EventKind.CLEARED, EventKind.ACKNOWLEDGED)
        sent = self.grouping.of(new_events, self.state, self._shadowed) + self.grouping.again(
            self.state, self._shadowed
        )
        self._sent += [event for event in sent if event.kind in kinds]

    def _shadowed(self, event: Event) -> bool:
        return event.key is not None and in_shadow(event.key.code, self.rules)

    def events(self) -> Sequence[Event]:
        """Return the events about findings that were notified since the last call."""
        sent, self._sent = self._sent, []
        return sent

    def sent(self) -> list[tuple[str, str]]:
        return [(str(event.kind), str(event.key)) for event in self.events()]

    def complaint(self) -> SxidEvent:
        return SxidEvent(at=self.now, slot=SWITCHES[0], sxid=20034, fatal=True, link=48, text="SXid 20034, Fatal")

    def loses(self) -> None:
        del self.gpus[3], self.devices[3]
        self.step(self.xid(3, 79))


@pytest.fixture
def notified() -> Receivers:
    return Receivers()


def test_what_comes_after_its_cause_is_not_notified_and_neither_is_its_end(notified: Receivers) -> None:
    gone = notified.gpus[3], notified.devices[3]
    notified.loses()
    assert notified.sent() == [("raised", LOST)]
    notified.run(10)
    notified.step(notified.complaint())
    notified.run(300, every=15)
    assert notified.sent() == []
    notified.gpus[3], notified.devices[3] = replace(gone[0], uuid="GPU-new"), gone[1]
    notified.run(60)
    assert notified.sent() == [("cleared", LOST)]


def test_the_cause_names_what_came_with_it_and_before_it(notified: Receivers) -> None:
    notified.step(notified.complaint())
    assert notified.sent() == [("raised", SWITCH)]
    notified.run(5)
    notified.loses()
    (event,) = notified.events()
    assert (str(event.key), event.data["consequences"]) == (LOST, f"{MISSING}, {SWITCH}")
    assert next(iter(event.data)) == "consequences"
    notification = message(event, Origin(node="n1", mode="observe", boot_id="b"))
    assert notification is not None
    assert json.loads(notification[1].body)["data"]["consequences"] == f"{MISSING}, {SWITCH}"


def test_the_end_of_what_was_notified_by_itself_is_notified(notified: Receivers) -> None:
    gone = notified.gpus[3], notified.devices[3]
    notified.step(notified.complaint())
    notified.sent()
    notified.loses()
    notified.run(60)
    notified.sent()
    notified.gpus[3], notified.devices[3] = replace(gone[0], uuid="GPU-new"), gone[1]
    notified.run(60)
    assert sorted(notified.sent()) == [("cleared", SWITCH), ("cleared", LOST)]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_consequence_that_outlives_its_cause_is_notified_then(notified: Receivers, *, restarted: bool) -> None:
    at = f"@gpu/{slot(1)}"
    notified.step(notified.xid(1, 48))
    notified.change(1, ecc_uncorrected_volatile=2)
    notified.run(300, every=15)
    assert notified.sent() == [("raised", f"xid.48{at}")]
    if restarted:
        notified.restarts()
        notified.run(30)
        assert notified.sent() == [("raised", f"xid.48{at}")]
    notified.acknowledge(f"xid.48{at}")
    assert notified.sent() == [("acknowledged", f"xid.48{at}")]
    notified.run(30)
    (event,) = notified.events()
    assert (event.kind, str(event.key), event.data["severity"]) == ("raised", f"ecc_uncorrectable{at}", "failure")
    assert event.data["uncorrected_since_driver_load"] == 2


def test_a_consequence_that_a_reload_puts_into_shadow_is_not_notified(notified: Receivers) -> None:
    notified.loses()
    notified.run(10)
    notified.step(notified.complaint())
    notified.sent()
    notified.rules = replace(notified.rules, checks={"sxid": CheckRule(shadow=True)})
    notified.run(60)
    assert notified.sent() == []


def test_a_finding_that_follows_from_nothing_is_notified_as_before(notified: Receivers) -> None:
    notified.step(notified.xid(5, 95))
    assert notified.sent() == [("raised", f"xid.95@gpu/{slot(5)}")]
    notified.run(30)
    notified.acknowledge(f"xid.95@gpu/{slot(5)}")
    assert notified.sent() == [("acknowledged", f"xid.95@gpu/{slot(5)}")]


def test_a_long_list_is_cut(notified: Receivers) -> None:
    facts = notified.gpus[2]
    notified.gpus[2] = replace(facts, links=tuple(replace(link, active=link.link < 1) for link in facts.links))
    notified.run(90)
    (event,) = notified.events()
    assert str(event.data["consequences"]).endswith(", 8 more")


def key_of(event: Event) -> str:
    made = message(event, Origin(node="n1", mode="observe", boot_id="b"))
    assert made is not None
    return made[1].key


def test_after_a_restart_what_still_holds_is_notified_once_more_with_the_key_that_it_had(notified: Receivers) -> None:
    notified.step(notified.xid(5, 95))
    notified.change(1, ecc_uncorrected_volatile=2)
    notified.run(60)
    before = {str(event.key): key_of(event) for event in notified.events()}
    assert len(before) == 2
    for _ in range(2):
        notified.restarts()
        notified.run(60)
        assert {str(event.key): key_of(event) for event in notified.events()} == before
        notified.run(300, every=15)
        assert notified.events() == []


def test_a_finding_that_comes_again_has_another_key(notified: Receivers) -> None:
    keys = set()
    for _ in range(2):
        notified.step(notified.xid(5, 95))
        (event,) = notified.events()
        keys.add(key_of(event))
        notified.run(10)
        notified.acknowledge(f"xid.95@gpu/{slot(5)}")
        notified.run(10)
        notified.sent()
    assert len(keys) == 2


def test_after_a_restart_nothing_is_notified_of_what_was_not_found_again(notified: Receivers) -> None:
    notified.change(1, ecc_uncorrected_volatile=2)
    notified.run(60)
    assert notified.sent() == [("raised", f"ecc_uncorrectable@gpu/{slot(1)}")]
    notified.restarts()
    notified.step(collect=False)
    assert notified.sent() == []
    notified.change(1, ecc_uncorrected_volatile=0)
    notified.run(300, every=15)
    assert ("raised", f"ecc_uncorrectable@gpu/{slot(1)}") not in notified.sent()


def test_of_many_findings_the_failures_come_one_by_one_and_the_rest_in_one_list() -> None:
    tracks = [track(f"site_{n}", Severity.FAILURE if n % 3 == 0 else Severity.WARNING) for n in range(30)]
    state = State(boot_id="b", tracks={finding_track.key: finding_track for finding_track in tracks})
    grouping = Grouping()
    events = grouping.again(state)
    assert [event.kind for event in events] == [*["raised"] * SINGLY_MOST, ACTIVE]
    assert {event.data["severity"] for event in events[:-1]} == {"failure"}
    made = message(events[-1], Origin(node="n1", mode="observe", boot_id="b"))
    assert made is not None
    body = json.loads(made[1].body)
    assert (made[0], body["subject"], body["data"]["count"]) == ("finding", "finding", 20)
    assert body["data"]["findings"].endswith("site_11@node, 12 more")
    assert grouping.again(state) == []


def track(code: str, severity: Severity) -> Track:
    at = Stamp(5.0, 1_000.0)
    return Track(
        key=Key(code, NODE), severity=severity, advice=Advice.NONE, latch=Latch.NONE, evidence={}, first_seen=at,
        last_seen=at, raised=True,
    )  # fmt: skip
