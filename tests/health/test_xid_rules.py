"""Rules about Xids that need more than the number: what came with it, how often, what its line contains, what the site sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.health.checkpoint import checkpoint
from gpuwarden.health.model import Advice, EventKind, Finding, Health, Key, Severity, gpu
from gpuwarden.health.state import State, fold
from gpuwarden.health.view import Rules, XidRule
from gpuwarden.health.xid.bursts import BURSTS_KEPT, PIDS_KEPT, SIGNS_KEPT, Burst, as_text, extended, from_text
from gpuwarden_collectors.event_facts import GpuResetEvent, HostEvent, Source, SxidEvent, XidEvent
from gpuwarden_collectors.facts import NvmlFacts
from support.hosts import Host, slot
from support.quick import first_quick

W, F = Severity.WARNING, Severity.FAILURE
LINK_DOWN = "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x002001c6 0x00000000 0x00000000 0x00000000)"  # before R575
BIT_ERRORS = "NETIR_BER_EVENT Nonfatal XC0 i0 Link 08 (0x00000226 0x00000001 0x00000000 0x00000000)"
LINK_DOWN_575 = "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x00200011 0x00000000 0x00000000 0x00000000)"


def lines(host: Host, index: int, number: int, text: str = "", pid: int | None = None) -> XidEvent:
    return replace(host.xid(index, number), text=text or f"Xid {number}", pid=pid)


def reported(host: Host) -> dict[str, Severity]:
    return {f"{f.key.code}.{f.key.detail}".rstrip("."): f.severity for f in host.findings}


def finding(host: Host, code: str, detail: str = "") -> Finding:
    return next(f for f in host.findings if (f.key.code, f.key.detail) == (code, detail))


def exception(host: Host, index: int, *units: tuple[int, int]) -> list[XidEvent]:
    return [
        lines(host, index, 13, f"Graphics SM Warp Exception on (GPC {gpc}, TPC {tpc}, SM 0): Out Of Range Address")
        for gpc, tpc in units
    ]


# --- 45: alone or not


def test_a_cleanup_without_any_cause_is_a_warning() -> None:
    host = Host(8)
    host.step(lines(host, 3, 45, "Ch 00000008"))
    assert reported(host) == {"xid.45": W}
    assert finding(host, "xid", "45").advice is Advice.RESTART_SERVICE


@pytest.mark.parametrize(
    ("text", "pid"), [("Ch 00000001 caused by previous Xid 149", None), ("Ch 00000008", 4711)]
)  # fmt: skip
def test_a_cleanup_that_names_its_cause_or_the_process_that_was_killed_is_only_recorded(
    text: str, pid: int | None
) -> None:
    host = Host(8)
    host.step(lines(host, 3, 45, text, pid))
    host.run(20)
    assert host.health is Health.HEALTHY
    assert host.state.records[Key("xid", gpu(slot(3)), "45")].count == 1


@pytest.mark.parametrize("cause", ["another GPU's Xid", "a switch", "a reset"])
def test_a_cleanup_after_an_error_anywhere_on_the_node_is_a_consequence(cause: str) -> None:
    host = Host(8)
    host.step()
    causes: dict[str, HostEvent] = {
        "another GPU's Xid": host.xid(0, 43),
        "a switch": SxidEvent(at=host.now, slot="0000:05:00.0", sxid=22013, fatal=False),
        "a reset": GpuResetEvent(at=host.now, slot=slot(3), ok=True),
    }
    host.step(causes[cause])
    host.uptime += 30
    host.step(lines(host, 3, 45))
    assert "xid.45" not in reported(host)


def test_a_cleanup_known_only_as_a_number_is_only_recorded() -> None:
    host = Host(8)
    host.step(host.xid(3, 45, source=Source.NVML))
    host.run(20)
    assert host.health is Health.HEALTHY


# --- 48 and what comes with it


def test_what_comes_with_a_double_bit_error_is_a_detail_of_it() -> None:
    host = Host(8)
    host.step(*(host.xid(3, number) for number in (48, 171, 63, 94)))
    assert reported(host) == {"xid.48": F}
    assert finding(host, "xid", "48").evidence["with"] == "63 94 171"


def test_an_uncontained_error_and_a_failed_remapping_are_failures_beside_it() -> None:
    host = Host(8)
    host.step(*(host.xid(3, number) for number in (48, 64, 95)))
    assert reported(host) == {"xid.48": F, "xid.64": F, "xid.95": F}


def test_details_of_another_gpu_or_of_another_hour_are_their_own() -> None:
    host = Host(8)
    host.step(host.xid(3, 48), host.xid(4, 63))
    assert reported(host) == {"xid.48": F, "xid.63": W}
    later = Host(8)
    later.step(later.xid(3, 48))
    later.run(60)
    later.step(later.xid(3, 94))
    assert reported(later) == {"xid.48": F, "xid.94": W}


# --- repeats


@pytest.mark.slow
def test_an_exception_from_one_place_that_comes_back_after_an_hour_is_a_warning() -> None:
    host = Host(8)
    host.step(*exception(host, 3, (7, 2)) * 20)
    host.run(4000)
    assert host.health is Health.HEALTHY
    host.step(*exception(host, 3, (7, 2)) * 20)
    assert reported(host) == {"xid.13": W}
    repeated_xid = finding(host, "xid", "13")
    assert (repeated_xid.advice, repeated_xid.evidence["place"]) == (Advice.INSPECT_HARDWARE, "GPC 7 TPC 2")


@pytest.mark.slow
@pytest.mark.parametrize("second", [[(7, 3)], [(7, 2), (0, 1)]])
def test_exceptions_from_several_units_are_the_applications(second: list[tuple[int, int]]) -> None:
    host = Host(8)
    host.step(*exception(host, 3, (7, 2)))
    host.run(4000)
    host.step(*exception(host, 3, *second))
    assert host.health is Health.HEALTHY


def test_a_failing_job_that_is_submitted_again_within_minutes_is_no_repeat() -> None:
    host = Host(8)
    for _ in range(3):
        host.step(*exception(host, 3, (0, 0)), host.xid(3, 43))
        host.run(600, every=60)
    assert host.health is Health.HEALTHY


def test_exceptions_on_several_gpus_are_the_applications() -> None:
    host = Host(8)
    for _ in range(3):
        host.step(*exception(host, 3, (7, 2)), *exception(host, 5, (7, 2)))
        host.run(4000, every=60)
    assert host.health is Health.HEALTHY


LOCATIONS = {
    13: "Graphics SM Warp Exception on (GPC 0, TPC 1, SM 0): Out Of Range Address",
    31: "channel 0x0000000a, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC0 GPCCLIENT_T1_8 faulted @ 0x0_00000000. "
    "Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE",
}  # the second as an H100 with driver 580.159.04 printed it


def submitted(host: Host, number: int, text: str, *, pids: list[int | None], pause: float = 4000.0) -> None:
    """Jobs on GPU 0, one after the other, each of which ends with this Xid."""
    for pid in pids:
        host.step(*[lines(host, 0, number, text, pid)] * 5)
        host.run(pause, every=60)
    host.step()


@pytest.mark.parametrize("number", first_quick(6, [13, 31]))
@pytest.mark.parametrize(
    ("gpus", "pids", "pause", "is_reported"),
    [
        (8, [101, 102], 4000.0, True),
        (2, [101, 102], 4000.0, True),
        (2, [None, None], 4000.0, True),  # pid='<unknown>', which drivers print when the process is gone already
        (2, [101, 102, 103, 104, 105], 300.0, True),
        (2, [101, 102, 103, 104], 300.0, False),
        (8, [101, 101, 101], 4000.0, False),  # one process, which lives on
        (8, [101] * 6, 300.0, False),
        (1, [101, 102, 103], 4000.0, False),
        (1, [101, 102, 103, 104, 105, 106], 300.0, False),
    ],
)
def test_one_place_of_a_gpu_warns_when_several_jobs_fail_there_and_there_is_another_gpu_to_compare_with(
    number: int, gpus: int, pids: list[int | None], pause: float, is_reported: bool
) -> None:
    host = Host(gpus)
    submitted(host, number, LOCATIONS[number], pids=pids, pause=pause)
    raised = [event for event in host.ledger if event.kind == EventKind.RAISED]
    assert {str(event.key) for event in raised} == ({f"xid.{number}@gpu/{slot(0)}"} if is_reported else set())
    if is_reported:
        assert (raised[0].data["severity"], raised[0].data["advice"]) == ("warning", "inspect_hardware")
        assert raised[0].data["jobs"] == (2 if pause > 3600 else 5)


def test_page_faults_that_name_no_gpc_have_no_place() -> None:
    """Older drivers print the client alone, of which there is one in each GPC (akash-network/support#244)."""
    host = Host(8)
    text = "Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_8 faulted @ 0x73ac_1c000000."
    submitted(host, 31, text, pids=[101, 102, 103])
    assert host.health is Health.HEALTHY


@pytest.mark.parametrize("cut", [Host.restart_daemon, Host.checkpointed])
def test_jobs_that_failed_before_a_restart_are_remembered(cut: Callable[[Host], None]) -> None:
    host = Host(8)
    submitted(host, 31, LOCATIONS[31], pids=[101])
    cut(host)
    submitted(host, 31, LOCATIONS[31], pids=[101])
    cut(host)
    assert host.health is Health.HEALTHY
    host.step(lines(host, 0, 31, LOCATIONS[31], 102))
    assert reported(host) == {"xid.31": W}


def test_bursts_of_a_ledger_that_knows_no_pids_are_read() -> None:
    assert from_text("1.0 2.0;GPC 0 T1_8|4000.0 4000.5") == (Burst(1.0, 2.0, ("GPC 0 T1_8",)), Burst(4000.0, 4000.5))


@pytest.mark.parametrize("number", [39, 69, 102])
def test_what_an_application_can_cause_is_a_warning_at_the_fifth_burst_of_a_day_on_one_gpu(number: int) -> None:
    host = Host(8)
    for burst in range(5):
        assert host.last is None or host.health is Health.HEALTHY, burst
        host.step(*[host.xid(3, number)] * 50)
        host.run(300, every=60)
    assert reported(host) == {f"xid.{number}": W}
    assert finding(host, "xid", str(number)).evidence["bursts_within_a_day"] == 5


@pytest.mark.parametrize("number", [13, 31, 37, 43, 66])
def test_what_means_nothing_however_often_it_comes_stays_a_record(number: int) -> None:
    host = Host(8)
    for _ in range(12):
        host.step(host.xid(3, number))
        host.run(300, every=60)
    assert host.health is Health.HEALTHY


def test_page_faults_all_over_the_node_are_the_applications() -> None:
    host = Host(8)
    for burst in range(12):
        host.step(*(lines(host, each % 4, 31, LOCATIONS[31], burst) for each in (burst, burst + 1)))
        host.run(300, every=60)
    assert host.health is Health.HEALTHY


def test_bursts_of_yesterday_are_no_repeat() -> None:
    host = Host(8)
    for _ in range(6):
        host.step(host.xid(3, 69))
        host.uptime += 7 * 3600
    assert host.health is Health.HEALTHY


def test_an_nvlink_error_warns_and_the_second_burst_of_a_day_is_a_failure_until_a_reset() -> None:
    host = Host(8)
    host.step(*[host.xid(3, 74)] * 3)
    assert reported(host) == {"xid.74": W}
    host.run(300)
    host.step(host.xid(3, 74))
    assert reported(host) == {"xid.74": F}
    host.run(2 * 3600, every=60)
    assert [(f.severity, f.latched) for f in host.findings] == [(F, True)]
    host.step(GpuResetEvent(at=host.now, slot=slot(3), ok=True), collect=False)
    host.run(10)
    assert host.health is Health.HEALTHY


# --- 162 cancels 163


@pytest.mark.parametrize("together", [True, False])
def test_power_smoothing_that_works_again_ends_its_warning_at_once(together: bool) -> None:
    host = Host(8)
    if together:
        host.step(host.xid(3, 163), host.xid(3, 162), host.xid(4, 163))
    else:
        host.step(host.xid(3, 163), host.xid(4, 163))
        assert reported(host) == {"xid.163": W}
        host.run(60)
        host.step(host.xid(3, 162))
    host.run(10)
    assert [f.key.subject for f in host.findings] == [gpu(slot(4))]
    host.restart_daemon()
    host.run(10)
    assert [f.key.subject for f in host.findings] == [gpu(slot(4))]
    host.step(host.xid(3, 163))
    assert len(host.findings) == 2


# --- 144 to 150


def test_an_nvlink5_line_is_judged_by_its_content() -> None:
    host = Host(8)
    host.step(lines(host, 3, 149, LINK_DOWN), lines(host, 4, 149, BIT_ERRORS))
    assert [(f.key.subject, f.severity, f.advice) for f in host.findings] == [(gpu(slot(3)), F, Advice.RESET_GPU)]
    assert finding(host, "xid", "149").evidence["then"] == "look at the signal integrity of the link"


def test_the_worst_line_of_a_burst_counts_whatever_comes_after_it() -> None:
    host = Host(8)
    host.step(lines(host, 3, 149, LINK_DOWN), *[lines(host, 3, 149, BIT_ERRORS)] * 500)
    assert reported(host) == {"xid.149": F}
    host.run(30)
    host.step(lines(host, 3, 149, "nobody knows this form"))
    host.run(30)
    assert reported(host) == {"xid.149": F}


def test_a_driver_from_r575_on_writes_the_unit_elsewhere() -> None:
    host = Host(8)
    host.nvml_change = lambda facts: replace(facts, driver_version="575.51.02")
    host.step()
    host.step(lines(host, 3, 149, LINK_DOWN_575), lines(host, 4, 149, LINK_DOWN))
    assert {f.key.subject: (f.severity, f.evidence.get("decoded")) for f in host.findings} == {
        gpu(slot(3)): (F, None),
        gpu(slot(4)): (W, "this line is not documented"),
    }


@pytest.mark.parametrize("text", [LINK_DOWN, LINK_DOWN_575])
def test_before_the_driver_version_is_known_both_layouts_are_read(text: str) -> None:
    host = Host(8)
    host.step(lines(host, 3, 149, text), collect=False)
    assert reported(host) == {"xid.149": F}
    other = Host(8)
    other.nvml_change = lambda facts: NvmlFacts(gpus=facts.gpus)
    other.step(lines(other, 3, 149, text))
    assert reported(other) == {"xid.149": F}


def test_a_line_that_no_rule_describes_is_a_warning() -> None:
    host = Host(8)
    host.step(lines(host, 3, 147, "TREX Nonfatal XC0 i0 Link 00 (0x00000184 0x00000002 0x0)"))
    assert reported(host) == {"xid.147": W}


@pytest.mark.parametrize("bare", [Source.NVML, Source.DCGM])
def test_a_bare_number_waits_for_its_line_and_warns_if_none_comes(bare: Source) -> None:
    host = Host(8)
    host.step(host.xid(3, 149, source=bare), host.xid(4, 149, source=bare))
    assert host.health is Health.HEALTHY
    host.uptime += 1
    host.step(lines(host, 3, 149, BIT_ERRORS))
    assert host.state.records[Key("xid", gpu(slot(3)), "149")].count == 1
    host.run(60, every=30)
    assert [(f.key.subject, f.severity) for f in host.findings] == [(gpu(slot(4)), W)]


def test_a_reset_ends_what_a_link_reported_and_milder_lines_after_it_are_milder() -> None:
    host = Host(8)
    host.step(lines(host, 3, 149, LINK_DOWN))
    host.run(30)
    host.step(GpuResetEvent(at=host.now, slot=slot(3), ok=True), collect=False)
    host.run(10)
    host.step(lines(host, 3, 149, BIT_ERRORS))
    host.run(10)
    assert host.health is Health.HEALTHY


# --- the site's severity


Class = Literal["", "record", "warning", "failure"]


def site(
    number: str,
    severity: Class = "",
    advice: Advice | None = None,
    *,
    switch: bool = False,
) -> Rules:
    rule = {number: XidRule(severity=severity, advice=advice)}
    return Rules(sxids=rule) if switch else Rules(xids=rule)


def test_a_site_can_make_any_xid_a_failure_that_latches() -> None:
    host = Host(8, rules=site("43", "failure"))
    host.step(host.xid(3, 43))
    host.run(7200, every=60)
    assert [(f.severity, f.advice, f.latched) for f in host.findings] == [(F, Advice.RESET_GPU, True)]
    assert host.findings[0].evidence["classed_by"] == "this site's configuration"
    host.restart_daemon()
    host.run(10)
    host.acknowledge(f"xid.43@gpu/{slot(3)}")
    host.run(10)
    assert host.health is Health.HEALTHY


def test_a_site_can_take_a_failure_back_to_a_record_or_a_warning() -> None:
    quiet, mild = Host(8, rules=site("119", "record")), Host(8, rules=site("119", "warning"))
    for host in (quiet, mild):
        host.step(host.xid(3, 119))
        host.run(1000, every=60)
        assert host.state.records[Key("xid", gpu(slot(3)), "119")].count == 1
    assert (quiet.health, reported(mild)) == (Health.HEALTHY, {"xid.119": W})
    mild.run(3600, every=60)
    assert mild.health is Health.HEALTHY


def test_a_site_can_change_the_advice_alone() -> None:
    host = Host(8, rules=site("95", advice=Advice.CONTACT_SUPPORT))
    host.step(host.xid(3, 95))
    assert [(f.severity, f.advice) for f in host.findings] == [(F, Advice.CONTACT_SUPPORT)]


@pytest.mark.parametrize("number", [45, 63, 149])
def test_the_sites_severity_goes_before_every_rule(number: int) -> None:
    host = Host(8, rules=site(str(number), "failure"))
    host.step(host.xid(3, 48), host.xid(3, number, source=Source.NVML))
    assert reported(host)[f"xid.{number}"] is F


def test_a_site_that_only_records_48_gets_findings_of_its_details() -> None:
    host = Host(8, rules=site("48", "record"))
    host.step(host.xid(3, 48), host.xid(3, 63))
    assert reported(host) == {"xid.63": W}


@pytest.mark.parametrize(
    ("sxid", "severity", "expected"),
    [(20034, "warning", [(W, Advice.REBOOT)]), (20034, "record", []), (20001, "failure", [(F, Advice.REBOOT)])],
)
def test_a_site_classes_switch_errors_too(
    sxid: int, severity: Class, expected: list[tuple[Severity, Advice]]
) -> None:  # fmt: skip
    host = Host(8, rules=site(str(sxid), severity, switch=True))
    host.step(SxidEvent(at=host.now, slot="0000:05:00.0", sxid=sxid, fatal=None))
    assert [(f.severity, f.advice) for f in host.findings] == expected


# --- storms


def test_ten_thousand_lines_at_once_are_one_event_and_one_finding() -> None:
    host = Host(8)
    host.step()
    host.step(*[host.xid(3, 95)] * 10_000)
    assert [f.count for f in host.findings] == [10_000]
    assert [e.data["count"] for e in host.ledger if e.kind == EventKind.XID] == [10_000]
    assert len(host.state.moments.unpaired) == 1


@pytest.mark.parametrize("every", [7, 90])
def test_a_slow_storm_writes_its_lines_and_not_the_turns_of_its_latch(every: int) -> None:
    host = Host(8)
    for _ in range(200):
        host.step(host.xid(3, 95))
        host.uptime += every
    kinds = [event.kind for event in host.ledger if event.key is not None and event.key.code == "xid"]
    assert kinds.count(EventKind.XID) == 200
    assert len(kinds) <= 202  # raised, and latched at most once
    assert [(f.severity, f.count) for f in host.findings] == [(F, 200)]


def test_what_came_back_after_a_reset_is_reported_again() -> None:
    host = Host(8)
    host.step(host.xid(3, 95))
    host.run(120)
    host.step(GpuResetEvent(at=host.now, slot=slot(3), ok=True), collect=False)
    host.uptime += 1
    host.step(host.xid(3, 95), collect=False)
    host.run(600)
    assert [(f.severity, f.latched) for f in host.findings] == [(F, True)]
    assert sum(e.kind == EventKind.RAISED for e in host.ledger) == 2


# --- memory


LINE = st.sampled_from(
    [
        (13, "Graphics SM Warp Exception on (GPC 1, TPC 1, SM 0)"), (13, "Graphics SM Warp Exception on (GPC 2, TPC 1, SM 0)"),
        (31, "x"), (45, "Ch 8"), (48, "x"), (63, "x"), (74, "x"), (149, LINK_DOWN), (149, BIT_ERRORS), (149, "?"), (162, "x"), (163, "x"),
        (154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"),
        (154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"),
    ]
)  # fmt: skip
STORY = st.lists(st.tuples(LINE, st.integers(0, 1), st.sampled_from([0, 20, 200, 4000]), st.booleans()), max_size=8)


def play(host: Host, story: list[tuple[tuple[int, str], int, int, bool]]) -> None:
    for (number, text), index, pause, reset in story:
        host.step(lines(host, index, number, text))
        host.uptime += 1
        if reset:
            host.step(GpuResetEvent(at=host.now, slot=slot(index), ok=True))
        host.run(min(pause, 60), every=30)
        host.uptime += pause


def what_holds(host: Host) -> object:
    return [(str(f.key), f.severity, f.advice, f.first_seen) for f in host.findings]


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(before=STORY, after=STORY)
def test_every_rule_survives_a_restart_and_a_checkpoint_at_any_point(
    before: list[tuple[tuple[int, str], int, int, bool]], after: list[tuple[tuple[int, str], int, int, bool]]
) -> None:
    through, cut, pruned = Host(2), Host(2), Host(2)
    for host in (through, cut, pruned):
        host.step()
        play(host, before)
        host.run(150, every=30)
    cut.restart_daemon()
    pruned.state = State()
    for event in checkpoint(through.state, through.now):
        pruned.state = fold(pruned.state, event)
    for host in (cut, pruned):
        assert {k: r.bursts for k, r in host.state.records.items()} == {
            k: r.bursts for k, r in through.state.records.items()
        }
    for host in (through, cut, pruned):
        host.run(5)
        play(host, after)
        host.run(150, every=30)
    assert what_holds(cut) == what_holds(through)
    assert what_holds(pruned) == what_holds(through)


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.floats(-1e6, 1e8), st.lists(st.text("abc 1", max_size=90), max_size=20),
            st.none() | st.integers(0, 9_999_999_999),
        ),
        max_size=40,
    )
)  # fmt: skip
def test_bursts_are_bounded_and_survive_their_spelling(reported: list[tuple[float, list[str], int | None]]) -> None:
    bursts: tuple[Burst, ...] = ()
    for at, signs, pid in reported:
        bursts = extended(bursts, at, tuple(signs), pid=pid)
        assert all(len(burst.pids) <= PIDS_KEPT for burst in bursts)
        assert len(bursts) <= BURSTS_KEPT
        assert all(len(burst.signs) <= SIGNS_KEPT for burst in bursts)
        assert len(as_text(bursts)) < 2000  # a text of the ledger is cut off there
    assert from_text(as_text(bursts)) == bursts


def test_the_longest_memory_fits_one_text_of_the_ledger() -> None:
    bursts: tuple[Burst, ...] = ()
    for number in range(40):
        signs = tuple(f"{n:02d}".ljust(90, "x") for n in range(40))
        for pid in range(5):
            bursts = extended(bursts, 12_345_678.91 + 4000 * number, signs, pid=4_194_300 + pid)
    assert 1000 < len(as_text(bursts)) < 2000
    assert [len(burst.signs) for burst in bursts] == [2] * (BURSTS_KEPT - 1) + [SIGNS_KEPT]


@pytest.mark.parametrize("text", ["", "x", "1", "1 2 3", "1 2 pid=x", "a b;c", "||"])
def test_bursts_that_somebody_wrote_by_hand_are_left_out(text: str) -> None:
    assert from_text(text) == ()
