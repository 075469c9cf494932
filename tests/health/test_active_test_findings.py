"""What an active test found stays a finding until something ends it; what a running test does to its GPUs is no fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from gpuwarden.engine.log_lines import EventLines
from gpuwarden.features.active_test.judging.lease import Lease, begun, ended
from gpuwarden.features.active_test.judging.outcome import ActiveVerdict
from gpuwarden.features.active_test.judging.past import PastTest
from gpuwarden.features.active_test.judging.results import KEPT, Tests, standing, with_result
from gpuwarden.features.active_test.judging.results import tested as result_event
from gpuwarden.features.active_test.judging.submission import submitted
from gpuwarden.features.active_test.judging.thresholds import RESULTS_KEPT
from gpuwarden.features.active_test.memory import memory_of
from gpuwarden.features.active_test.set_aside import WARNINGS_THAT_WAIT
from gpuwarden.health.checkpoint import checkpoint
from gpuwarden.health.conditions import CONDITIONS
from gpuwarden.health.event_data import read, write
from gpuwarden.health.model import Advice, Event, EventKind, Health, Key, Severity, gpu
from gpuwarden.health.state import State, fold
from gpuwarden.health.view import CheckRule, Rules
from gpuwarden_collectors.active_test.facts import GpuTest, Obstacle
from gpuwarden_collectors.active_test.level import Level
from gpuwarden_collectors.event_facts import GpuResetEvent, Source
from gpuwarden_collectors.facts import Stamp
from support.active_tests import healthy, off, slowed, uuid, wrong_result, wrong_words
from support.hosts import Host, slot

HOUR, DAY = 3600.0, 86_400.0
MEMORY = f"test_failed.memory@gpu/{slot(0)}"


def hand_in(host: Host, *tests: GpuTest) -> None:
    """Hand in the tests as one run that ends now."""
    host.uptime += 10
    started = [replace(test, started=host.now) for test in tests]
    _, events = submitted(host.state, started, host.now, host.boot_id, memory_of(host.state).lease)
    host.take(*events)
    host.step()


def ids(host: Host) -> list[str]:
    return [str(finding.key) for finding in host.findings]


def failed(level: Level = Level.QUICK) -> Host:
    host = Host(2)
    host.step()
    hand_in(host, wrong_words(healthy(level=level), (0, 0x40)))
    assert ids(host) == [MEMORY]
    return host


def test_a_failed_test_is_a_failure_of_its_gpu_at_once() -> None:
    host = failed()
    (finding,) = host.findings
    assert (host.health, finding.severity, finding.advice) == (
        Health.FAILURE,
        Severity.FAILURE,
        Advice.INSPECT_HARDWARE,
    )
    assert "0x40" in str(finding.evidence["found"])
    assert finding.evidence["ends_with_level"] == "quick"


@pytest.mark.parametrize(
    ("test", "name", "severity"),
    [
        (wrong_result(healthy(), (3, 1)), "test_failed.compute", Severity.WARNING),
        (wrong_result(healthy(), (3, 2)), "test_failed.compute", Severity.FAILURE),
        (off(healthy(), (3, 20, 0.01)), "gpu_sm_slow", Severity.WARNING),
        (slowed(healthy(), memory=0.7), "gpu_bandwidth_low.memory", Severity.WARNING),
        (replace(healthy(), obstacle=Obstacle.HUNG, text="CUDA did not start"), "test_hung", Severity.WARNING),
    ],
)
def test_what_a_test_found_has_the_severity_of_its_outcome(test: GpuTest, name: str, severity: Severity) -> None:
    host = Host(2)
    host.step()
    hand_in(host, test)
    assert [(str(f.key), f.severity) for f in host.findings] == [(f"{name}@gpu/{slot(0)}", severity)]


def test_each_of_two_findings_of_one_test_has_its_own_evidence() -> None:
    host = Host(2)
    host.step()
    hand_in(host, off(wrong_words(healthy(), (0, 0x40)), (3, 20, 0.01)))
    texts = {finding.key.code: str(finding.evidence["found"]) for finding in host.findings}
    assert texts.keys() == {"test_failed", "gpu_sm_slow"}
    assert ("0x40" in texts["test_failed"], "SM 3" in texts["test_failed"]) == (True, False)
    assert ("0x40" in texts["gpu_sm_slow"], "SM 3" in texts["gpu_sm_slow"]) == (False, True)


def test_the_evidence_of_an_older_version_is_all_that_it_wrote() -> None:
    host = failed()
    (past_test,) = memory_of(host.state).tests[uuid(0)]
    assert replace(past_test, text="memory: 1; SM 3", warned="gpu_sm_slow").text_of("gpu_sm_slow") == "memory: 1; SM 3"


@pytest.mark.parametrize(
    "then",
    [
        pytest.param(lambda host: host.run(600), id="time"),
        pytest.param(lambda host: host.step(GpuResetEvent(at=host.now, slot=slot(0), ok=True)), id="reset"),
        pytest.param(Host.reboot, id="reboot"),
        pytest.param(Host.restart_daemon, id="restart"),
        pytest.param(Host.checkpointed, id="checkpoint"),
        pytest.param(lambda host: hand_in(host, healthy(1)), id="a test of another GPU"),
        pytest.param(lambda host: hand_in(host, healthy(level=Level.GATE)), id="a passed test of a lower level"),
        pytest.param(lambda host: hand_in(host, replace(healthy(), obstacle=Obstacle.BUSY)), id="a test without a verdict"),
        pytest.param(lambda host: hand_in(host, off(healthy(level=Level.STANDARD), (3, 20, 0.01))), id="a test with another finding"),
        pytest.param(lambda host: host.days(200), id="months"),
    ],
)  # fmt: skip
def test_it_stays_over_what_does_not_end_it(then: Callable[[Host], object]) -> None:
    host = failed()
    then(host)
    host.run(60)
    assert MEMORY in ids(host)


@pytest.mark.parametrize("level", [Level.QUICK, Level.STANDARD])
def test_a_passed_test_of_its_level_or_a_higher_one_ends_it(level: Level) -> None:
    host = failed()
    hand_in(host, healthy(level=level))
    assert (ids(host), host.health) == ([], Health.HEALTHY)
    host.restart_daemon()
    host.run(10)
    assert ids(host) == []


def test_the_highest_level_that_found_it_is_the_one_to_pass() -> None:
    host = failed(Level.STANDARD)
    hand_in(host, wrong_words(healthy(level=Level.QUICK), (0, 0x40)))
    hand_in(host, healthy(level=Level.QUICK))
    assert ids(host) == [MEMORY]
    hand_in(host, healthy(level=Level.STANDARD))
    assert ids(host) == []


def usual(host: Host) -> None:
    """A past of the GPU, of six days."""
    for _ in range(6):
        host.uptime += DAY
        hand_in(host, healthy())


def test_a_test_ends_a_finding_about_a_speed_only_where_that_speed_is_as_usual_by_something_that_is_known() -> None:
    host = Host(2)
    host.step()
    usual(host)
    slow = slowed(healthy(), memory=0.95)
    hand_in(host, slow)
    low = f"gpu_bandwidth_low.memory@gpu/{slot(0)}"
    assert ids(host) == [low]
    hand_in(host, replace(slow, temperature=50))  # warm from the test before: no past of its own
    assert ids(host) == [low]
    hand_in(host, replace(slow, driver="590.1"))
    assert ids(host) == [low]
    hand_in(host, replace(healthy(), temperature=50))
    assert ids(host) == []


def test_a_later_test_that_says_nothing_of_a_speed_does_not_bring_back_what_a_passed_one_ended() -> None:
    """The result that ended the finding is kept, though one in 20 hours is enough of those that say the same."""
    host = Host(8)
    host.step()
    node = [healthy(number) for number in range(8)]
    hand_in(host, slowed(node[0], pcie=0.7), *node[1:])
    assert ids(host) == [f"gpu_bandwidth_low.pcie@gpu/{slot(0)}"]
    hand_in(host, *node)
    assert ids(host) == []
    hand_in(host, node[0])  # alone, without siblings and with too few results of its own to compare with
    assert ids(host) == []
    host.restart_daemon()
    hand_in(host, *node)
    assert ids(host) == []


def test_a_test_that_copied_nothing_ends_no_finding_about_copies() -> None:
    host = Host(2)
    host.step()
    usual(host)
    hand_in(host, slowed(healthy(), pcie=0.8))
    low = f"gpu_bandwidth_low.pcie@gpu/{slot(0)}"
    assert ids(host) == [low]
    hand_in(host, replace(healthy(), pcie=None))
    assert ids(host) == [low]
    hand_in(host, healthy())
    assert ids(host) == []


def test_another_board_ends_it_and_it_follows_its_board() -> None:
    host = failed()
    bad = host.gpus[0]
    host.gpus[0] = replace(bad, uuid="GPU-another", serial="2")
    host.run(30)
    assert ids(host) == []
    host.gpus[0] = bad
    host.run(30)
    assert ids(host) == [MEMORY]


@pytest.mark.parametrize("after", [lambda host: None, Host.restart_daemon, Host.checkpointed])
def test_an_operator_acknowledges_it_while_it_stands(after: Callable[[Host], object]) -> None:
    host = failed()
    host.acknowledge(MEMORY)
    after(host)
    host.run(60)
    assert ids(host) == []
    hand_in(host, wrong_words(healthy(), (0, 0x40)))
    assert ids(host) == [MEMORY]


def found_by(host: Host, test: GpuTest) -> list[str]:
    """Codes of what a test found."""
    outcomes, _ = submitted(host.state, [test], host.now, host.boot_id)
    return [finding.code for finding in outcomes[test.uuid].findings]


@pytest.mark.parametrize("code", ["test_failed", "gpu_sm_slow", "gpu_bandwidth_low"])
def test_a_site_may_switch_each_off_or_have_it_in_shadow_or_as_a_warning(code: str) -> None:
    tests = (wrong_words(healthy(), (0, 0x40)), off(healthy(1), (3, 20, 0.01)), slowed(healthy(2), memory=0.7))

    def health(rule: CheckRule) -> tuple[list[str], Health]:
        host = Host(3, rules=Rules(checks={code: rule}))
        host.step()
        hand_in(host, *(test for test in tests if found_by(host, test) == [code]))
        return ids(host), host.health

    assert len(health(CheckRule())[0]) == 1
    assert health(CheckRule(enabled=False))[0] == []
    assert health(CheckRule(shadow=True))[1] is Health.HEALTHY
    assert health(CheckRule(severity=Severity.WARNING))[1] is Health.WARNING


# --- memory that degrades


def degraded() -> Host:
    host = Host(4)
    host.step()
    for n in range(1, 101):
        host.change(0, ecc_corrected_volatile=265_500 * n)
        host.later(15)
    host.run(3600, every=15)
    assert "memory_degrading" in host.codes
    return host


@pytest.mark.slow
@pytest.mark.parametrize("after", [lambda host: None, Host.restart_daemon, Host.checkpointed])
def test_a_passed_test_ends_memory_that_degrades(after: Callable[[Host], object]) -> None:
    host = degraded()
    _, events = submitted(host.state, [replace(healthy(), started=host.now)], host.now, host.boot_id)
    host.take(*events)
    after(host)
    host.run(7200, every=15)
    assert "memory_degrading" not in host.codes


@pytest.mark.slow
@pytest.mark.parametrize(
    "test",
    [
        healthy(level=Level.GATE),
        replace(healthy(), obstacle=Obstacle.DISTURBED),
        wrong_result(healthy(), (3, 1)),
        healthy(1),
    ],
    ids=["gate", "no verdict", "a warning", "another GPU"],
)
def test_no_other_test_ends_memory_that_degrades(test: GpuTest) -> None:
    host = degraded()
    hand_in(host, test)
    host.run(7200, every=15)
    assert "memory_degrading" in host.codes


# --- what is kept


def results(host: Host) -> tuple[PastTest, ...]:
    return memory_of(host.state).tests[uuid(0)]


def test_a_result_that_is_handed_in_twice_is_kept_once() -> None:
    host = Host(1)
    host.step()
    test = wrong_result(healthy(at=5.0), (3, 1))
    for _ in range(2):
        outcomes, events = submitted(host.state, [test], host.now, host.boot_id)
        host.take(*events)
        assert outcomes[uuid(0)].verdict is ActiveVerdict.WARNING
    assert len(results(host)) == 1
    assert memory_of(host.state).counts == {"quick_warning": 1}


def test_of_a_run_with_repeats_that_is_handed_in_twice_one_result_is_kept() -> None:
    host = Host(1)
    host.step()
    runs = [
        replace(wrong_result(healthy(), (3, 1)), started=Stamp(host.now.boottime, host.now.wall + n)) for n in range(4)
    ]
    for _ in range(2):
        host.take(*submitted(host.state, runs, host.now, host.boot_id)[1])
    assert len(results(host)) == 1


def test_a_finding_is_as_bad_and_ends_by_as_high_a_level_after_90_days_as_before() -> None:
    host = failed(Level.STANDARD)
    for _ in range(12):
        host.uptime += 10 * DAY
        hand_in(host, wrong_words(healthy(level=Level.QUICK, ecc=False), (0, 0x40)))
    (finding,) = host.findings
    assert (finding.severity, finding.evidence["ends_with_level"]) == (Severity.FAILURE, "standard")


def test_xids_of_an_earlier_test_are_none_of_a_test_that_the_daemon_did_not_know_of() -> None:
    host = Host(2)
    host.step()
    lease = leased(host)
    host.step(replace(host.xid(0, 31), pid=4242))
    host.take(ended(lease, "over", host.now))
    outcomes, _ = submitted(host.state, [healthy(at=host.uptime)], host.now, host.boot_id)
    assert outcomes[uuid(0)].verdict is ActiveVerdict.NOTHING_FOUND


@pytest.mark.slow
def test_of_gates_after_every_job_few_are_kept_and_each_is_counted() -> None:
    host = Host(1)
    host.step()
    for _ in range(2000):
        host.uptime += 1800
        _, events = submitted(host.state, [healthy(level=Level.GATE, at=host.uptime)], host.now, host.boot_id)
        host.take(*events)
    apart = [later.at.wall - earlier.at.wall for earlier, later in zip(results(host), results(host)[1:], strict=False)]
    assert min(apart[:-1]) >= 20 * 3600
    assert len(results(host)) > 40
    assert results(host)[-1].at == host.now
    assert memory_of(host.state).counts == {"gate_nothing_found": 2000}


def test_a_board_keeps_so_many_results_of_90_days_and_what_makes_its_findings() -> None:
    host = failed()
    for _ in range(200):
        host.uptime += DAY
        test = healthy(level=Level.GATE, at=host.uptime)
        _, events = submitted(host.state, [test], host.now, host.boot_id)
        host.take(*events)
        assert len(results(host)) <= KEPT
    first, *others = results(host)
    assert first.failed == "test_failed.memory"
    assert all(host.now.wall - past_test.at.wall <= RESULTS_KEPT for past_test in others)
    host.step()
    assert ids(host) == [MEMORY]
    text = sum(len(str(write(past_test))) for past_test in results(host))
    assert text <= KEPT * 1536


def test_a_failure_that_a_passed_test_ended_does_not_make_a_later_warning_worse() -> None:
    host = Host(1)
    host.step()
    hand_in(host, slowed(wrong_words(healthy(), (0, 0x40)), memory=0.7))
    hand_in(host, replace(slowed(healthy(), memory=0.8), driver="590.1"))
    hand_in(host, replace(slowed(wrong_words(healthy(ecc=False), (0, 0x40)), memory=0.8), driver="590.1"))
    for _ in range(KEPT + 10):
        host.uptime += DAY
        hand_in(host, healthy(level=Level.GATE))
        (memory,) = (finding for finding in host.findings if str(finding.key) == MEMORY)
        assert memory.severity is Severity.WARNING


NAMES = ("test_failed.memory", "test_failed.rate", "gpu_bandwidth_low.pcie")
RESULT = st.tuples(
    st.sampled_from((HOUR, 7 * HOUR, DAY, 10 * DAY)),
    st.sampled_from((*[ActiveVerdict.NOTHING_FOUND] * 4, *ActiveVerdict)),
    st.sampled_from(tuple(Level)),
    st.permutations(NAMES),
    st.booleans(),
)


@settings(max_examples=30, deadline=None)
@given(st.lists(RESULT, min_size=80, max_size=160))
def test_what_is_no_longer_kept_changes_nothing_that_stands(given_results: list[tuple[float, ActiveVerdict, Level, list[str], bool]]) -> None:  # fmt: skip
    whole: list[PastTest] = []
    tests: Tests = {}
    now = 0.0
    for after, verdict, level, names, more in given_results:
        now += after
        codes = " ".join(names[: 1 + more])
        past_test = PastTest(
            at=Stamp(now, now), uuid=uuid(0), started=now - 6, level=level, verdict=verdict, seconds=6.0, name="H100", driver="580", kernels_version=1,
            failed=names[2] if verdict is ActiveVerdict.FAILURE else "",
            warned=codes if verdict in (ActiveVerdict.WARNING, ActiveVerdict.FAILURE) else "",
            unjudged=codes if verdict is ActiveVerdict.NOTHING_FOUND and more else "",
        )  # fmt: skip
        whole.append(past_test)
        tests = with_result(tests, result_event(slot(0), past_test, "boot"))
        stands, stood = ({name: (finding.severity, finding.level) for name, finding in standing(results).items()} for results in (tests[uuid(0)], tuple(whole)))  # fmt: skip
        assert stands == stood
    assert len(tests[uuid(0)]) <= KEPT


def test_what_a_passed_test_ended_does_not_come_back_when_that_test_is_no_longer_kept() -> None:
    """The result with both findings is kept for the one that stands, however old it is."""
    host = Host(1)
    host.step()
    slow = slowed(wrong_words(healthy(level=Level.STANDARD), (0, 0x40)), memory=0.7)
    hand_in(host, slow)
    low = f"gpu_bandwidth_low.memory@gpu/{slot(0)}"
    assert ids(host) == [MEMORY, low]
    hand_in(host, replace(slowed(healthy(level=Level.STANDARD), memory=0.8), driver="590.1"))
    assert ids(host) == [low]
    for _ in range(KEPT + 40):
        host.uptime += DAY
        hand_in(host, healthy(level=Level.GATE))
        assert (ids(host), len(results(host)) <= KEPT) == ([low], True)


def test_texts_of_any_length_are_bounded() -> None:
    host = Host(1)
    host.step()
    hand_in(host, replace(healthy(), obstacle=Obstacle.CRASHED, text="x" * 100_000, driver="d" * 1000, name="n" * 1000))
    (past_test,) = results(host)
    assert len(str(write(past_test))) <= 1536


def test_keys_of_another_version_and_values_that_mean_nothing_are_read_over() -> None:
    data = {
        **write(healthy_result()), "level": "soak", "verdict": "great", "figures": "int8=nan verify=1e400 x to_host=1.2.3 to_device=e+ write=5", "power_limit": "x",
        "of a newer version": 3,
    }  # fmt: skip
    event = Event(kind=EventKind.TESTED, at=Stamp(1, 2), boot_id="b", key=Key("test", gpu(slot(0)), "soak"), data=data)
    state = fold(State(), event)
    (past_test,) = memory_of(state).tests[uuid(0)]
    assert (past_test.level, past_test.verdict, dict(past_test.values())) == (
        Level.GATE,
        ActiveVerdict.NO_VERDICT,
        {"write": 5.0},
    )
    assert past_test.others == {"of a newer version": 3}
    assert standing((past_test,)) == {}
    again = State()
    for each in checkpoint(state, Stamp(3, 4)):
        again = fold(again, each)
    assert memory_of(again).tests == memory_of(state).tests
    nameless = fold(State(), replace(event, data={}))
    assert memory_of(nameless).tests == {}


def healthy_result() -> PastTest:
    host = Host(1)
    host.step()
    hand_in(host, healthy())
    return results(host)[0]


def test_a_result_is_read_as_it_was_written() -> None:
    result = healthy_result()
    event = Event(kind=EventKind.TESTED, at=result.at, boot_id="b", data=write(result))
    assert read(PastTest, event) == result
    assert set(result.values()) == {
        "int8", "verify", "write", "to_device", "to_host", "cycles_int8", "cycles_bf16", "cycles_fp64", "cycles_alu",
    }  # fmt: skip


# --- while a test runs


def leased(host: Host, *, seconds: float = 60.0, workers: str = "4242") -> Lease:
    until = Stamp(host.now.boottime + seconds, host.now.wall + seconds)
    lease = Lease(
        at=host.now, boot_id=host.boot_id, name="0" * 16, gpus=uuid(0), level=Level.QUICK, until=until, workers=workers
    )
    host.take(begun(lease))
    return lease


def test_the_conditions_that_wait_exist() -> None:
    assert set(CONDITIONS) >= WARNINGS_THAT_WAIT


def hot(host: Host, index: int) -> None:
    host.change(
        index,
        temperature=90,
        memory_used_bytes=84 << 30,
        memory_total_bytes=85 << 30,
        power_usage_mw=700_000,
        clock_event_reasons=0x4,
    )


def test_heat_and_load_of_a_test_raise_no_warning_of_its_gpus_and_of_others_they_do() -> None:
    host = Host(2)
    host.step()
    leased(host, seconds=600)
    for n in range(2):
        hot(host, n)
    host.run(300)
    assert ids(host) == [f"thermal_limit@gpu/{slot(1)}"]


@pytest.mark.parametrize("restart", [lambda host: None, Host.restart_daemon, Host.checkpointed])
def test_a_lease_ends_by_itself_and_then_everything_counts_again(restart: Callable[[Host], object]) -> None:
    host = Host(2)
    host.step()
    leased(host, seconds=60)
    hot(host, 0)
    host.run(30)
    restart(host)
    host.run(25)
    assert ids(host) == []
    host.run(200)
    assert ids(host) == [f"thermal_limit@gpu/{slot(0)}"]


def test_a_finding_from_before_the_test_neither_ends_nor_changes_while_it_runs() -> None:
    host = Host(2)
    host.step()
    hot(host, 0)
    host.run(200)
    assert "thermal_limit" in host.codes
    lease = leased(host, seconds=3600)
    host.change(0, temperature=30)
    host.run(600)
    assert "thermal_limit" in host.codes
    host.take(ended(lease, "over", host.now))
    host.run(200)
    assert host.codes == []


def test_failures_of_its_gpus_count_while_a_test_runs() -> None:
    host = Host(2)
    host.step()
    leased(host)
    host.change(0, temperature=96)
    host.run(30)
    host.step(host.xid(0, 79))
    host.change(0, ecc_uncorrected_volatile=1)
    host.run(10)
    assert {"thermal_limit", "ecc_uncorrectable"} <= set(host.codes)


@pytest.mark.parametrize("number", [13, 31, 43, 45])
@pytest.mark.parametrize("restart", [lambda host: None, Host.restart_daemon, Host.checkpointed])
def test_xids_of_its_own_processes_are_shown_and_set_aside(number: int, restart: Callable[[Host], object]) -> None:
    host = Host(2)
    host.step()
    leased(host)
    restart(host)
    step = host.step(replace(host.xid(0, number), pid=4242))
    assert [event.kind for event in step.events if event.key and event.key.code == "xid"] == ["test_xid"]
    assert Key("xid", gpu(slot(0)), str(number)) not in host.state.records
    lease = memory_of(host.state).lease
    assert lease is not None
    assert lease.xids_of(slot(0)) == (number,)
    hand_in(host, healthy())
    assert results(host)[-1].verdict is ActiveVerdict.NO_VERDICT
    assert results(host)[-1].xids == 1
    assert f"Xid {number}" in results(host)[-1].text


def test_other_xids_of_it_and_these_of_other_processes_and_of_later_count_as_always() -> None:
    host = Host(2)
    host.step()
    lease = leased(host)
    host.step(replace(host.xid(0, 48), pid=4242), replace(host.xid(0, 13), pid=77), replace(host.xid(1, 31), pid=None))
    host.take(ended(lease, "over", host.now))
    host.uptime += 120
    host.step(replace(host.xid(0, 43), pid=4242))
    assert {(key.detail, key.subject.slot) for key in host.state.records} == {
        ("48", slot(0)), ("13", slot(0)), ("31", slot(1)), ("43", slot(0)),
    }  # fmt: skip


def test_a_bare_number_of_its_gpu_is_of_the_test_since_nothing_else_runs_there() -> None:
    host = Host(2)
    host.step()
    leased(host)
    host.step(host.xid(0, 43, source=Source.NVML), host.xid(1, 43, source=Source.NVML))
    assert [key.subject.slot for key in host.state.records] == [slot(1)]


def test_a_bare_number_right_after_a_test_is_of_the_next_job() -> None:
    host = Host(1)
    host.step()
    lease = leased(host)
    host.take(ended(lease, "over", host.now))
    host.uptime += 5
    host.step(host.xid(0, 31, source=Source.NVML))
    assert Key("xid", gpu(slot(0)), "31") in host.state.records


def test_no_lease_survives_a_boot() -> None:
    host = Host(2)
    host.step()
    leased(host, seconds=3600)
    host.reboot()
    host.step()
    assert memory_of(host.state).lease is None


def test_log_lines_name_level_and_verdict() -> None:
    host = Host(2)
    host.step()
    leased(host, workers="")
    leased(host)
    hand_in(host, wrong_words(healthy(), (0, 0x40)))
    with capture_logs() as lines:
        EventLines().write(host.ledger)
    began, again = [line for line in lines if line["event"] == "active test runs"]
    assert again["log_level"] == "debug", "the same test, with its workers"
    (tested,) = [line for line in lines if line["event"] == "GPU tested"]
    assert (began["test_level"], began["log_level"]) == ("quick", "info")
    assert (tested["id"], tested["verdict"], tested["failed"]) == (
        f"test.quick@gpu/{slot(0)}",
        "failure",
        "test_failed.memory",
    )
    assert "figures" not in tested


def test_that_a_host_could_test_is_remembered_until_the_ledger_is_another_machine_s() -> None:
    state, now = State(), Stamp(1.0, 2.0)
    assert not memory_of(state).able
    state = fold(state, Event(kind=EventKind.GATE_ABLE, at=now, boot_id="b"))
    again = reduce(fold, checkpoint(state, now), State())
    assert memory_of(again).able
    assert not memory_of(fold(again, Event(kind=EventKind.MACHINE_CHANGED, at=now, boot_id="b"))).able
