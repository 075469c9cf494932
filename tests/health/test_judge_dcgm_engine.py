"""DCGM itself: absent, silent, blind, of another opinion. Its silence neither raises nor clears anything."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwarden.health.model import Advice, Health, Severity
from gpuwarden_collectors.base import PassOutcome
from gpuwarden_collectors.dcgm.facts import PAUSED, DcgmFacts, DcgmGpuStatus, DcgmProblemKind
from gpuwarden_collectors.facts import GpuAnswer, NvmlProblem
from support.dcgm_hosts import CONNECTION_LOST, WARN, DcgmHost
from support.hosts import slot

ABSENT, FAILED, TIMED_OUT = PassOutcome.ABSENT, PassOutcome.FAILED, PassOutcome.TIMED_OUT


@pytest.fixture
def host() -> DcgmHost:
    made = DcgmHost(2)
    made.run(120)
    return made


@pytest.mark.parametrize(("outcome", "error"), [(TIMED_OUT, "no answer within 10 s"), (FAILED, CONNECTION_LOST)])
def test_an_engine_that_is_here_and_does_not_answer_is_a_warning(
    host: DcgmHost, outcome: PassOutcome, error: str
) -> None:
    host.away(outcome, error)
    host.run(40)
    assert host.health is Health.HEALTHY
    host.run(10)
    finding = host.finding()
    assert (finding.key.code, finding.severity) == ("dcgm_unresponsive", Severity.WARNING)
    assert finding.evidence["why"] == error
    host.back()
    host.run(35)
    assert host.health is Health.HEALTHY


@pytest.mark.parametrize(("outcome", "error"), [(TIMED_OUT, "no answer within 10 s"), (FAILED, CONNECTION_LOST)])
def test_an_engine_that_has_not_answered_since_the_boot_has_ten_minutes_for_it(
    outcome: PassOutcome, error: str
) -> None:
    host = DcgmHost(2, uptime=60.0)
    host.away(outcome, error)
    host.run(530)
    assert host.health is Health.HEALTHY
    host.run(20)
    assert host.codes == ["dcgm_unresponsive"]
    other = DcgmHost(2, uptime=60.0)
    other.run(30)
    other.away(outcome, error)  # it had answered
    other.run(50)
    assert other.codes == ["dcgm_unresponsive"]


def test_an_engine_that_is_restarted_is_no_fault(host: DcgmHost) -> None:
    host.away(FAILED, CONNECTION_LOST)
    host.run(30)
    host.back()
    host.run(60)
    assert "dcgm_unresponsive" not in {
        str(event.key and event.key.code) for event in host.ledger if event.kind == "raised"
    }


def test_bindings_that_do_not_fit_are_a_finding_that_names_what_to_install(host: DcgmHost) -> None:
    why = "cannot read DCGM at unix:///engine: VerMismatch (-12); install the bindings and libdcgm of the DCGM that"
    host.away(FAILED, why)
    host.run(60)
    finding = host.finding()
    assert str(finding.key) == "collector_failed.dcgm@node"
    assert (finding.severity, finding.advice) == (Severity.WARNING, Advice.FIX_CONFIGURATION)
    assert finding.evidence["why"] == why


def test_an_engine_that_is_paused_for_a_diagnostic_is_no_fault(host: DcgmHost) -> None:
    host.away(FAILED, f"cannot read DCGM at unix:///engine: Paused (-54); {PAUSED}, and continues after it")
    host.run(3600, every=30)
    assert host.health is Health.HEALTHY


def test_bindings_that_do_not_fit_are_no_news_while_the_driver_is_not_loaded(host: DcgmHost) -> None:
    host.away(FAILED, "cannot set up watches in DCGM at unix:///engine: NvmlNotLoaded (-56)")
    host.nvml_change = lambda facts: replace(facts, gpus=(), problem=NvmlProblem.DRIVER_NOT_LOADED)
    host.run(100)
    assert "collector_failed" not in host.codes


def test_a_driver_that_hangs_silences_that_dcgm_hangs_with_it(host: DcgmHost) -> None:
    host.away(TIMED_OUT, "no answer within 10 s")
    for _ in range(20):
        host.uptime += 5
        silent = replace(host.now, boottime=host.uptime - 60)
        host.step(nvml=host.nvml(TIMED_OUT, silent_since=silent, missed=5, ever_answered=True))
    assert host.codes == ["driver_unresponsive"]
    assert host.last is not None
    assert [finding.key.code for finding in host.last.verdict.silenced] == ["dcgm_unresponsive"]


# --- what it sees less of than it seems


@pytest.mark.parametrize("problem", list(DcgmProblemKind))
def test_each_way_in_which_an_engine_is_impaired_is_a_warning_of_its_own(
    host: DcgmHost, problem: DcgmProblemKind
) -> None:
    host.problem(problem)
    host.run(125)
    finding = host.finding()
    assert (str(finding.key), finding.severity) == (f"dcgm_impaired.{problem}@node", Severity.WARNING)
    host.silence()
    host.run(65)
    assert host.health is Health.HEALTHY


def test_an_engine_without_gpus_is_right_where_there_are_none() -> None:
    host = DcgmHost(0)
    host.problem(DcgmProblemKind.NO_GPUS)
    host.run(200)
    assert host.codes == []


def test_an_engine_without_gpus_is_no_fault_before_the_driver_is_loaded() -> None:
    host = DcgmHost(2, uptime=30.0)
    gpus, host.gpus = host.gpus, {}
    engine, host.dcgm = host.dcgm, replace(host.dcgm, gpus=())
    host.nvml_change = lambda facts: replace(facts, problem=NvmlProblem.DRIVER_NOT_LOADED)
    host.problem(DcgmProblemKind.NO_GPUS)
    host.run(500)
    host.gpus, host.dcgm, host.nvml_change = gpus, engine, lambda facts: facts
    host.run(120)
    assert "raised" not in {event.kind for event in host.ledger}


def test_watches_that_were_switched_off_once_and_set_again_are_not_reported(host: DcgmHost) -> None:
    host.problem(DcgmProblemKind.WATCHES_CHANGED)
    host.run(15)
    host.silence()
    host.run(120)
    assert "raised" not in {event.kind for event in host.ledger}


def test_a_blind_engine_is_one_finding_and_not_one_for_each_gpu(host: DcgmHost) -> None:
    """After an Xid 119 the engine asks the driver nothing: power cannot be read of any GPU, and nothing else is reported."""
    host.problem(DcgmProblemKind.BLIND)
    for gpu in (0, 1):
        host.incident(11, gpu=gpu, health=WARN)
    host.run(300)
    assert [str(finding.key) for finding in host.findings] == ["dcgm_impaired.blind@node"]


@pytest.mark.parametrize(
    "problem", [DcgmProblemKind.BLIND, DcgmProblemKind.CHECK_INCOMPLETE, DcgmProblemKind.WATCHES_CHANGED]
)
def test_silence_of_an_impaired_engine_clears_nothing(host: DcgmHost, problem: DcgmProblemKind) -> None:
    host.incident(80)
    host.incident(52, gpu=1)
    host.run(65)
    host.silence()
    host.problem(problem)
    host.run(300)
    assert {"row_remap_failed", "dcgm_faulty_memory"} <= set(host.codes)


def test_silence_while_the_watches_are_new_clears_nothing(host: DcgmHost) -> None:
    host.incident(80)
    host.run(65)
    host.silence()
    host.dcgm = replace(host.dcgm, watched_since=host.now)
    host.run(80)
    assert host.codes == ["row_remap_failed"]
    host.run(60)
    assert host.codes == []


# --- reports from before it went away


@pytest.mark.parametrize(("outcome", "error"), [(TIMED_OUT, "no answer"), (FAILED, CONNECTION_LOST)])
def test_while_no_engine_responds_its_findings_stay(host: DcgmHost, outcome: PassOutcome, error: str) -> None:
    host.incident(80)
    host.incident(52, gpu=1)
    host.run(65)
    host.away(outcome, error)
    host.run(7200, every=30)
    assert set(host.codes) == {"row_remap_failed", "dcgm_faulty_memory", "dcgm_unresponsive"}


def test_findings_of_an_engine_end_ten_minutes_after_it_is_gone(host: DcgmHost) -> None:
    host.incident(80)
    host.incident(52, gpu=1)
    host.run(65)
    host.away(ABSENT, "DCGM is not installed")
    host.run(590)
    assert set(host.codes) == {"row_remap_failed", "dcgm_faulty_memory"}
    host.run(90)
    assert host.codes == []
    cleared = [event for event in host.ledger if event.kind == "cleared"]
    assert {event.data["by"] for event in cleared} == {"time: there is no DCGM here any more"}


def test_findings_of_an_engine_end_where_dcgm_was_switched_off(host: DcgmHost) -> None:
    host.incident(80)
    host.run(65)
    host.restart_daemon()
    host.outcome, host.rules = None, replace(host.rules, dcgm_fresh_for=0.0)
    host.run(700)
    assert host.codes == []


def test_what_both_saw_stays_without_dcgm(host: DcgmHost) -> None:
    host.change(0, remapped_rows_failure=1)
    host.incident(80)
    host.run(65)
    host.away(ABSENT, "DCGM is not installed")
    host.run(900)
    assert host.codes == ["row_remap_failed"]


def test_at_boot_findings_of_dcgm_wait_for_its_engine(host: DcgmHost) -> None:
    host.incident(52, gpu=1)
    host.run(65)
    host.reboot()
    host.uptime = 60.0
    host.away(ABSENT, "no nv-hostengine of root or of this user listens")
    host.run(300)
    assert host.codes == ["dcgm_faulty_memory"]


def test_a_single_report_before_a_long_silence_restarts_its_time(host: DcgmHost) -> None:
    host.incident(4)
    host.run(10)
    host.away(TIMED_OUT, "no answer")
    host.run(600)
    host.back()
    host.run(50)
    assert "ecc_uncorrectable" not in host.codes


# --- of another opinion


@pytest.mark.parametrize("status", [DcgmGpuStatus.LOST, DcgmGpuStatus.INACCESSIBLE, DcgmGpuStatus.DETACHED])
def test_a_gpu_that_answers_the_driver_and_that_dcgm_lost_is_a_difference(
    host: DcgmHost, status: DcgmGpuStatus
) -> None:
    host.status(1, status)
    host.run(115)
    assert host.health is Health.HEALTHY
    host.run(10)
    finding = host.finding()
    assert (str(finding.key), finding.severity) == (f"dcgm_disagrees@gpu/{slot(1)}", Severity.WARNING)
    assert finding.evidence == {"nvml": "answers", "dcgm": f"status {status}"}


def without(facts: DcgmFacts, index: int) -> DcgmFacts:
    return replace(facts, gpus=tuple(each for each in facts.gpus if each.id != index))


def test_a_gpu_that_dcgm_does_not_list_is_a_difference(host: DcgmHost) -> None:
    host.dcgm = without(host.dcgm, 1)
    host.run(125)
    assert host.finding().evidence["dcgm"] == "does not list it"


def test_a_gpu_that_only_dcgm_lists_is_a_difference(host: DcgmHost) -> None:
    host.dcgm = replace(host.dcgm, gpus=(*host.dcgm.gpus, replace(host.dcgm.gpus[0], id=7, slot=slot(7))))
    host.run(125)
    assert str(host.finding().key) == f"dcgm_disagrees@gpu/{slot(7)}"
    assert host.finding().evidence["nvml"] == "does not list it"


def test_a_gpu_that_an_operator_gave_up_is_no_difference(host: DcgmHost) -> None:
    del host.gpus[1], host.devices[1]
    host.run(40)
    host.accept()
    host.run(300)
    assert host.codes == []


def test_a_gpu_that_dcgm_does_not_support_is_no_difference(host: DcgmHost) -> None:
    host.status(1, DcgmGpuStatus.UNSUPPORTED)
    host.run(300)
    assert host.codes == []


def test_a_gpu_that_both_lost_is_missing_and_no_difference(host: DcgmHost) -> None:
    host.answer(1, GpuAnswer.LOST)
    host.status(1, DcgmGpuStatus.LOST)
    host.run(300)
    assert host.codes == ["gpu_missing"]
    assert host.finding().evidence["dcgm"] == "status lost"


def test_gpus_that_never_reported_their_slot_prove_no_difference(host: DcgmHost) -> None:
    host.engine_gpu(1, slot="")
    host.run(300)
    assert host.codes == []
