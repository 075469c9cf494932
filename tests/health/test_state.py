"""The judge's memory is a replay of the events: cut anywhere, restarted or checkpointed, it ends the same."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.features.active_test.judging.lease import Lease, begun, ended
from gpuwarden.features.active_test.judging.submission import submitted
from gpuwarden.features.active_test.memory import memory_of
from gpuwarden.health.checkpoint import checkpoint
from gpuwarden.health.conditions import condition
from gpuwarden.health.model import NODE, Event, EventKind, Evidence, Key, Subject, gpu
from gpuwarden.health.state import State, fold
from gpuwarden.health.windows import KEPT, Series
from gpuwarden_collectors.active_test.facts import Obstacle
from gpuwarden_collectors.active_test.level import Level
from gpuwarden_collectors.base import PassOutcome
from gpuwarden_collectors.event_facts import GpuResetEvent, LogOrigin
from gpuwarden_collectors.facts import GpuAnswer, Stamp
from support.active_tests import healthy, off, uuid, wrong_result, wrong_words
from support.hosts import Host, slot
from support.whole_node import durable


def _numbered(host: Host, number: int) -> None:
    """A line of the kernel log; with a small number one that was read before."""
    origin = LogOrigin(boot_id=host.boot_id, sequence=number)
    host.step(replace(host.xid(number % 2, 95), origin=origin))


def _acknowledged(host: Host, number: int) -> None:
    if host.findings:
        with suppress(ValueError):
            host.acknowledge(str(host.findings[number % len(host.findings)].key))


def _days(host: Host, number: int) -> None:
    host.days(number / 4)
    host.step()


def _away(host: Host, number: int) -> None:
    """NVML misses a GPU for a while; it comes back having counted on, or reset, or as another board."""
    gone = host.gpus.pop(0)
    host.run(5.0 * (number % 4))
    host.gpus[0] = gone
    if number % 3 == 0:
        host.change(0, energy_mj=number, pcie_replays=0)
    elif number % 10 == 1:
        host.gpus[0] = replace(gone, uuid=f"GPU-new-{number}")


def _flapping(host: Host, number: int) -> None:
    for _ in range(number % 7):
        host.change(1, remapped_rows_failure=1)
        host.run(5.0)
        host.change(1, remapped_rows_failure=0)
        host.run(20.0)


def _tested(host: Host, number: int) -> None:
    """Hand in one test of a GPU; some of them end a finding of an earlier test."""
    test = (
        healthy(number % 2), wrong_words(healthy(number % 2), (0, number)), wrong_result(healthy(number % 2), (number, 1)),
        off(healthy(number % 2), (number, 20, 0.01)), healthy(number % 2, tuple(Level)[number % 3]),
        replace(healthy(number % 2), obstacle=Obstacle.BUSY),
    )[number % 6]  # fmt: skip
    _, events = submitted(host.state, [replace(test, started=host.now)], host.now, host.boot_id)
    host.take(*events)


def _lease(host: Host, number: int) -> None:
    """A test begins, or more is known of it and its process gets an Xid; or the one that runs ends."""
    until = Stamp(host.now.boottime + number, host.now.wall + number)
    lease = Lease(
        at=host.now,
        boot_id=host.boot_id,
        name=f"{number % 3:016x}",
        gpus=uuid(number % 2),
        level=Level.QUICK,
        until=until,
        workers="1234",
    )
    running_lease = memory_of(host.state).lease
    if number % 4 == 3 and running_lease is not None:
        host.take(ended(running_lease, "over", host.now))
    else:
        host.take(begun(lease))
        host.step(replace(host.xid(number % 2, 31), pid=1234))


ACTIONS: dict[str, Callable[[Host, int], object]] = {
    "wait": lambda host, n: host.run(5.0 * n),
    "days": _days,
    "xid": lambda host, n: host.step(host.xid(n % 2, (79, 95, 31, 94, 119, 48)[n % 6])),
    "line": _numbered,
    "acknowledge": _acknowledged,
    "work": lambda host, n: host.change(0, energy_mj=1_000 + n, pcie_replays=1 + n),
    "away": _away,
    "asked": lambda host, n: host.change(0, recovery_action=n % 3),
    "flap": _flapping,
    "exclude": lambda host, n: host.record_event((EventKind.EXCLUDED, EventKind.RESTORED, EventKind.REQUEUED)[n % 3]),
    "reset": lambda host, n: host.step(GpuResetEvent(at=host.now, slot=slot(n % 2), ok=True)),
    "remap": lambda host, n: host.change(n % 2, remapped_rows_failure=n % 3 // 2),
    "rows": lambda host, n: host.change(n % 2, remapped_rows_correctable=n),
    "set": lambda host, n: host.change(n % 2, ecc_mode=n % 3 // 2, power_limit_mw=700_000 - 100_000 * (n % 4 // 3)),
    "slow": lambda host, n: host.change(n % 2, utilization_gpu=100, clock_sm_mhz=(1755, 400)[n % 2]),
    "narrow": lambda host, n: host.change(n % 2, pcie_width=(16, 8)[n % 2]),
    "lost": lambda host, n: host.answer(n % 2, GpuAnswer.LOST if n % 3 else GpuAnswer.OK),
    "off_bus": lambda host, n: host.devices.update({0: replace(host.devices[0], responds=bool(n % 3))}),
    "blind": lambda host, n: host.step(nvml=host.nvml(PassOutcome.FAILED)),
    "reboot": lambda host, n: host.reboot(),
    "test": _tested,
    "lease": _lease,
}
scripts = st.lists(st.tuples(st.sampled_from(sorted(ACTIONS)), st.integers(0, 40)), max_size=12)


def play(host: Host, script: list[tuple[str, int]]) -> None:
    for action, number in script:
        ACTIONS[action](host, number)


def outcome(host: Host) -> object:
    host.run(60)
    assert host.last is not None
    findings = [(str(f.key), f.severity, f.advice, f.latched, f.first_seen) for f in host.findings]
    return host.health, findings, sorted(host.last.verdict.lemons, key=str)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(before=scripts, after=scripts)
def test_a_restart_at_any_point_of_any_story_leads_to_the_same_end(
    before: list[tuple[str, int]], after: list[tuple[str, int]]
) -> None:
    through, cut = Host(2), Host(2)
    for host in (through, cut):
        host.step()
        play(host, before)
    cut.restart_daemon()
    assert durable(cut.state) == durable(through.state)
    for host in (through, cut):
        host.run(5)
        play(host, after)
    assert outcome(cut) == outcome(through)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(script=scripts)
def test_a_checkpoint_folds_to_the_state_it_was_made_of(script: list[tuple[str, int]]) -> None:
    host = Host(2)
    host.step()
    play(host, script)
    state = State()
    for event in checkpoint(host.state, host.now):
        state = fold(state, event)
    assert durable(state) == durable(host.state)
    again = Host(2)
    again.__dict__.update(host.__dict__, state=state, gpus=dict(host.gpus), devices=dict(host.devices), ledger=[])
    for twin in (host, again):
        twin.uptime += 1
    assert outcome(again) == outcome(host)


@given(values=st.lists(st.integers(0, 10**12), min_size=1, max_size=600))
def test_growth_is_never_negative_whatever_a_counter_does(values: list[int]) -> None:
    series = Series.start(0.0, values[0])
    for n, value in enumerate(values[1:], start=1):
        series = series.add(5.0 * n, value)
        grown, seconds = series.growth(600.0)
        assert grown >= 0
        assert 0.0 <= seconds <= 620.0
    assert len(series.samples) <= KEPT


def test_a_counter_that_restarts_counts_from_zero() -> None:
    series = Series.start(0.0, 100).add(20.0, 150).add(40.0, 3)
    assert series.growth(600.0) == (53, 40.0)


def test_keys_and_subjects_survive_their_spelling() -> None:
    for key in (
        Key("xid", gpu("0000:4e:00.0"), "79"),
        Key("nvlink_down", Subject("link", "0000:4e:00.0", "17")),
        Key("driver_unresponsive", NODE),
        Key("collector_failed", NODE, "pci"),
        Key("disk_full", Subject("mount", part="/data/scratch")),
        Key("infiniband_down", Subject("port", part="mlx5_0/1")),
    ):
        assert Key.parse(str(key)) == key


AT = Stamp(100.0, 1_700_000_100.0)
XID = Key("xid", gpu("0000:4e:00.0"), "94")


def _folded(kind: EventKind, data: Evidence) -> State:
    return fold(State(boot_id="b"), Event(kind=kind, at=AT, boot_id="b", key=XID, data=data))


def test_every_key_of_a_finding_that_is_not_of_its_track_is_evidence() -> None:
    evidence: Evidence = {"uuid": "GPU-1", "of a newer version": 1, "latched": None}
    data: Evidence = {
        **evidence, "count": 2, "severity": "failure", "advice": "reboot", "latch": "reset", "first_boottime": 5,
        "first_wall": 6.0,
    }  # fmt: skip
    track = _folded(EventKind.RAISED, data).tracks[XID]
    assert track.evidence == evidence
    assert (track.count, track.severity, track.advice, track.latch) == (2, "failure", "reboot", "reset")
    assert track.first_seen == Stamp(5.0, 6.0)


def test_a_value_that_this_version_does_not_know_is_that_of_the_condition() -> None:
    row = condition("xid")
    data: Evidence = {
        "count": "2", "severity": "doom", "advice": 3, "latch": None, "first_boottime": float("nan"), "first_wall": 6.0,
    }  # fmt: skip
    track = _folded(EventKind.RAISED, data).tracks[XID]
    assert row is not None
    assert (track.count, track.severity, track.advice, track.latch) == (1, row.severity, row.advice, row.latch)
    assert (track.first_seen, track.evidence) == (AT, {})


def test_a_truth_value_is_no_number_of_lines() -> None:
    record = _folded(EventKind.XID, {"count": False, "text": "Xid 94", "sequence": True}).records[XID]
    assert (record.count, record.sequence, record.text) == (1, -1, "Xid 94")
