"""What the results of an active test come to: recorded figures of healthy boards, and each fault beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from gpuwarden.features.active_test.judging.judgement import REPEATS, judge, to_repeat
from gpuwarden.features.active_test.judging.outcome import ActiveVerdict, Outcome, worst
from gpuwarden.features.active_test.judging.past import PastTest, kept
from gpuwarden_collectors.active_test.facts import GpuTest, Growth, Obstacle, PeerMeasured
from gpuwarden_collectors.active_test.level import Level
from gpuwarden_collectors.facts import Stamp
from support.active_tests import (
    CARD_TO_CARD,
    beside_partner,
    healthy,
    off,
    slowed,
    uuid,
    wrong_result,
    wrong_words,
)
from support.hosts import WALL

HOUR, DAY = 3600.0, 86_400.0
NOTHING, WARNING, FAILURE, NONE = ActiveVerdict
ME = uuid(0)


def past_of(*tests: GpuTest, before: dict[str, list[PastTest]] | None = None) -> dict[str, list[PastTest]]:
    """Return the past after these tests, each a run of its own, judged by those before it."""
    past = before or {}
    for test in tests:
        outcome = judge([test], past)[test.uuid]
        at = Stamp(test.started.boottime + 10, test.started.wall + 10)
        past.setdefault(test.uuid, []).append(kept(test, outcome, at))
    return past


def daily(days: int = 10, index: int = 0, level: Level = Level.QUICK) -> dict[str, list[PastTest]]:
    """A GPU tested each day, within the noise from run to run (0.3 %)."""
    tests = [healthy(index, level, at=day * DAY) for day in range(days)]
    noisy = [slowed(test, int8=1 + 0.003 * (-1) ** n, memory=1 - 0.002 * (-1) ** n) for n, test in enumerate(tests)]
    return past_of(*noisy)


def at(test: GpuTest, when: float) -> GpuTest:
    return replace(test, started=Stamp(when, WALL + when))


def node(*changed: GpuTest, when: float = 0.0, gpus: int = 8) -> list[GpuTest]:
    """A run of a whole node with these in it."""
    own = {test.uuid: at(test, when) for test in changed}
    return [own.get(uuid(n), healthy(n, at=when)) for n in range(gpus)]


def names(outcome: Outcome) -> list[str]:
    return [f"{finding.severity.value} {finding.name}" for finding in outcome.findings]


# --- healthy boards


@pytest.mark.parametrize("level", Level)
def test_on_healthy_boards_nothing_is_found_alone_among_siblings_and_beside_their_past(level: Level) -> None:
    alone = judge([healthy(level=level)])[ME]
    assert alone == Outcome(
        verdict=NOTHING, figures_good=True, unjudged=("gpu_bandwidth_low.pcie", "gpu_bandwidth_low.peers")
    )
    past = {key: value for n in range(8) for key, value in daily(12, n, level).items()}
    run = [healthy(n, level, at=12 * DAY) for n in range(8)]
    assert {outcome.verdict for outcome in judge(run, past).values()} == {NOTHING}


def test_of_equal_boards_the_fastest_and_the_slowest_are_as_good() -> None:
    """Eight cards lay within 1.2 % of each other; their medians are no reason to call one of them slow."""
    assert {outcome.verdict for outcome in judge(node(gpus=len(CARD_TO_CARD))).values()} == {NOTHING}


def test_the_worst_of_several_gpus_is_a_failure_then_no_verdict() -> None:
    assert [worst(verdicts) for verdicts in ([NOTHING, WARNING], [WARNING, NONE], [NONE, FAILURE], [])] == [
        WARNING, NONE, FAILURE, NONE,
    ]  # fmt: skip
    assert [verdict.exit_code for verdict in ActiveVerdict] == [0, 1, 2, 3]


# --- memory


def test_one_wrong_word_with_ecc_on_is_a_failure() -> None:
    outcome = judge([wrong_words(healthy(), (0, 0x4000), ecc=True)])[ME]
    assert (outcome.verdict, names(outcome)) == (FAILURE, ["failure test_failed.memory"])
    assert "0x4000" in outcome.findings[0].text
    assert "0x00000040" in outcome.findings[0].text


@pytest.mark.parametrize("ecc", [False, None])
def test_without_ecc_a_wrong_word_is_a_warning_until_it_comes_twice_at_one_place(ecc: bool | None) -> None:
    once = wrong_words(healthy(), (0, 0x4000), (3, 0x8000), ecc=ecc)
    assert judge([once])[ME].verdict is WARNING
    assert to_repeat([once]) == (ME,)
    assert judge([wrong_words(healthy(), (0, 0x4000), (5, 0x4000), ecc=ecc)])[ME].verdict is FAILURE
    assert judge([once, wrong_words(healthy(), (1, 0x8000), ecc=ecc)])[ME].verdict is FAILURE
    assert judge([once, *[healthy(ecc=ecc)] * REPEATS])[ME].verdict is WARNING
    assert to_repeat([once, *[healthy(ecc=ecc)] * REPEATS]) == ()


# --- compute


def test_one_wrong_result_is_a_warning_and_a_second_on_that_board_within_28_days_a_failure() -> None:
    first = wrong_result(healthy(), (17, 1))
    outcome = judge([first])[ME]
    assert (outcome.verdict, names(outcome)) == (WARNING, ["warning test_failed.compute"])
    assert "SM 17" in outcome.findings[0].text
    past = past_of(first)
    again = wrong_result(healthy(), (90, 1))
    assert judge([at(again, 27 * DAY)], past)[ME].verdict is FAILURE
    assert judge([at(again, 29 * DAY)], past)[ME].verdict is WARNING
    assert judge([replace(at(again, DAY), uuid=uuid(1))], past)[uuid(1)].verdict is WARNING
    assert judge([at(healthy(), DAY)], past)[ME].verdict is NOTHING


@pytest.mark.parametrize(("sms", "chunks"), [(((17, 2),), 2), (((17, 1), (18, 1)), 2)])
def test_a_wrong_result_that_comes_again_in_one_test_is_a_failure(
    sms: tuple[tuple[int, int], ...], chunks: int
) -> None:
    assert judge([wrong_result(healthy(), *sms, wrong_chunks=chunks)])[ME].verdict is FAILURE


def test_two_sms_that_are_wrong_in_one_chunk_are_wrong_once() -> None:
    runs = [wrong_result(healthy(), (17, 1), (18, 1), wrong_chunks=1)]
    outcome = judge(runs)[ME]
    assert (outcome.verdict, names(outcome)) == (WARNING, ["warning test_failed.compute"])
    assert "SM 17 (1x), 18 (1x)" in outcome.findings[0].text
    assert to_repeat(runs) == (ME,)
    assert judge([*runs, wrong_result(healthy(), (18, 1), wrong_chunks=1)])[ME].verdict is FAILURE


def test_a_gpu_with_one_wrong_result_is_tested_three_times_more_and_fails_if_that_sm_is_wrong_again() -> None:
    runs = [wrong_result(healthy(), (17, 1))]
    for _ in range(REPEATS):
        assert to_repeat(runs) == (ME,)
        assert judge(runs)[ME].verdict is WARNING
        runs.append(healthy())
    assert to_repeat(runs) == ()
    assert judge([*runs[:-1], wrong_result(healthy(), (17, 1))])[ME].verdict is FAILURE


def test_what_is_wrong_counts_whoever_else_is_on_the_gpu() -> None:
    disturbed = replace(wrong_result(healthy(), (17, 3)), obstacle=Obstacle.DISTURBED, text="pid 7 came")
    assert judge([disturbed])[ME].verdict is FAILURE
    once = replace(wrong_result(healthy(), (17, 1)), obstacle=Obstacle.DISTURBED)
    outcome = judge([once])[ME]
    assert (outcome.verdict, names(outcome)) == (NONE, ["warning test_failed.compute"])


# --- a driver that hangs, and errors of others


def hung(when: float = 0.0) -> GpuTest:
    text = "its worker has not ended within 90 s, CUDA did not start"
    nothing = replace(healthy(), memory=None, kernels=(), pcie=None, obstacle=Obstacle.HUNG, text=text)
    return at(nothing, when)


def test_a_driver_that_hangs_once_is_a_warning_without_a_verdict() -> None:
    outcome = judge([hung()])[ME]
    assert (outcome.verdict, names(outcome)) == (NONE, ["warning test_hung"])
    assert "CUDA did not start" in outcome.findings[0].text


@pytest.mark.parametrize(
    ("past", "verdict"),
    [
        (past_of(hung(0)), FAILURE),
        (past_of(hung(0), hung(1.8 * HOUR)), FAILURE),
        (past_of(hung(1.5 * HOUR)), NONE),  # one cause, such as a host without CPU time
        (past_of(hung(0), at(healthy(), HOUR)), NONE),
        (past_of(at(replace(healthy(), obstacle=Obstacle.BUSY), HOUR), hung(HOUR / 2)), FAILURE),
        ({}, NONE),
    ],
)
def test_a_driver_that_hangs_again_an_hour_later_is_a_failure(
    past: dict[str, list[PastTest]], verdict: ActiveVerdict
) -> None:
    assert judge([hung(2 * HOUR)], past)[ME].verdict is verdict


def test_an_error_while_a_gpu_was_read_is_that_gpu_s() -> None:
    error = PeerMeasured(peer=uuid(1), speed=0.0, error="ECC_UNCORRECTABLE (214)")
    reader = replace(healthy(level=Level.STANDARD), peers=(error, PeerMeasured(peer=uuid(2), speed=380e9)))
    outcomes = judge([reader, healthy(1, Level.STANDARD), healthy(2, Level.STANDARD)])
    assert [outcomes[uuid(n)].verdict for n in range(3)] == [NOTHING, NONE, NOTHING]
    assert outcomes[uuid(1)].text == f"read by {ME}: ECC_UNCORRECTABLE (214)"


def test_a_gpu_that_can_read_none_of_several_has_no_verdict_either() -> None:
    errors = tuple(PeerMeasured(peer=uuid(n), speed=0.0, error="NVLINK (220)") for n in (1, 2))
    outcome = judge([replace(healthy(level=Level.STANDARD), peers=errors)])[ME]
    assert (outcome.verdict, outcome.text) == (NONE, "it could read none of 2 other GPUs: NVLINK (220)")


def test_wrong_copies_warn_once_and_fail_twice() -> None:
    test = healthy()
    assert test.pcie is not None
    wrong = replace(test, pcie=replace(test.pcie, mismatches=4))
    assert judge([wrong])[ME].verdict is WARNING
    assert judge([at(wrong, DAY)], past_of(wrong))[ME].verdict is FAILURE


# --- counters and Xids


@pytest.mark.parametrize(
    "reading",
    ["ecc_uncorrected_volatile", "ecc_uncorrected_aggregate", "remapped_rows_uncorrectable", "retired_pages_double_bit", "pcie_fatal_errors"],
)  # fmt: skip
def test_errors_of_the_hardware_that_grew_during_the_test_are_a_failure(reading: str) -> None:
    outcome = judge([healthy(growth=(Growth(reading=reading, by=1),))])[ME]
    assert (outcome.verdict, names(outcome)) == (FAILURE, ["failure test_failed.errors"])


def test_counters_that_could_not_be_read_after_the_test_give_no_verdict_and_hide_no_wrong_word() -> None:
    outcome = judge([healthy(growth=None)])[ME]
    assert (outcome.verdict, outcome.figures_good) == (NONE, False)
    assert outcome.text == "its counters of errors could not be read after the test"
    assert judge([wrong_words(healthy(growth=None), (0, 0x4000), ecc=True)])[ME].verdict is FAILURE


@pytest.mark.parametrize(
    ("by", "verdict"), [(1_000, NOTHING), (4_647 * 6, WARNING), (17_657 * 6, WARNING)], ids=["few", "least", "most"]
)
def test_corrected_errors_warn_at_the_rate_of_memory_that_degrades(by: int, verdict: ActiveVerdict) -> None:
    """NVSentinel#1748: 4,647 to 17,657 a second under load, none at rest."""
    assert judge([healthy(growth=(Growth(reading="ecc_corrected_volatile", by=by),))])[ME].verdict is verdict


def test_what_a_healthy_board_counts_under_load_is_nothing() -> None:
    """Measured: 1.7 s of power capping in a quick test, and 5 ms of thermal slowdown on the hottest card."""
    growth = tuple(Growth(reading=name, by=by) for name, by in (("violation_power_ns", 1_700_000_000), ("slowdown_hw_thermal_ns", 5_000_000), ("pcie_replays", 1)))  # fmt: skip
    assert judge([healthy(growth=growth)])[ME].verdict is NOTHING


def test_xids_of_the_tests_own_process_give_no_verdict_and_count_from_the_third_on_one_gpu_alone() -> None:
    past: dict[str, list[PastTest]] = {uuid(n): [] for n in range(4)}
    for day in range(3):
        run = node(when=day * DAY, gpus=4)
        outcomes = judge(run, past, {ME: [31]})
        assert outcomes[ME].verdict is NONE
        assert "Xid 31" in outcomes[ME].text
        assert names(outcomes[ME]) == (["warning test_failed.xid"] if day == 2 else [])
        for test in run:
            ended = Stamp(test.started.boottime + 10, test.started.wall + 10)
            past[test.uuid].append(kept(test, outcomes[test.uuid], ended, [31] if test.uuid == ME else []))
    everywhere = judge(node(when=4 * DAY, gpus=4), past, {uuid(n): [31] for n in range(4)})
    assert names(everywhere[ME]) == []
    alone = judge([healthy(at=4 * DAY)], {ME: past[ME]}, {ME: [31]})
    assert names(alone[ME]) == []
    mine = [replace(past_test, at=Stamp(29 * DAY, WALL + 29 * DAY)) for past_test in past[ME]]
    beside_a_board_of_old = judge([healthy(at=30 * DAY)], {ME: mine, uuid(1): past[uuid(1)][:1]}, {ME: [31]})
    assert names(beside_a_board_of_old[ME]) == []


# --- speeds


@pytest.mark.parametrize(
    ("slow", "name"),
    [
        (slowed(healthy(), int8=0.94), "warning test_failed.rate"),
        (slowed(healthy(), memory=0.96), "warning gpu_bandwidth_low.memory"),
        (slowed(healthy(), pcie=0.88), "warning gpu_bandwidth_low.pcie"),
    ],
    ids=["int8", "memory", "pcie"],
)
def test_slower_than_its_past_and_its_siblings_is_a_warning(slow: GpuTest, name: str) -> None:
    past = daily()
    outcome = judge(node(slow, when=11 * DAY), past)[ME]
    assert (outcome.verdict, set(names(outcome))) == (WARNING, {name})
    assert "own median" in outcome.findings[0].text
    assert "siblings" in outcome.findings[0].text


@pytest.mark.parametrize("share", [0.96, 0.99, 1.2])
def test_less_than_the_threshold_is_nothing(share: float) -> None:
    test = slowed(healthy(), int8=share, memory=max(share, 0.975), pcie=max(share, 0.92))
    assert judge(node(test, when=11 * DAY), daily())[ME].verdict is NOTHING


def test_a_board_that_was_always_slower_than_its_siblings_is_as_it_was() -> None:
    tests = [slowed(healthy(at=day * DAY), memory=0.95) for day in range(10)]
    assert judge(node(slowed(healthy(), memory=0.95), when=11 * DAY), past_of(*tests))[ME].verdict is NOTHING


def test_a_whole_node_that_became_slower_by_little_is_a_change_of_the_node() -> None:
    past = {key: value for n in range(8) for key, value in daily(10, n).items()}
    run = [slowed(test, int8=0.93) for test in node(when=11 * DAY)]
    assert {outcome.verdict for outcome in judge(run, past).values()} == {NOTHING}
    third = judge([slowed(test, int8=0.33) for test in node(when=11 * DAY)], past)
    assert {outcome.verdict for outcome in third.values()} == {WARNING}


def test_with_less_than_five_results_and_three_siblings_only_the_floor_of_its_board_counts() -> None:
    test = slowed(healthy(), int8=0.8, memory=0.8)
    few = past_of(*[healthy(at=day * DAY) for day in range(4)])
    assert judge([at(gpu_test, 5 * DAY) for gpu_test in (test, healthy(1), healthy(2))], few)[ME].verdict is NOTHING
    enough = past_of(healthy(at=4 * DAY), before=few)
    assert judge([at(test, 5 * DAY)], enough)[ME].verdict is WARNING
    assert set(names(judge([slowed(healthy(), int8=0.7, memory=0.7)])[ME])) == {
        "warning test_failed.rate", "warning gpu_bandwidth_low.memory",
    }  # fmt: skip
    unknown = replace(slowed(healthy(), int8=0.3, memory=0.3), name="NVIDIA B300")
    assert judge([unknown])[ME].verdict is NOTHING
    capped = slowed(healthy(power_limit=350_000), int8=0.6)
    assert judge([capped])[ME].verdict is NOTHING


def test_a_board_without_a_past_is_compared_with_its_siblings_only_by_what_no_healthy_boards_differ() -> None:
    """Healthy GPUs of a fleet differ by 22 % at most."""
    assert judge(node(slowed(healthy(), int8=0.9, memory=0.9, pcie=0.85)))[ME].verdict is NOTHING
    unknown = [replace(test, name="NVIDIA B300") for test in node(slowed(healthy(), int8=0.7))]
    assert names(judge(unknown)[ME]) == ["warning test_failed.rate"]


def test_results_that_were_slow_are_no_measure_of_what_is_usual_until_they_are_acknowledged() -> None:
    past, slow = daily(), slowed(healthy(), memory=0.9)
    for hour in range(30):
        run = at(slow, 11 * DAY + hour * HOUR)
        assert names(judge([run], past)[ME]) == ["warning gpu_bandwidth_low.memory"]
        past = past_of(run, before=past)
    name = "gpu_bandwidth_low.memory"
    past = {ME: [replace(past_test, acknowledged=name if past_test.found(name) else "") for past_test in past[ME]]}
    assert judge([at(slow, 14 * DAY)], past)[ME].verdict is NOTHING


def test_at_a_third_of_its_speed_it_fails_the_second_time_an_hour_later_and_not_before() -> None:
    past, slow = daily(), slowed(healthy(), int8=0.33, memory=0.33)
    first = judge(node(slow, when=11 * DAY), past)[ME]
    assert (first.verdict, set(first.deep)) == (WARNING, {"int8", "verify"})

    def then(test: GpuTest, when: float, *, tests_between: Sequence[GpuTest] = ()) -> Outcome:
        here = {ME: [*past[ME], kept(at(slow, 11 * DAY), first, Stamp(11 * DAY + 10, WALL + 11 * DAY + 10))]}
        return judge(node(test, when=when), past_of(*tests_between, before=here))[ME]

    assert then(slow, 11 * DAY + 1800).verdict is WARNING
    again = then(slow, 11 * DAY + 2 * HOUR)
    assert (again.verdict, set(names(again))) == (
        FAILURE,
        {"failure test_failed.rate", "failure gpu_bandwidth_low.memory"},
    )
    well_between = then(slow, 11 * DAY + 2 * HOUR, tests_between=[healthy(at=11 * DAY + HOUR)])
    assert well_between.verdict is WARNING


@pytest.mark.parametrize("bits", [0x8, 0x20, 0x40, 0x80, 0x4 | 0x20])
def test_with_a_reason_of_the_drivers_slow_is_never_a_failure(bits: int) -> None:
    past = daily()
    for hours in range(4):
        run = node(slowed(healthy(reasons=bits), int8=0.33), when=11 * DAY + hours * HOUR)
        outcome = judge(run, past)[ME]
        assert outcome.verdict is WARNING
        past[ME].append(kept(run[0], outcome, run[0].started))


def test_power_capping_counts_as_a_reason_where_nothing_in_the_test_reaches_the_cap() -> None:
    def ran(level: Level, reasons: int) -> bool:
        test = slowed(healthy(level=level, reasons=reasons), int8=0.33)
        test = replace(test, kernels=test.kernels[:1]) if level is Level.GATE else test
        siblings = [healthy(n, level, reasons=reasons) for n in range(1, 8)]
        return bool(judge([at(test, 11 * DAY), *siblings], daily(level=level))[ME].deep)

    assert ran(Level.QUICK, 0x4)
    assert not ran(Level.GATE, 0x4)
    assert ran(Level.GATE, 0x0)


@pytest.mark.parametrize(
    "changes",
    [
        {"driver": "590.1"}, {"kernels_version": 2}, {"power_limit": 500_000}, {"reasons": 0x6}, {"temperature": 70},
        {"level": Level.STANDARD},
    ],
    ids=lambda changes: next(iter(changes)),
)  # fmt: skip
def test_its_past_is_of_the_same_driver_kernels_limit_clocks_temperature_and_level(changes: dict[str, object]) -> None:
    test = slowed(healthy(**changes), pcie=0.7)  # type: ignore[arg-type]  # keys of GpuTest
    assert judge([at(slowed(healthy(), pcie=0.7), 11 * DAY)], daily())[ME].verdict is WARNING
    assert judge([at(test, 11 * DAY)], daily())[ME].verdict is NOTHING


def test_a_past_of_more_than_28_days_ago_is_forgotten() -> None:
    slow = slowed(healthy(), pcie=0.7)
    assert judge([at(slow, 9 * DAY + 27 * DAY)], daily(days=10))[ME].verdict is NOTHING
    assert judge([at(slow, 9 * DAY + 20 * DAY)], daily(days=10))[ME].verdict is WARNING


def test_a_peer_that_is_read_slower_than_it_reads_is_a_warning_of_the_reader() -> None:
    def pair(index: int, speed: float) -> GpuTest:
        return healthy(index, Level.STANDARD, peers=(PeerMeasured(peer=uuid(1 - index), speed=speed),))

    outcomes = judge([pair(0, 300e9), pair(1, 335e9)])
    assert names(outcomes[ME]) == ["warning gpu_bandwidth_low.peers"]
    assert outcomes[uuid(1)].verdict is NOTHING


# --- SMs


@pytest.mark.parametrize("share", [0.002, -0.0043])
def test_one_sm_that_is_off_in_most_chunks_is_a_warning_that_names_it_faster_or_slower(share: float) -> None:
    outcome = judge([off(healthy(), (77, 20, share))])[ME]
    assert names(outcome) == ["warning gpu_sm_slow"]
    assert "SM 77" in outcome.findings[0].text
    assert judge([off(healthy(), (77, 14, share))])[ME].verdict is NOTHING


def test_a_slow_sm_never_becomes_a_failure() -> None:
    past: dict[str, list[PastTest]] = {}
    for day in range(20):
        test = off(healthy(at=day * DAY), (77, 24, 0.02))
        assert judge([test], past)[ME].verdict is WARNING
        past = past_of(test, before=past)


@pytest.mark.parametrize("share", [1.06, 2.17], ids=["a partner at 5 %", "a busy partner"])
def test_all_sms_off_together_is_somebody_else_and_no_verdict(share: float) -> None:
    """Measured beside a partner: 1,733 to 1,738 cycles instead of 1,639, and 3,554."""
    by_past = judge([at(beside_partner(healthy(), share), 11 * DAY)], daily())[ME]
    by_siblings = judge(node(beside_partner(healthy(), share)))[ME]
    for outcome in (by_past, by_siblings):
        assert (outcome.verdict, outcome.findings, outcome.figures_good) == (NONE, (), False)
        assert "something else ran on the GPU" in outcome.text
    whole = healthy().kernels[0]
    came = replace(whole, cycles_most=whole.cycles * share)
    assert judge([healthy(kernels=(came,))])[ME].verdict is NONE


@pytest.mark.parametrize(
    "spoilt",
    [
        lambda test: beside_partner(slowed(test, memory=0.5), 2.0),
        lambda test: replace(slowed(test, memory=0.5), obstacle=Obstacle.DISTURBED),
    ],
    ids=["all its SMs are off", "the worker found a stranger"],
)
def test_disturbed_siblings_are_no_measure(spoilt: Callable[[GpuTest], GpuTest]) -> None:
    """The siblings were slow, too: compared with them alone, a GPU that became slower would be as fast as ever."""
    past = {key: value for n in range(4) for key, value in daily(10, n).items()}
    me, *others = node(slowed(healthy(), memory=0.96), when=11 * DAY, gpus=4)
    assert judge([me, *(slowed(sibling, memory=0.5) for sibling in others)], past)[ME].verdict is NOTHING
    assert judge([me, *map(spoilt, others)], past)[ME].verdict is WARNING


def test_figures_of_a_disturbed_test_enter_no_past() -> None:
    disturbed = beside_partner(healthy(at=11 * DAY), 2.0)
    assert past_of(disturbed, before=daily())[ME][-1].figures == ""


# --- no verdict


@pytest.mark.parametrize("obstacle", Obstacle)
def test_a_test_that_could_not_run_gives_no_verdict_and_says_why(obstacle: Obstacle) -> None:
    test = replace(healthy(), obstacle=obstacle, text="so it was", memory=None, kernels=(), pcie=None)
    outcome = judge([test])[ME]
    assert (outcome.verdict, names(outcome)) == (NONE, ["warning test_hung"] if obstacle is Obstacle.HUNG else [])
    assert outcome.text == f"{obstacle.shown}: so it was"


def test_what_was_not_covered_gives_no_verdict() -> None:
    test = healthy()
    assert test.memory is not None
    half = replace(test, memory=replace(test.memory, tested=test.memory.total // 2))
    assert "50%" in judge([half])[ME].text
    assert judge([replace(test, memory=None)])[ME].verdict is NONE
    assert "PCIe was not tested" in judge([replace(test, pcie=None)])[ME].text
    assert judge([replace(test, level=Level.GATE, pcie=None)])[ME].verdict is NOTHING
    some = replace(test, kernels=(replace(test.kernels[0], missing=(3, 4)),))
    assert "2 of 132 SMs" in judge([some])[ME].text


def test_a_gate_may_leave_a_job_its_two_gib() -> None:
    small = healthy(level=Level.GATE)
    assert small.memory is not None
    t4 = replace(
        small, name="Tesla T4", kernels=(), memory=replace(small.memory, total=16 << 30, tested=int(13.4 * 2**30))
    )
    assert judge([t4])[ME].verdict is NOTHING
    assert judge([replace(t4, level=Level.QUICK)])[ME].verdict is NONE


def test_figures_that_are_no_numbers_are_no_figures() -> None:
    test = healthy()
    assert test.memory is not None
    odd = replace(test, memory=replace(test.memory, verify=float("inf"), write=-1.0, total=0, tested=0))
    outcome = judge([odd])[ME]
    result = kept(odd, outcome, test.started)
    assert {"verify", "write"}.isdisjoint(result.values())
    assert result.memory_share == 0.0
