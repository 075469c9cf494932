"""DCGM's health check beside NVML's readings: one finding for each fault, and the lies of the engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwarden.health.conditions import condition
from gpuwarden.health.dcgm.catalogue import DCGM_CODES, dcgm_row
from gpuwarden.health.model import Advice, EventKind, Health, Key, Severity, gpu, link
from gpuwarden_collectors.base import PassOutcome
from gpuwarden_collectors.dcgm.facts import DcgmGpuStatus
from gpuwarden_collectors.event_facts import SxidEvent
from gpuwarden_collectors.host_facts import ServiceFacts
from support.dcgm_hosts import CONNECTX, CPU, FAIL, SWITCH, WARN, DcgmHost
from support.hosts import slot


@pytest.fixture
def host() -> DcgmHost:
    made = DcgmHost(2)
    made.run(120)
    assert made.health is Health.HEALTHY
    return made


def test_a_fault_that_both_see_is_one_finding_with_the_evidence_of_both(host: DcgmHost) -> None:
    host.change(0, ecc_uncorrected_volatile=3)
    host.incident(4)
    host.run(10)
    finding = host.finding()
    assert str(finding.key) == f"ecc_uncorrectable@gpu/{slot(0)}"
    assert finding.evidence["uncorrected_since_driver_load"] == 3
    assert finding.evidence["dcgm"] == "fail, code 4: Uncorrectable memory errors since the driver was loaded"


def test_a_fault_that_dcgm_does_not_report_is_marked(host: DcgmHost) -> None:
    host.change(0, ecc_uncorrected_volatile=3)
    host.run(10)
    assert host.finding().evidence["dcgm"] == "does not report it"


def test_without_dcgm_nothing_about_it_is_reported() -> None:
    host = DcgmHost(2)
    host.away(PassOutcome.ABSENT, "DCGM is not installed")
    host.run(60)
    assert (host.health, host.codes) == (Health.HEALTHY, [])
    host.change(0, ecc_uncorrected_volatile=3)
    host.run(10)
    assert "dcgm" not in host.finding().evidence


def test_dcgm_against_a_definite_reading_of_nvml_counts_after_a_minute_and_the_difference_is_shown(
    host: DcgmHost,
) -> None:
    host.incident(4)
    host.run(55)
    assert host.health is Health.HEALTHY
    host.run(10)
    finding = host.finding()
    assert str(finding.key) == f"ecc_uncorrectable@gpu/{slot(0)}"
    assert finding.severity is Severity.FAILURE
    assert finding.evidence["source"] == "dcgm"
    assert finding.evidence["nvml"] == "does not show it"


def test_dcgm_counts_after_two_passes_where_nvml_has_no_such_reading(host: DcgmHost) -> None:
    host.change(0, remapped_rows_failure=None)
    host.incident(80)
    host.run(10)
    assert host.health is Health.HEALTHY
    host.run(10)
    assert host.codes == ["row_remap_failed"]
    assert host.finding().evidence["nvml"] == "has no reading of it"


@pytest.mark.parametrize("code", [4, 52, 80], ids=["against NVML", "its own", "without NVML"])
def test_one_pass_of_dcgm_makes_no_finding_however_long_until_the_next(host: DcgmHost, code: int) -> None:
    """Most codes have to last for a minute, and DCGM may be read each minute."""
    host.rules = replace(host.rules, dcgm_fresh_for=180.0)
    host.change(0, remapped_rows_failure=None)

    def passes(number: int) -> None:
        for _ in range(number):
            host.back()
            host.step()
            host.outcome = None
            host.run(60)
            host.uptime += 1

    host.incident(code)
    passes(1)
    assert host.codes == []
    host.silence()
    passes(1)
    assert EventKind.RAISED not in {event.kind for event in host.ledger}
    host.incident(code)
    passes(2)
    assert len(host.codes) == 1


def test_one_finding_goes_on_when_the_other_source_sees_it_too(host: DcgmHost) -> None:
    host.incident(80)
    host.run(65)
    first = host.finding()
    host.change(0, remapped_rows_failure=1)
    host.run(30)
    assert host.finding().first_seen == first.first_seen
    assert "source" not in host.finding().evidence


def test_the_gpu_is_that_of_the_entity_and_never_that_of_the_text(host: DcgmHost) -> None:
    host.incident(52, gpu=1, message="2 faulty memory elements on GPU %d")
    host.run(20)
    assert str(host.finding().key) == f"dcgm_faulty_memory@gpu/{slot(1)}"


def test_a_dcgm_code_without_a_condition_is_a_finding_of_its_own(host: DcgmHost) -> None:
    host.incident(132, health=WARN)
    host.run(65)
    finding = host.finding()
    assert (finding.key.code, finding.severity) == ("dcgm_uncorrectable_row_remap_limit", Severity.WARNING)
    assert finding.title == dcgm_row(132).meaning
    host.silence()
    host.run(65)
    assert host.codes == []


@pytest.mark.parametrize("health", [0, WARN, FAIL])
def test_an_unknown_code_is_a_warning_and_never_dropped(host: DcgmHost, health: int) -> None:
    host.incident(4711, health=health, message="something new")
    host.run(65)
    finding = host.finding()
    assert (finding.key.code, finding.severity) == ("dcgm_code_4711", Severity.WARNING)
    assert "something new" in str(finding.evidence["dcgm"])


@pytest.mark.slow
def test_an_engine_that_reports_too_much_fills_no_memory(host: DcgmHost) -> None:
    for code in range(1000, 2000):
        host.incident(code)
    host.run(65)
    assert len(host.findings) <= 257
    assert "dcgm_too_many_errors" in host.codes


# --- false reports


@pytest.mark.parametrize(
    ("code", "health"),
    [
        pytest.param(10, WARN, id="one nanosecond of thermal slowdown"),
        pytest.param(12, WARN, id="one nanosecond of power capping"),
        pytest.param(71, FAIL, id="link totals since the driver was loaded"),
    ],
)
def test_what_any_healthy_gpu_reports_is_never_a_finding(host: DcgmHost, code: int, health: int) -> None:
    host.incident(code, health=health)
    host.run(3600, every=15)
    assert host.health is Health.HEALTHY


def test_growing_link_errors_are_a_warning_by_gpuwardens_own_count_with_dcgms_report(host: DcgmHost) -> None:
    host.incident(71)
    for replays in range(0, 20, 2):
        host.change(0, nvlink_replay_errors=replays)
        host.run(15)
    finding = host.finding()
    assert (finding.key.code, finding.severity) == ("nvlink_errors", Severity.WARNING)
    assert str(finding.evidence["dcgm"]).startswith("fail, code 71")


def test_a_slowdown_that_lasts_is_reported_with_dcgms_text(host: DcgmHost) -> None:
    host.incident(10, health=WARN)
    for second in range(0, 660, 15):
        host.change(0, slowdown_hw_thermal_ns=second * 10**9)
        host.run(10)
        host.uptime += 5
    finding = host.finding()
    assert finding.key.code == "thermal_slowdown"
    assert str(finding.evidence["dcgm"]).startswith("warn, code 10")


def test_link_totals_count_for_a_while_where_nvml_cannot_count_them(host: DcgmHost) -> None:
    for index in host.gpus:
        host.change(index, nvlink_replay_errors=None, nvlink_recovery_errors=None)
    host.state = replace(host.state, moments=replace(host.state.moments, windows={}))
    host.incident(71)
    host.run(120)
    assert host.codes == ["nvlink_errors"]
    host.run(1500)
    assert host.codes == []


def test_a_single_crc_error_is_not_reported_and_ten_minutes_of_them_are(host: DcgmHost) -> None:
    for _ in range(3):
        host.incident(13, health=WARN)
        host.run(90)
        host.silence()
        host.run(60)
    assert host.health is Health.HEALTHY
    host.incident(13, health=WARN)
    host.run(610)
    assert (host.codes, host.health) == (["nvlink_errors"], Health.WARNING)


def test_a_link_that_dcgm_has_down_and_nvml_up_must_stay_so(host: DcgmHost) -> None:
    host.incident(14, link=5)
    host.run(70)
    assert host.codes == []
    host.run(10)
    assert str(host.finding().key) == f"nvlink_down@link/{slot(0)}/5"
    assert host.health is Health.FAILURE


def test_a_link_that_retrains_while_nvml_has_no_reading_is_no_failure(host: DcgmHost) -> None:
    """After an upgrade of NVML's library under running jobs only DCGM can read the link, every 15 s."""
    host.gpus[0] = replace(host.gpus[0], links=())
    host.incident(14, link=5)
    host.run(65)
    host.silence()
    host.run(60)
    assert [event for event in host.ledger if event.kind == "raised"] == []


def test_a_link_that_nobody_ever_saw_up_is_only_a_warning() -> None:
    host = DcgmHost(1)
    links = host.gpus[0].links
    host.gpus[0] = replace(host.gpus[0], links=(replace(links[0], active=False), *links[1:]))
    host.incident(14, link=0)
    host.run(90)
    assert host.finding().severity is Severity.WARNING
    assert host.finding().evidence["nvml"] == "never saw the link active"


@pytest.mark.parametrize("once_active", [True, False])
def test_dcgms_report_on_a_link_counts_while_nvml_has_no_reading_only_if_the_link_was_once_active(
    *, once_active: bool
) -> None:
    host = DcgmHost(1)
    if not once_active:
        host.gpus[0] = replace(host.gpus[0], links=())
    host.run(60)
    host.gpus[0] = replace(host.gpus[0], links=())
    host.incident(14, link=0)
    host.run(320)
    assert host.health is (Health.FAILURE if once_active else Health.HEALTHY)


def test_a_link_down_that_an_older_gpuwarden_believed_ends_by_itself() -> None:
    """NVSentinel#1481; the ledger is of a time at which DCGM's report alone counted."""
    host = DcgmHost(1)
    host.gpus[0] = replace(host.gpus[0], links=())
    host.incident(14, link=0)
    host.run(60)
    host.record_event(
        EventKind.RAISED, Key("nvlink_down", link(slot(0), 0)), severity="failure", advice="reset_gpu", latch="none",
        source="dcgm",
    )  # fmt: skip
    host.run(10)
    assert host.codes == ["nvlink_down"]
    host.run(120)
    assert host.health is Health.HEALTHY


def test_power_that_one_gpu_alone_cannot_report_is_a_warning(host: DcgmHost) -> None:
    host.incident(11, health=WARN)
    host.run(125)
    assert (host.codes, host.health) == (["dcgm_power_unreadable"], Health.WARNING)


def test_a_contained_memory_error_is_a_warning_whatever_dcgm_calls_it(host: DcgmHost) -> None:
    host.change(0, ecc_uncorrected_volatile=1, remapped_rows_pending=0)
    host.incident(4)
    host.step(host.xid(0, 94))
    host.run(120)
    assert host.health is Health.WARNING


@pytest.mark.slow
@pytest.mark.parametrize("code", [code for code, row in DCGM_CODES.items() if row.passive])
@pytest.mark.parametrize("health", [WARN, FAIL])
def test_no_incident_is_worse_than_its_row_and_than_what_dcgm_reports(host: DcgmHost, code: int, health: int) -> None:
    host.incident(code, health=health)
    host.run(700, every=20)
    order = (Health.HEALTHY, Health.WARNING, Health.FAILURE)
    worst = min(dcgm_row(code).worst, Health.WARNING if health == WARN else Health.FAILURE, key=order.index)
    assert order.index(host.health) <= order.index(worst)


# --- what it has that NVML has not


def test_memory_beyond_repair_is_a_failure(host: DcgmHost) -> None:
    host.field(1, memory_unrepairable=1)
    host.run(20)
    finding = host.finding()
    assert (str(finding.key), finding.severity) == (f"dcgm_faulty_memory@gpu/{slot(1)}", Severity.FAILURE)
    assert finding.advice is Advice.CONTACT_SUPPORT


@pytest.mark.parametrize("action", [5, 6, 7, 8])
def test_recovery_actions_that_dcgm_gives_no_incident_for_are_failures(host: DcgmHost, action: int) -> None:
    host.change(0, recovery_action=None)
    host.field(0, recovery_action=action)
    host.run(20)
    assert (host.codes, host.health) == (["gpu_recovery_action"], Health.FAILURE)
    assert str(action) in str(host.finding().evidence["dcgm"])


IMEX = ServiceFacts(unit="nvidia-imex.service", load="loaded", active="active", sub="running", enabled=True)
NOT_USED = replace(IMEX, active="inactive", sub="dead", enabled=False)


def of_many_nodes(host: DcgmHost, *services: ServiceFacts, uuid: int = 1, clique: int = 32766) -> None:
    """A node of a rack whose GPUs are one NVLink domain; 32766 is the clique of its default partition."""
    for index in host.gpus:
        host.change(index, fabric_in_cluster=uuid, fabric_clique=clique)
    host.services = services


@pytest.mark.parametrize(
    ("domain", "daemon", "codes"),
    [
        ("DOWN", 5, ["dcgm_imex_unhealthy"]),
        ("DEGRADED", 5, ["dcgm_imex_unhealthy"]),
        ("UP", 3, ["dcgm_imex_unhealthy"]),
        ("UNAVAILABLE", -3, ["dcgm_imex_unhealthy"]),
        ("UP", 5, []),
        ("UNAVAILABLE", 7, []),
        ("NOT_INSTALLED", -1, []),
        ("NOT_CONFIGURED", -2, []),
        ("", None, []),
    ],
)
def test_imex_that_is_not_ready_warns_where_nodes_share_an_nvlink_domain_and_this_one_uses_it(
    host: DcgmHost, domain: str, daemon: int | None, codes: list[str]
) -> None:
    of_many_nodes(host, IMEX)
    host.imex(domain, daemon)
    host.run(200)
    assert host.codes == codes
    assert host.health is (Health.WARNING if codes else Health.HEALTHY)


@pytest.mark.parametrize(
    ("unit", "used"),
    [
        (IMEX, True),
        (replace(IMEX, active="inactive", sub="dead"), True),  # it is to run, and does not
        (replace(IMEX, enabled=False), True),  # a Slurm prolog started it
        (replace(IMEX, enabled=False, active="failed"), True),
        (replace(NOT_USED, configured=True), True),  # this site's configuration wants it
        (NOT_USED, False),
        (replace(NOT_USED, load="masked"), False),
    ],
)
def test_imex_is_used_where_its_unit_is_enabled_or_was_started(
    host: DcgmHost, unit: ServiceFacts, *, used: bool
) -> None:
    of_many_nodes(host, unit)
    host.imex("UNAVAILABLE", -3)
    host.run(200)
    assert ("dcgm_imex_unhealthy" in host.codes) is used


@pytest.mark.parametrize(("daemon", "used"), [(2, True), (-3, False)])
def test_imex_is_used_where_its_daemon_answered_dcgm(host: DcgmHost, daemon: int, *, used: bool) -> None:
    """A container has no systemd to ask."""
    of_many_nodes(host)
    host.services = None
    host.imex("DEGRADED", daemon)
    host.run(200)
    assert host.codes == (["dcgm_imex_unhealthy"] if used else [])


@pytest.mark.parametrize("clique", [0, 1])
def test_imex_warns_in_any_clique_of_an_nvlink_domain_of_which_0_is_one(host: DcgmHost, clique: int) -> None:
    of_many_nodes(host, IMEX, clique=clique)
    host.imex("DOWN", 3)
    host.run(200)
    assert host.codes == ["dcgm_imex_unhealthy"]


@pytest.mark.parametrize(("uuid", "clique"), [(0, 0), (0, 7), (None, None)])
def test_imex_is_nothing_to_a_node_whose_nvlink_domain_is_its_own(
    host: DcgmHost, uuid: int | None, clique: int | None
) -> None:
    of_many_nodes(host, IMEX)
    for index in host.gpus:
        host.change(index, fabric_in_cluster=uuid, fabric_clique=clique)
    host.imex("DOWN", 3)
    host.run(200)
    assert host.health is Health.HEALTHY


def test_imex_that_is_down_stays_a_finding_over_a_restart_and_ends_with_its_use(host: DcgmHost) -> None:
    of_many_nodes(host, IMEX)
    host.imex("DOWN", 3)
    host.run(200)
    host.restart_daemon()
    host.run(200)
    assert host.codes == ["dcgm_imex_unhealthy"]
    assert [event.kind for event in host.ledger].count("raised") == 1
    host.services = (NOT_USED,)
    host.imex("UNAVAILABLE", -3)
    host.run(200)
    assert host.health is Health.HEALTHY


# --- what is no GPU


@pytest.mark.parametrize(
    ("code", "entity", "key", "severity"),
    [
        (33, (CONNECTX, 0), "dcgm_field_violation.connectx_0@node", Severity.FAILURE),
        (36, (CPU, 1), "dcgm_field_threshold_dbl.cpu_1@node", Severity.FAILURE),
        (15, (SWITCH, 3), "dcgm_nvswitch_fatal_error.switch_3@node", Severity.FAILURE),
        (52, (1, 9), "dcgm_faulty_memory.gpu_9@node", Severity.FAILURE),  # a GPU that never reported its slot
    ],
)
def test_an_incident_in_no_known_slot_is_about_the_node(
    host: DcgmHost, code: int, entity: tuple[int, int], key: str, severity: Severity
) -> None:
    host.incident(code, entity=entity)
    host.run(125)
    assert (str(host.finding().key), host.finding().severity) == (key, severity)


def test_a_switch_error_that_the_kernel_reported_with_its_number_is_not_reported_again(host: DcgmHost) -> None:
    host.incident(15, entity=(SWITCH, 3))
    host.step(SxidEvent(at=host.now, slot="0000:05:00.0", sxid=20034, fatal=True))
    host.run(120)
    assert host.codes == ["sxid"]


def test_a_switch_error_of_unknown_age_only_warns(host: DcgmHost) -> None:
    host.incident(15, entity=(SWITCH, 3), preexisting=True)
    host.run(120)
    assert host.finding().severity is Severity.WARNING


def test_an_xid_without_its_number_warns_while_it_is_new(host: DcgmHost) -> None:
    """An older DCGM does not write it into every text, and the engine keeps the incident until it is restarted."""
    host.incident(101, latched=True)
    host.run(90)
    assert (host.codes, host.health) == (["dcgm_xid_error"], Health.WARNING)
    host.run(700)
    assert host.codes == []


# --- whose GPU it is


def test_an_operator_s_given_up_gpu_is_not_judged(host: DcgmHost) -> None:
    del host.gpus[1], host.devices[1]
    host.run(40)
    host.accept()
    host.incident(52, gpu=1)
    host.run(60)
    assert host.codes == []


def test_a_gpu_that_is_gone_silences_dcgms_reports_about_it(host: DcgmHost) -> None:
    host.incident(52, gpu=1)
    host.run(20)
    del host.gpus[1], host.devices[1]
    host.status(1, DcgmGpuStatus.LOST)
    host.step()
    assert host.codes == ["gpu_missing"]
    assert host.finding().evidence["dcgm"] == "status lost"
    assert host.last is not None
    assert [finding.key.code for finding in host.last.verdict.silenced] == ["dcgm_faulty_memory"]


def test_findings_of_dcgm_alone_survive_a_restart_of_the_daemon(host: DcgmHost) -> None:
    host.incident(80)
    host.incident(52, gpu=1)
    host.run(65)
    before = {(str(f.key), f.first_seen) for f in host.findings}
    host.restart_daemon()
    host.run(30)
    assert {(str(f.key), f.first_seen) for f in host.findings} == before
    host.silence()
    host.run(200)
    assert host.codes == []


def test_every_made_row_is_that_of_its_code_and_no_other() -> None:
    for row in DCGM_CODES.values():
        code = f"dcgm_{row.name.lower()}"
        made = condition(code)
        assert made is not None
        assert (made.code, made.title) == (code, row.meaning)
    assert condition("dcgm_52") is None
    assert condition("dcgm_code_52") is None
    assert condition("dcgm_nonsense") is None


def test_a_lost_gpu_does_not_clear_what_dcgm_reported(host: DcgmHost) -> None:
    """Its incidents vanish from the check with it."""
    host.incident(80)
    host.run(65)
    host.silence()
    host.status(0, DcgmGpuStatus.LOST)
    host.run(100)
    assert "row_remap_failed" in host.codes


def test_the_subject_of_a_finding_is_never_without_its_slot(host: DcgmHost) -> None:
    host.incident(4, entity=(1, 0))
    host.run(65)
    assert all(finding.key.subject != gpu("") for finding in host.findings)
