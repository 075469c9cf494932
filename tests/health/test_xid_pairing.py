"""One Xid is counted once, however many of the kernel log, NVML and DCGM report it, and in whatever order."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.health.model import EventKind, Health, Key, gpu
from gpuwarden_collectors.event_facts import Source, XidEvent
from support.hosts import Host, slot

LATE = {Source.KERNEL_LOG: 0.5, Source.NVML: 1.0, Source.DCGM: 12.0}  # seconds, at most


def count(host: Host, number: int = 48) -> int:
    record = host.state.records.get(Key("xid", gpu(slot(0)), str(number)))
    return 0 if record is None else record.count


def report(host: Host, source: Source, number: int = 48) -> XidEvent:
    event = host.xid(0, number, source=source)
    return event if source is Source.KERNEL_LOG else replace(event, text="")


@pytest.mark.parametrize("order", [(a, b, c) for a in Source for b in Source for c in Source if len({a, b, c}) == 3])
def test_three_sources_in_any_order_report_one_xid(order: tuple[Source, ...]) -> None:
    host = Host(1)
    for source in order:
        host.step(report(host, source))
        host.uptime += 1
    assert count(host) == 1
    assert [f.count for f in host.findings] == [1]


def test_the_count_is_that_of_the_source_that_reported_most() -> None:
    host = Host(1)
    host.step(*[report(host, s) for s in (Source.NVML, Source.NVML, Source.KERNEL_LOG, Source.DCGM)])
    assert count(host) == 2
    host.step(report(host, Source.KERNEL_LOG), report(host, Source.KERNEL_LOG))
    assert count(host) == 3


@pytest.mark.parametrize(("source", "seconds", "paired"), [("nvml", 4, True), ("nvml", 8, False), ("dcgm", 25, True), ("dcgm", 40, False)])  # fmt: skip
def test_reports_are_of_one_xid_for_as_long_as_the_slower_source_may_take(
    source: str, seconds: int, paired: bool
) -> None:
    host = Host(1)
    host.step(report(host, Source.KERNEL_LOG))
    host.uptime += seconds
    host.step(report(host, Source(source)))
    assert count(host) == (1 if paired else 2)


def test_a_second_report_of_the_same_source_is_a_second_xid() -> None:
    for source in Source:
        host = Host(1)
        host.step(report(host, source))
        host.uptime += 1
        host.step(report(host, source))
        assert count(host) == 2


def test_the_line_of_an_xid_that_came_as_a_number_is_kept_and_not_counted() -> None:
    host = Host(1)
    host.step(report(host, Source.NVML))
    host.step(report(host, Source.DCGM))
    host.step(report(host, Source.KERNEL_LOG))
    host.step(report(host, Source.NVML))  # another one
    record = host.state.records[Key("xid", gpu(slot(0)), "48")]
    assert (record.count, record.batch) == (2, 1)
    assert [(e.data["count"], e.data["text"]) for e in host.ledger if e.kind == EventKind.XID] == [
        (1, ""),
        (0, "Xid 48"),
        (1, ""),
    ]


def test_the_kernels_line_replaces_dcgms_report_of_it() -> None:
    host = Host(1)
    host.step(replace(host.xid(0, 95, source=Source.DCGM), text="Xid 95, as DCGM saw it (field 230)"))
    host.uptime += 2
    host.step(replace(host.xid(0, 95), text="Uncontained: LTC TAG (0x2,0x0)"))
    assert host.findings[0].evidence["text"] == "Uncontained: LTC TAG (0x2,0x0)"
    assert count(host, 95) == 1


def test_a_storm_that_all_three_sources_report_is_counted_once_in_little_memory() -> None:
    host = Host(1)
    for _ in range(20):
        host.step(*[report(host, Source.KERNEL_LOG)] * 500, collect=False)
        host.step(*[report(host, source) for source in (Source.NVML, Source.DCGM)] * 500, collect=False)
        host.uptime += 1
    assert count(host) == 10_000
    assert len(host.state.moments.unpaired) <= 6


@settings(deadline=None, max_examples=60)
@given(
    gaps=st.lists(st.floats(40.0, 100.0), min_size=1, max_size=6),
    sources=st.sets(st.sampled_from(list(Source)), min_size=1),
    seed=st.integers(0, 2**32),
)
def test_xids_well_apart_are_counted_exactly_whatever_source_reports_them(
    gaps: list[float], sources: set[Source], seed: int
) -> None:
    dice, host = Random(seed), Host(1)
    host.step()
    at, reports = host.uptime, []
    for gap in gaps:
        at += gap
        reports += [(at + dice.uniform(0, LATE[source]), source) for source in sources]
    for when, source in sorted(reports, key=lambda each: each[0]):
        host.uptime = when
        host.step(report(host, source, 43), collect=False)
    assert count(host, 43) == len(gaps)
    host.step()
    assert host.health is Health.HEALTHY
