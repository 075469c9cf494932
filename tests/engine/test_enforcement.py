"""What is wanted is done, once: whatever ends the daemon in between, whatever the scheduler answers, however late."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from gpuwarden.actuators.base import ActuatorError, ActuatorRefused, ActuatorUnavailable
from gpuwarden.actuators.reconciler import Limits, Reconciler
from gpuwarden.engine.enforcement import EnforcementOptions
from gpuwarden.health.event_data import write
from gpuwarden.health.model import Event, EventKind
from gpuwarden.policy.breaker import spread_of_return
from gpuwarden.policy.model import Act, Budget, Flag, Intent, NodeState, Notice, Result, Settings, Why
from gpuwarden.policy.state import Hold
from gpuwarden_collectors.base import host_clock
from support.enforcement_rig import LIMITS, PATIENCE, SETTINGS, Killed, Rig, rig_options
from support.policy_story import BOOT, xid
from support.schedulers import Client, Cluster, Node

FAILED = "gpuwarden: failure gpu=3 xid=79 - reset the GPU when it is empty"


@pytest.fixture
def rig() -> Rig:
    return Rig(Cluster(time.time, {"n1": Node()}))


def kinds(rig: Rig) -> Counter[str]:
    return Counter(str(event.kind) for event in rig.ledger)


# --- killed anywhere


def killer(rig: Rig, moment: int) -> None:
    """The rig dies at the `moment`-th point at which it asks, was answered, or writes down what came of it."""
    points = 0

    def point(*_: object) -> None:
        nonlocal points
        points += 1
        if points == moment:
            raise Killed

    rig.client.before = rig.client.after = point
    rig.on_record = point


def fails(rig: Rig) -> None:
    rig.passes(xid())


async def excluded(rig: Rig) -> None:
    """The beginning of stories in which the node comes back."""
    rig.enforcement.run()
    fails(rig)
    await rig.until(lambda: rig.state.holds)
    await rig.kill()
    rig.begin()
    rig.sequence = 0


def heals(rig: Rig) -> None:
    rig.passes()


@pytest.mark.parametrize("moment", range(1, 16))
async def test_killed_at_any_point_of_an_exclusion_it_is_made_exactly_once(rig: Rig, moment: int) -> None:
    killer(rig, moment)
    rig.enforcement.run()
    fails(rig)
    await rig.until(lambda: rig.state.holds or rig.dead)
    assert rig.dead or moment > 10  # an exclusion has that many points
    await rig.kill()
    rig.on_record = lambda: None
    rig.begin()
    rig.enforcement.run()
    fails(rig)
    await rig.until(lambda: rig.state.holds and not rig.state.pending)
    assert (rig.writes, rig.reason) == (["exclude"], FAILED)
    assert (kinds(rig)[EventKind.INTENDED], kinds(rig)[EventKind.EXCLUDED]) == (1, 1)
    await rig.kill()


@pytest.mark.parametrize("moment", range(1, 14))
async def test_killed_at_any_point_of_a_restoration_it_is_made_exactly_once(rig: Rig, moment: int) -> None:
    await excluded(rig)
    killer(rig, moment)
    rig.enforcement.run()
    heals(rig)
    await rig.until(lambda: not rig.state.holds or rig.dead)
    await rig.kill()
    rig.on_record = lambda: None
    rig.begin()
    rig.enforcement.run()
    heals(rig)
    await rig.until(lambda: not rig.state.holds and not rig.state.pending)
    assert (rig.writes, rig.reason) == (["exclude", "restore"], "")
    assert kinds(rig)[EventKind.RESTORED] == 1
    await rig.kill()


# --- answers that are late, or no


async def test_a_write_that_timed_out_and_was_done_later_is_found_and_not_repeated(rig: Rig) -> None:
    lost = [True]

    def answer_is_lost(call: str) -> None:
        if call == "apply" and lost.pop():
            lost.append(False)
            raise ActuatorUnavailable("no answer within 10 s")

    rig.client.after = answer_is_lost
    rig.enforcement.run()
    fails(rig)
    await rig.until(lambda: rig.state.holds)
    assert (rig.writes, rig.client.calls.count("apply")) == (["exclude"], 1)
    await rig.kill()


async def test_a_pending_intent_is_dropped_after_another_read_if_somebody_else_excluded_the_node(rig: Rig) -> None:
    rig.client.away = ActuatorUnavailable("connect failure")
    rig.enforcement.run()
    fails(rig)
    await rig.until(lambda: rig.client.calls.count("fleet_count") > 3)
    rig.cluster.nodes["n1"] = Node(reason="rack move", since=time.time())
    rig.client.away = None
    await rig.until(lambda: not rig.state.pending)
    assert (rig.reason, rig.writes, rig.state.holds) == ("rack move", [], {})
    assert "rack move" in rig.enforcement.shown().blocked["fake"]
    await rig.kill()


async def test_without_permission_there_is_one_complaint_and_no_storm(rig: Rig) -> None:
    def refuse(call: str) -> None:
        if call == "apply":
            raise ActuatorRefused("cannot drain n1: Invalid user id: run gpuwarden as root or SlurmUser")

    rig.client.before = refuse
    rig.enforcement.run()
    fails(rig)
    await rig.until(lambda: "Invalid user id" in rig.enforcement.error())
    for _ in range(200):
        rig.step()
        await asyncio.sleep(0.001)
    assert rig.client.calls.count("apply") == 1
    assert kinds(rig)[EventKind.OUTCOME] == 1
    rig.client.before = lambda _: None
    rig.enforcement.hurry()
    await rig.until(lambda: rig.state.holds)
    assert rig.enforcement.error() == ""
    await rig.kill()


@pytest.mark.parametrize("kind", [ActuatorUnavailable, ActuatorRefused])
async def test_without_a_fleet_count_no_node_is_excluded_and_the_breaker_shows_why(
    rig: Rig, kind: type[ActuatorError]
) -> None:
    """The node itself can be read and written."""

    def refuse(call: str) -> None:
        if call == "fleet_count":
            raise kind("cannot count the excluded nodes: 403")

    rig.client.before = refuse
    rig.enforcement.run()
    fails(rig)
    await rig.until(lambda: rig.enforcement.shown().breaker)
    assert rig.enforcement.shown().breaker == "budget_unknown: cannot count the excluded nodes: 403"
    assert rig.cluster.writes == []
    assert bool(rig.enforcement.error()) is (kind is ActuatorRefused)
    await rig.kill()


async def test_a_scheduler_that_cannot_count_for_a_moment_is_asked_again_soon() -> None:
    """The next attempt of an exclusion or a rollback comes earlier than a refusal of the breaker would allow."""
    cluster = Cluster(time.time, {"n1": Node()})
    client = Client(cluster, "n1", host_clock)

    def fail(call: str) -> None:
        if call == "fleet_count":
            raise ActuatorUnavailable("cannot count: no answer within 10 s")

    client.before = fail

    async def committed() -> bool:
        return True

    box = Reconciler(
        client, committed=committed, wanted=lambda _: True, on_read=lambda: None, clock=host_clock,
        limits=replace(LIMITS, first=2.0, most=120.0, breaker_first=60.0, breaker_most=900.0),
    )  # fmt: skip
    wanted = Intent(act=Act.EXCLUDE, actuator="fake", why=Why.FAILURE, reason=FAILED, key="k", at=host_clock())
    outcome, pause = await box.attempt(wanted)
    assert (outcome.result, box.held_back) == (Result.RETRY, "budget_unknown: cannot count: no answer within 10 s")
    assert 2.0 <= pause <= 3.0
    client.before = lambda _: None
    outcome, _ = await box.attempt(wanted)
    assert (outcome.result, box.held_back) == (Result.DONE, "")


async def test_an_unreachable_scheduler_is_reported_as_long_as_an_action_is_pending(rig: Rig) -> None:
    rig.client.away = ActuatorUnavailable("no answer within 10 s")
    rig.enforcement.run()
    rig.passes()
    await rig.until(lambda: "read" in rig.client.calls)
    assert rig.enforcement.away() == ""
    fails(rig)
    await rig.until(lambda: rig.enforcement.away() == "fake: no answer within 10 s")
    assert (rig.enforcement.error(), rig.enforcement.shown().breaker) == ("", "")
    rig.client.away = None
    await rig.until(lambda: rig.state.holds)
    assert rig.enforcement.away() == ""
    await rig.kill()


@pytest.mark.parametrize("attempts", [1, 12])
async def test_while_a_scheduler_is_away_the_next_attempt_is_due_within_five_seconds_and_the_spread(
    attempts: int,
) -> None:
    cluster = Cluster(time.time, {f"n{number}": Node() for number in range(1, 1_001)})
    rig = Rig(cluster, options=rig_options(Limits()))
    box = rig.enforcement._boxes["fake"]
    await box.read()
    rig.client.away = ActuatorUnavailable("connect failure")
    wanted = Intent(act=Act.EXCLUDE, actuator="fake", why=Why.TERMINATION, reason="gone", key="1", at=rig.clock())
    delays = [(await box.attempt(wanted))[1] for _ in range(attempts)]
    assert all(2.5 <= delay <= 5.0 + spread_of_return(1_000) for delay in delays)


async def test_where_the_scheduler_returns_within_an_attempt_the_next_is_due_within_five_seconds_and_the_spread() -> (
    None
):
    """The scheduler returns after the count, which fails, and before the read of the node: Slurm's client tries for 9 s in each."""
    cluster = Cluster(time.time, {f"n{number}": Node() for number in range(1, 10)})
    client = Client(cluster, "n1", host_clock)
    box = Reconciler(
        client, committed=always, wanted=lambda _: True, on_read=lambda: None, limits=Limits(), clock=host_clock
    )
    await box.read()
    wanted = Intent(act=Act.EXCLUDE, actuator="fake", why=Why.FAILURE, reason="gone", key="1", at=host_clock())
    client.away = ActuatorUnavailable("connect failure")
    for _ in range(12):
        await box.attempt(wanted)
    client.before = lambda call: setattr(client, "away", None) if call == "read" else None
    outcome, delay = await box.attempt(wanted)
    assert (outcome.result, client.calls[-2:]) == (Result.RETRY, ["fleet_count", "read"])
    assert delay <= 5.0 + spread_of_return(9)


async def always() -> bool:
    return True


async def test_a_healthy_node_asks_no_more_often_while_the_scheduler_is_away() -> None:
    rig = Rig(
        Cluster(time.time, {"n1": Node()}),
        options=EnforcementOptions(settings=Settings(look_every=1200.0, look_often=60.0)),
    )
    rig.client.away = ActuatorUnavailable("connect failure")
    box = rig.enforcement._boxes["fake"]
    await box.read()
    assert rig.enforcement._pause_after(box) >= 1200.0 * 0.9


async def test_an_order_repeated_after_a_refusal_does_not_get_the_old_result(rig: Rig) -> None:
    def refuse(call: str) -> None:
        if call == "apply":
            raise ActuatorRefused("cannot drain n1: Invalid user id")

    rig.client.before = refuse
    rig.enforcement.run()
    with pytest.raises(ValueError, match="Invalid user id"):
        await rig.enforcement.orders.exclude("alice", "replacing a fan")
    rig.client.before = lambda _: None
    assert await rig.enforcement.orders.exclude("alice", "replacing a fan") == "fake: done"
    await rig.kill()


async def test_what_is_no_longer_found_is_not_written_when_the_scheduler_returns(rig: Rig) -> None:
    rig.options = rig_options(settings=replace(SETTINGS, restore_passes=1_000_000))
    rig.begin()
    rig.client.away = ActuatorUnavailable("connect failure")
    rig.enforcement.run()
    fails(rig)
    await rig.until(lambda: rig.client.calls.count("fleet_count") > 1)
    heals(rig)
    reads = rig.client.calls.count("read")
    await rig.until(lambda: rig.client.calls.count("read") > reads)  # the attempt under way has ended
    rig.client.away = None
    await rig.until(lambda: rig.client.calls.count("read") > reads + 3)
    assert (rig.writes, len(rig.state.pending)) == ([], 1)
    assert "until its cause is observed" in rig.enforcement.shown().pending[0].text
    fails(rig)
    await rig.until(lambda: rig.state.holds)
    assert rig.writes == ["exclude"]
    await rig.kill()


async def test_a_disk_that_takes_nothing_stops_no_exclusion_but_every_restoration(rig: Rig) -> None:
    rig.committed = False
    rig.enforcement.run()
    fails(rig)
    await rig.until(lambda: rig.state.holds)
    heals(rig)
    await rig.until(lambda: rig.enforcement.shown().counts.get("restore_retry", 0) > 3)
    assert rig.writes == ["exclude"]
    rig.committed = True
    await rig.until(lambda: not rig.state.holds)
    await rig.kill()


async def test_a_fault_in_an_actuator_ends_neither_it_nor_the_daemon() -> None:
    rig = Rig(Cluster(time.time, {"n1": Node()}), options=rig_options(look_every=0.01))

    def fault(call: str) -> None:
        if len(rig.client.calls) < 5:
            raise KeyError(call)

    rig.client.before = fault
    rig.enforcement.run()
    fails(rig)
    await rig.until(lambda: rig.state.holds)
    assert rig.writes == ["exclude"]
    await rig.kill()


async def test_it_stops_in_the_moment_in_which_it_is_woken(rig: Rig) -> None:
    for _ in range(20):
        rig.enforcement.run()
        rig.passes()
        await asyncio.sleep(0.005)
        rig.enforcement.hurry()
        async with asyncio.timeout(PATIENCE) as patience:
            await rig.kill()
        assert not patience.expired()  # it takes whatever cancels it for the end that was asked for


async def test_mode_observe_asks_the_scheduler_how_the_node_is_and_writes_nothing(rig: Rig) -> None:
    rig.options = rig_options(settings=Settings(enforce=False), look_every=0.01)
    rig.begin()
    rig.enforcement.run()
    fails(rig)
    await rig.until(lambda: len(rig.client.calls) > 10)
    shown = rig.enforcement.shown()
    assert (rig.writes, set(rig.client.calls), len(shown.would)) == ([], {"read"}, 1)
    assert shown.counts["exclude_observed"] == 1
    await rig.kill()


# --- operators


async def test_an_order_returns_its_result(rig: Rig) -> None:
    rig.enforcement.run()
    assert await rig.enforcement.orders.exclude("alice", "replacing a fan") == "fake: done"
    assert rig.reason == "gpuwarden: operator by=alice replacing a fan"
    assert ("fake", "operator") in rig.enforcement.shown().excluded
    assert "left as it is: gpuwarden: operator by=alice" in await rig.enforcement.orders.exclude("bob", "its fan again")
    assert await rig.enforcement.orders.restore("alice", rig.verdict) == "fake: done"
    assert "no exclusion of gpuwarden" in await rig.enforcement.orders.restore("alice", rig.verdict)
    rig.cluster.nodes["n1"] = Node(reason="rack move", since=time.time())
    with pytest.raises(ValueError, match="rack move"):
        await rig.enforcement.orders.exclude("alice", "replacing a fan")
    with pytest.raises(ValueError, match="rack move"):
        await rig.enforcement.orders.restore("alice", rig.verdict)
    assert (rig.reason, rig.state.order) == ("rack move", None)
    await rig.kill()


async def test_an_intent_of_an_actuator_that_is_configured_no_more_stops_no_order(rig: Rig) -> None:
    wanted = Intent(act=Act.EXCLUDE, actuator="gone", why=Why.FAILURE, reason=FAILED, key="k", at=rig.clock())
    rig.ledger.append(Event(kind=EventKind.INTENDED, at=wanted.at, boot_id=BOOT, data=write(wanted)))
    rig.begin()
    rig.enforcement.run()
    shown = {each.intent.actuator: each.text for each in rig.enforcement.shown().pending}
    assert "no longer configured" in shown["gone"], "nobody will try it"
    assert await rig.enforcement.orders.exclude("alice", "replacing a fan") == "fake: done"
    await rig.kill()


async def test_what_an_actuator_holds_that_is_configured_no_more_ends_with_a_person_s_restore(rig: Rig) -> None:
    """Otherwise status, heartbeat and metrics would name it for ever, and nobody could end that."""
    held = Hold(actuator="gone", why=Why.FAILURE, reason=FAILED, at=rig.clock(), boot_id=BOOT)
    rig.ledger.append(Event(kind=EventKind.EXCLUDED, at=held.at, boot_id=BOOT, data=write(held)))
    rig.begin()
    rig.enforcement.run()
    rig.passes()
    assert rig.enforcement.shown().excluded == (("gone", "failure"),)
    assert "`gpuwarden restore` forgets it" in rig.enforcement.shown().blocked["gone"]
    answer = await rig.enforcement.orders.restore("alice", rig.verdict)
    assert "gone: forgotten, since it is no longer configured" in answer
    assert (rig.enforcement.shown().excluded, rig.state.holds) == ((), {})
    await rig.kill()
    rig.begin()
    assert rig.state.holds == {}


async def test_a_person_s_restore_goes_before_an_exclusion_that_waits() -> None:
    options = rig_options(Limits(budget=Budget(count=1), recount_after=0.0))
    others = {f"n{n}": Node(reason=FAILED, since=time.time()) for n in range(2, 10)}
    rig = Rig(Cluster(time.time, {"n1": Node(), **others}), options=options)
    rig.enforcement.run()
    fails(rig)
    await rig.until(lambda: rig.enforcement.shown().breaker)
    assert "no exclusion of gpuwarden" in await rig.enforcement.orders.restore("alice", rig.verdict, force=True)
    await rig.until(lambda: not rig.enforcement.shown().breaker)
    assert (rig.writes, rig.state.pending) == ([], {})
    await rig.kill()


async def test_a_person_s_restore_does_not_wait_for_the_second_count() -> None:
    rig = Rig(Cluster(time.time, {"n1": Node()}), options=rig_options(Limits(recount_after=10.0 * PATIENCE)))
    rig.enforcement.run()
    fails(rig)
    await rig.until(lambda: rig.reason)
    await rig.enforcement.orders.restore("alice", rig.verdict, force=True)
    await rig.until(lambda: not rig.state.pending)
    assert (rig.reason, rig.writes) == ("", ["exclude", "restore"])
    await rig.kill()


@pytest.mark.parametrize("restarted", [True, False])
async def test_a_write_that_is_gone_at_the_second_count_is_repeated_if_the_scheduler_was_restarted(
    *, restarted: bool
) -> None:
    """Somebody has lifted it in these seconds if the scheduler runs on. It then stays lifted."""
    rig = Rig(Cluster(time.time, {"n1": Node()}), options=rig_options(settings=replace(SETTINGS, lifted_for=300.0)))

    def gone(call: str) -> None:
        if call == "fleet_count" and rig.client.calls.count("apply") == 1:
            rig.cluster.nodes["n1"] = Node(started=time.time() if restarted else 0.0)

    rig.client.before = gone
    rig.enforcement.run()
    fails(rig)
    await rig.until(lambda: kinds(rig)[EventKind.EXCLUDED])
    if restarted:
        assert (rig.reason, rig.writes, kinds(rig)[EventKind.LIFTED]) == (FAILED, ["exclude", "exclude"], 0)
    else:
        await rig.until(lambda: kinds(rig)[EventKind.LIFTED])
        assert (rig.reason, rig.writes) == ("", ["exclude"])
    await rig.kill()


async def test_an_actuator_that_never_comes_back_counts_as_a_scheduler_that_does_not_answer(rig: Rig) -> None:
    async def never() -> NodeState:
        await asyncio.Event().wait()
        raise AssertionError

    async def committed() -> bool:
        return True

    rig.client.read = never  # type: ignore[method-assign]
    box = Reconciler(
        rig.client, committed=committed, wanted=lambda _: True, on_read=lambda: None, limits=Limits(backstop=0.05),
        clock=host_clock,
    )  # fmt: skip
    await box.read()
    assert box.node_state is not None
    assert (box.node_state.reachable, box.node_state.error) == (False, "fake has not finished within 0.05 s")


# --- the breaker


async def test_a_hundred_nodes_that_fail_together_end_within_the_budget() -> None:
    """The scheduler's second lasts 20 ms here."""
    budget = Budget(percent=10, count=1_000)
    limits = Limits(budget=budget, recount_after=0.1, first=0.01, most=0.1, breaker_first=1.0, breaker_most=5.0)
    options = rig_options(limits, look_every=10.0)
    cluster = Cluster(lambda: 50.0 * time.monotonic(), {f"n{n:03}": Node() for n in range(100)}, spread=False)
    rigs = [Rig(cluster, name, options=options) for name in cluster.nodes]
    for rig in rigs:
        rig.enforcement.run()
        fails(rig)

    def out() -> int:
        return sum(bool(node.reason) for node in cluster.nodes.values())

    await wait(lambda: all(rig.state.holds or rig.enforcement.shown().breaker for rig in rigs) and not running(rigs))
    assert 1 <= out() <= 10
    assert sum(act == "exclude" for _, act, _ in cluster.writes) > 10  # some had to step back
    held = {rig.node for rig in rigs if rig.state.holds}
    assert held == {name for name, node in cluster.nodes.items() if node.reason}
    for rig in rigs:
        await rig.kill()


def running(rigs: list[Rig]) -> bool:
    """Return True if somebody is between its write and what came of it."""
    return any(bool(rig.reason) != bool(rig.state.holds) for rig in rigs)


async def wait(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_node_that_stepped_back_comes_again_when_there_is_room() -> None:
    limits = Limits(
        budget=Budget(count=1), recount_after=0.0, first=0.01, most=0.02, breaker_first=0.01, breaker_most=0.02
    )
    options = rig_options(limits)
    cluster = Cluster(time.time, {"n1": Node(), "n2": Node(reason=FAILED, since=time.time() - 10.0)})
    rig = Rig(cluster, options=options)
    rig.enforcement.run()
    fails(rig)
    await rig.until(lambda: rig.enforcement.shown().counts.get("exclude_retry", 0) > 3)
    assert (rig.writes, bool(rig.enforcement.shown().breaker)) == ([], True)
    cluster.restore("n2")
    await rig.until(lambda: rig.state.holds)
    assert (rig.reason, rig.enforcement.shown().breaker) == (FAILED, "")
    await rig.kill()


def budget_of_one(**more: float) -> Limits:
    return replace(LIMITS, budget=Budget(count=1), **more)


async def test_a_node_that_the_breaker_defers_is_not_hurried(rig: Rig) -> None:
    """Slurm calls all its health checks at once: the nodes of a deferred fleet would all count at the same time."""
    rig.cluster.nodes |= {f"n{n}": Node(reason=FAILED, since=time.time()) for n in range(2, 10)}
    rig.options = rig_options(budget_of_one(breaker_first=10.0 * PATIENCE, breaker_most=10.0 * PATIENCE))
    rig.begin()
    rig.enforcement.run()
    fails(rig)
    await rig.until(lambda: rig.enforcement.shown().breaker)
    for _ in range(50):
        rig.enforcement.hurry()
        rig.step()
        await asyncio.sleep(0.001)
    assert rig.client.calls.count("fleet_count") == 1
    await rig.kill()


async def test_an_operator_s_exclusion_is_not_held_back_by_the_breaker(rig: Rig) -> None:
    rig.cluster.nodes |= {f"n{n}": Node(reason=FAILED, since=time.time()) for n in range(2, 4)}
    rig.options = rig_options(budget_of_one())
    rig.begin()
    rig.enforcement.run()
    fails(rig)
    await rig.until(lambda: rig.enforcement.shown().breaker)
    assert await rig.enforcement.orders.exclude("alice", "waits for parts") == "fake: done"
    assert rig.reason == "gpuwarden: operator by=alice waits for parts"
    await rig.until(lambda: not rig.enforcement.shown().breaker)
    await rig.kill()


async def test_a_wider_breaker_holds_from_the_next_count_on(rig: Rig) -> None:
    """After a reload the wanted intent is still the same."""
    rig.cluster.nodes |= {f"n{n}": Node(reason=FAILED, since=time.time()) for n in range(2, 4)}
    rig.options = rig_options(budget_of_one())
    rig.begin()
    rig.enforcement.run()
    fails(rig)
    await rig.until(lambda: rig.enforcement.shown().counts.get("exclude_retry", 0) > 3)
    (intent,) = rig.state.pending.values()
    rig.enforcement.adopt(rig_options(LIMITS))
    await rig.until(lambda: rig.state.holds)
    assert (rig.reason, rig.enforcement.shown().breaker) == (FAILED, "")
    assert [e.data["key"] for e in rig.ledger if e.kind == EventKind.OUTCOME] == [intent.key]
    await rig.kill()


async def test_a_step_back_that_failed_is_repeated_soon_and_not_after_the_breaker_s_pause(rig: Rig) -> None:
    rig.cluster.nodes |= {f"n{n}": Node() for n in range(2, 10)}
    rig.options = rig_options(budget_of_one(breaker_first=10.0 * PATIENCE, breaker_most=10.0 * PATIENCE))
    rig.begin()
    failed: list[str] = []

    def others_were_first(call: str) -> None:
        rig.cluster.nodes["n2"] = Node(reason=FAILED, since=1.0) if rig.reason else Node()

    def no_answer(call: str) -> None:
        if call == "apply" and rig.reason and not failed:
            failed.append(call)
            raise ActuatorUnavailable("no answer within 10 s")

    rig.client.after, rig.client.before = others_were_first, no_answer
    rig.cluster.nodes["n3"] = Node(reason=FAILED, since=2.0)
    rig.enforcement.run()
    fails(rig)
    await rig.until(lambda: "rolled back" in rig.enforcement.shown().pending[0].text)
    assert (failed, rig.writes) == (["apply"], ["exclude", "restore"])
    await rig.kill()


async def test_terminations_are_neither_counted_nor_held_back(rig: Rig) -> None:
    rig.cluster.nodes |= {f"n{n}": Node(reason=FAILED, since=time.time()) for n in range(2, 50)}
    rig.options = rig_options(Limits(budget=Budget(count=1)))
    rig.begin()
    rig.enforcement.run()
    assert "600 s before it, and the node is excluded" in rig.enforcement.orders.announce(7_200.0, "spot", "root")
    assert "at once, and the node is excluded" in rig.enforcement.orders.announce(120.0, "spot", "root")
    await rig.until(lambda: rig.state.holds)
    assert "termination" in rig.reason
    assert "fleet_count" not in rig.client.calls
    await rig.kill()


async def test_a_shutdown_that_a_scheduler_ordered_is_no_end_of_the_machine(rig: Rig) -> None:
    for node, notice_count in ((Node(flags=frozenset({Flag.REBOOT})), 0), (Node(), 1)):
        await _goes_down(rig, node)
        assert len(rig.state.notices) == notice_count
        await rig.kill()


async def test_a_shutdown_while_a_reboot_waits_for_jobs_is_an_end_of_the_machine(rig: Rig) -> None:
    await _goes_down(rig, Node(flags=frozenset({Flag.REBOOT}), empty=False))
    assert [notice.kind for notice in rig.state.notices.values()] == ["shutdown"]
    await rig.kill()


async def test_a_shutdown_is_the_schedulers_if_the_last_job_has_ended_since_its_last_read(rig: Rig) -> None:
    waits = Node(flags=frozenset({Flag.REBOOT}), empty=False)
    await _goes_down(rig, waits, then=replace(waits, empty=True))
    assert not rig.state.notices
    await rig.kill()


async def test_what_others_excluded_stays_excluded_while_their_scheduler_does_not_answer(rig: Rig) -> None:
    rig.cluster.nodes["n1"] = Node(reason="fan", since=1.0, flags=frozenset({Flag.MAINTENANCE}))
    rig.begin()
    rig.enforcement.run()
    by = (("fake", "foreign"), ("fake", "maintenance"))
    await rig.until(lambda: rig.enforcement.shown().excluded == by)
    rig.client.away = ActuatorUnavailable("slurmctld does not answer")
    await rig.until(lambda: not rig.enforcement.shown().node_states["fake"].reachable)
    assert rig.enforcement.shown().excluded == by
    rig.client.away = None
    rig.cluster.nodes["n1"] = Node()
    await rig.until(lambda: rig.enforcement.shown().node_states["fake"].reachable)
    assert not rig.enforcement.shown().excluded
    await rig.kill()


async def test_what_others_excluded_is_known_to_a_daemon_that_starts_while_their_scheduler_is_away(rig: Rig) -> None:
    rig.cluster.nodes["n1"] = Node(reason="fan", since=1.0)

    async def starts(*, reads: bool) -> tuple[tuple[str, str], ...]:
        rig.begin()
        rig.client.away = None if reads else ActuatorUnavailable("slurmctld does not answer")
        rig.enforcement.run()
        await rig.until(lambda: any(state.reachable is reads for state in rig.enforcement.shown().node_states.values()))
        rig.step()
        await rig.kill()
        return rig.enforcement.shown().excluded

    assert [await starts(reads=reads) for reads in (False, True, False)] == [
        (),
        (("fake", "foreign"),),
        (("fake", "foreign"),),
    ]
    rig.cluster.nodes["n1"] = Node()
    assert [await starts(reads=reads) for reads in (False, True, False)] == [(("fake", "foreign"),), (), ()]


async def _goes_down(rig: Rig, node: Node, then: Node | None = None) -> None:
    """A shutdown is announced once `node` was read, which is `then` by now. Returns once it is known whose it is."""
    rig.cluster.nodes["n1"] = node
    rig.begin()
    rig.enforcement.run()
    await rig.until(lambda: rig.enforcement.shown().node_states)
    rig.cluster.nodes["n1"] = then or node
    rig.enforcement.announced(
        "shutdown", [Notice(source="shutdown", kind="shutdown", id="logind:x", at=rig.clock(), boot_id=BOOT)]
    )
    await rig.until(lambda: not rig.enforcement._undecided)
