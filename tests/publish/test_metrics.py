"""The daemon's own metrics and the telemetry under DCGM's names of a snapshot."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace

import pytest

from gpuwarden.features.active_test.judging.judgement import judge
from gpuwarden.features.active_test.judging.past import PastTest, kept
from gpuwarden.features.active_test.judging.results import CODES as TEST_CODES
from gpuwarden.features.active_test.memory import NAME
from gpuwarden.features.active_test.snapshot import Shown
from gpuwarden.health.conditions import CONDITIONS
from gpuwarden.health.model import NODE, Health, Incident, LemonDays, Severity, Subject, gpu
from gpuwarden.health.xid.catalogue import XIDS, XidClass
from gpuwarden.publish.metrics.dcgm_names import FIELDS, Telemetry, Traffic, nvlink_mb_per_second
from gpuwarden.publish.metrics.exposition import Renderer
from gpuwarden.publish.metrics.table import LEMONS_MOST, METRICS, XIDS_MOST
from gpuwarden.publish.snapshot import Clients, CollectorStatus, XidCount
from gpuwarden_collectors.active_test.facts import PeerMeasured
from gpuwarden_collectors.active_test.level import Level
from gpuwarden_collectors.base import PassOutcome
from gpuwarden_collectors.facts import GpuAnswer, GpuProcess
from gpuwarden_collectors.gpu_readings import GpuReadings
from gpuwarden_collectors.slurm.jobs_facts import Job, JobsFacts
from support.active_tests import healthy, wrong_words
from support.scrape import scrape
from support.snapshots import (
    FRESH_FOR,
    UPTIME,
    at,
    collector,
    finding,
    gpu_facts,
    h100_readings,
    missing,
    slot,
    snapshot,
)

# --- our own


def test_metrics_follow_the_conventions_of_prometheus() -> None:
    for metric in METRICS:
        assert metric.name.startswith(("gpuwarden_", "process_"))
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        assert not set(metric.help) & {"\n", "\\", '"'}
    assert len({metric.name for metric in METRICS}) == len(METRICS)


@pytest.mark.parametrize("health", Health)
def test_exactly_one_state_of_the_node_is_one(health: Health) -> None:
    page = scrape(snapshot(health=health))
    assert sum(page.values("gpuwarden_node_health")) == 1
    assert page.value("gpuwarden_node_health", state=health.value) == 1


def test_an_incident_of_several_findings_counts_once_and_is_described() -> None:
    cause, alone = finding("xid", gpu(slot(2)), detail="79"), finding("disk_full", NODE, Severity.WARNING)
    others = tuple(finding("sxid", Subject("switch", f"0000:0{n}:00.0"), detail="20034").key for n in (5, 6))
    shown = snapshot(4, findings=[cause, alone])
    incidents = (Incident(cause.key, (*others, finding("gpu_missing", gpu(slot(2))).key)), Incident(alone.key))
    page = scrape(replace(shown, verdict=replace(shown.verdict, incidents=incidents)))
    assert page.value("gpuwarden_incidents", severity="failure") == 1
    assert page.value("gpuwarden_incidents", severity="warning") == 1
    assert page.values("gpuwarden_incident_info") == [1]
    assert (
        page.value("gpuwarden_incident_info", check="xid", detail="79", consequences="gpu_missing, sxid.20034 x2") == 1
    )
    assert scrape(snapshot()).values("gpuwarden_incidents") == [0, 0]


def test_an_old_observation_makes_a_healthy_node_unknown_and_not_schedulable() -> None:
    shown = snapshot()
    page = scrape(replace(shown, made=at(UPTIME + FRESH_FOR + 1)))
    assert page.value("gpuwarden_node_health", state="unknown") == 1
    assert page.value("gpuwarden_schedulable") == 0
    assert page.value("gpuwarden_heartbeat_timestamp_seconds") == at(UPTIME).wall


def test_before_the_first_observation_there_is_no_heartbeat_time() -> None:
    assert scrape(replace(snapshot(), observed=None, nvml=None)).value("gpuwarden_heartbeat_timestamp_seconds") is None


def test_simulated_gpus_are_distinguished_from_real_ones() -> None:
    assert scrape(snapshot(simulated=True)).value("gpuwarden_simulated") == 1
    assert scrape(snapshot()).value("gpuwarden_simulated") == 0


def active_tests_of(gpus: int) -> Mapping[str, Shown]:
    """Return tests of each GPU at each level; the last GPU failed at the highest, and is tested again."""

    def result(index: int, level: Level) -> PastTest:
        test = healthy(index, level)
        if level is Level.STANDARD:
            peers = tuple(PeerMeasured(peer=f"GPU-{n}", speed=3e11) for n in range(gpus - 1))
            test = replace(test, peers=peers) if index < gpus - 1 else wrong_words(test, (0, 64))
        return kept(test, judge([test])[test.uuid], at(UPTIME - 100 + list(Level).index(level)))

    results = {slot(n): tuple(result(n, level) for level in Level) for n in range(gpus)}
    counts = {"quick_nothing_found": gpus, "standard_failure": 1, "soak_great": 3}
    return {NAME: Shown(results=results, counts=counts)}


def test_before_the_first_test_there_is_no_series_of_tests_and_then_few() -> None:
    without = scrape(snapshot(8))
    assert [sample.name for sample in without.samples if sample.name.startswith("gpuwarden_test_")] == []
    page = scrape(replace(snapshot(8), features=active_tests_of(8)))
    assert page.value("gpuwarden_test_runs_total", level="standard", result="failure") == 1
    assert page.values("gpuwarden_test_runs_total") == [0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 1, 0]
    assert page.value("gpuwarden_test_last_timestamp_seconds", gpu="7", level="standard") == at(UPTIME - 98).wall
    assert page.value("gpuwarden_test_result", gpu="7", result="failure") == 1
    assert page.value("gpuwarden_test_result", gpu="0", result="nothing_found") == 1
    assert sum(page.values("gpuwarden_test_result")) == 8
    assert page.value("gpuwarden_test_figure", gpu="0", figure="peers") == 3e11
    assert page.value("gpuwarden_test_figure", gpu="3", figure="int8") == pytest.approx(1.206e15, rel=0.01)
    assert len(page.samples) - len(without.samples) == 12 + 8 * (len(TEST_CODES) + 4 + 3) + 7 * 6 + 5


def test_every_check_of_every_expected_gpu_is_zero_from_the_start_and_those_of_tests_once_it_was_tested() -> None:
    page = scrape(snapshot(2))
    tested = scrape(replace(snapshot(2), features=active_tests_of(2)))
    for code in TEST_CODES:
        assert page.values("gpuwarden_finding", check=code) == []
        assert tested.values("gpuwarden_finding", check=code) == [0, 0]
    for row in [row for row in CONDITIONS.values() if row.code not in TEST_CODES and not row.shadow]:
        values = page.values("gpuwarden_finding", check=row.code, severity=row.severity.value)
        assert values == ([0, 0] if row.scope in ("gpu", "link") else [0]), row.code
    assert page.value("gpuwarden_finding", check="ledger_unavailable", gpu="", uuid="", pci_bus_id="") == 0


def test_a_finding_raises_the_series_of_its_gpu_and_no_other() -> None:
    page = scrape(snapshot(findings=[finding("xid", gpu(slot(3)), detail="79")]))
    assert page.value("gpuwarden_finding", check="xid", gpu="3", uuid="GPU-0003", pci_bus_id=slot(3)) == 1
    assert sum(page.values("gpuwarden_finding")) == 1


def test_a_finding_milder_than_its_check_can_be_has_a_series_of_its_own() -> None:
    page = scrape(snapshot(findings=[finding("xid", gpu(slot(3)), Severity.WARNING, detail="31")]))
    assert page.value("gpuwarden_finding", check="xid", gpu="3", severity="warning") == 1
    assert page.value("gpuwarden_finding", check="xid", gpu="3", severity="failure") == 0


def test_several_findings_of_one_check_on_one_gpu_are_one_series() -> None:
    page = scrape(snapshot(findings=[finding("xid", gpu(slot(0)), detail=n) for n in ("48", "79", "95")]))
    assert page.value("gpuwarden_finding", check="xid", gpu="0", severity="failure") == 1


def test_a_finding_on_a_switch_names_the_address_of_the_switch() -> None:
    page = scrape(snapshot(findings=[finding("sxid", Subject("switch", "0000:05:00.0"), detail="20009")]))
    assert page.value("gpuwarden_finding", check="sxid", pci_bus_id="0000:05:00.0", gpu="", uuid="") == 1


def test_a_finding_on_the_node_has_empty_gpu_labels() -> None:
    page = scrape(snapshot(findings=[finding("ledger_unavailable", NODE, Severity.WARNING)]))
    assert page.value("gpuwarden_finding", check="ledger_unavailable", gpu="", uuid="", pci_bus_id="") == 1


def test_a_check_that_the_table_does_not_know_is_shown_while_it_is_found() -> None:
    page = scrape(snapshot(findings=[finding("plugin_site", NODE)]))
    assert page.value("gpuwarden_finding", check="plugin_site") == 1


def test_a_missing_gpu_is_named_and_counted() -> None:
    page = scrape(missing(snapshot(), 3))
    assert page.value("gpuwarden_gpu_missing", uuid="GPU-0003", pci_bus_id=slot(3)) == 1
    assert sum(page.values("gpuwarden_gpu_missing")) == 1
    assert (page.value("gpuwarden_gpus_expected"), page.value("gpuwarden_gpus_present")) == (8, 7)


def test_a_gpu_that_is_lost_keeps_the_labels_of_its_series() -> None:
    renderer = Renderer()
    before = scrape(snapshot(), renderer)
    after = scrape(missing(snapshot(), 3), renderer)
    assert after.value("gpuwarden_gpu_health", pci_bus_id=slot(3), gpu="3", state="failure") == 1
    for name in ("gpuwarden_xid_total", "gpuwarden_finding"):
        assert before.labels(name) == after.labels(name)


def test_a_gpu_that_was_lost_before_the_daemon_started_has_the_labels_that_it_had() -> None:
    """A restart must not end an alert and raise another."""
    before, after = scrape(snapshot()), scrape(missing(snapshot(), 3))
    assert after.value("gpuwarden_gpu_health", pci_bus_id=slot(3), gpu="3", state="failure") == 1
    assert before.labels("gpuwarden_finding") == after.labels("gpuwarden_finding")


def test_where_nvml_does_not_number_in_the_order_of_the_slots_the_index_of_a_lost_gpu_is_unknown() -> None:
    shown, renderer = missing(snapshot(4), 1), Renderer()
    unread = tuple(replace(g, index=None) for g in shown.verdict.gpus)
    turned = tuple(g if g.index is None else replace(g, index=3 - g.index) for g in shown.verdict.gpus)
    for gpus, index in ((unread, "1"), (turned, "")):
        page = scrape(replace(shown, verdict=replace(shown.verdict, gpus=gpus)), renderer)
        assert page.value("gpuwarden_gpu_health", pci_bus_id=slot(1), gpu=index, state="failure") == 1


def test_how_many_gpus_are_expected_is_not_shown_while_nobody_knows() -> None:
    shown = snapshot(0)
    page = scrape(replace(shown, verdict=replace(shown.verdict, expected=None)))
    assert page.values("gpuwarden_gpus_expected") == []


def test_every_failure_xid_of_every_expected_gpu_counts_from_zero() -> None:
    page = scrape(snapshot(2))
    failures = {str(row.xid) for row in XIDS.values() if row.klass is XidClass.FAILURE}
    for index in ("0", "1"):
        assert {labels["xid"] for labels in page.labels("gpuwarden_xid_total") if labels["gpu"] == index} == failures
    assert set(page.values("gpuwarden_xid_total")) == {0}
    assert page.values("gpuwarden_xid_last_timestamp_seconds") == []


def test_an_xid_that_this_site_makes_a_failure_counts_from_zero_too() -> None:
    page = scrape(replace(snapshot(1), site_failures=("31",)))
    assert page.value("gpuwarden_xid_total", gpu="0", xid="31") == 0


def test_xids_are_counted_whatever_their_class() -> None:
    xids = (XidCount(slot=slot(1), xid=79, count=2, last=5.5), XidCount(slot=slot(1), xid=13, count=40, last=6.5))
    page = scrape(replace(snapshot(2), xids=xids))
    assert page.value("gpuwarden_xid_total", gpu="1", xid="79") == 2
    assert page.value("gpuwarden_xid_total", gpu="1", xid="13") == 40
    assert page.value("gpuwarden_xid_last_timestamp_seconds", gpu="1", xid="13") == 6.5


def test_an_xid_of_a_gpu_that_nobody_expects_is_still_counted() -> None:
    page = scrape(replace(snapshot(1), xids=(XidCount(slot="0000:99:00.0", xid=79, count=1),)))
    assert page.value("gpuwarden_xid_total", pci_bus_id="0000:99:00.0", gpu="", uuid="") == 1


@pytest.mark.parametrize(
    ("outcome", "up"),
    [
        (PassOutcome.OBSERVED, 1),
        (PassOutcome.FAILED, 0),
        (PassOutcome.TIMED_OUT, 0),
        (PassOutcome.ABSENT, None),
        (None, None),
    ],
)
def test_a_collector_is_up_when_it_observed_and_has_no_series_where_it_has_no_source(
    outcome: PassOutcome | None, up: int | None
) -> None:
    page = scrape(replace(snapshot(), collectors=(replace(collector(), outcome=outcome),)))
    assert page.value("gpuwarden_collector_up", collector="nvml") == up


def test_a_collector_publishes_its_times_and_its_restarts() -> None:
    page = scrape(replace(snapshot(), collectors=(collector(), CollectorStatus(name="pci"))))
    assert page.value("gpuwarden_collector_duration_seconds", collector="nvml") == 0.25
    assert page.value("gpuwarden_collector_last_success_timestamp_seconds", collector="nvml") == at(UPTIME - 1).wall
    assert page.value("gpuwarden_collector_timeouts_total", collector="nvml") == 2
    assert page.value("gpuwarden_collector_restarts_total", collector="nvml") == 3
    assert page.value("gpuwarden_collector_restarts_total", collector="pci") is None


def test_what_could_not_be_written_or_read_is_counted() -> None:
    page = scrape(replace(snapshot(), dropped={"log": 4, "ledger": 0}, log_gaps=2, log_lost=17))
    assert page.value("gpuwarden_dropped_total", what="log") == 4
    assert page.value("gpuwarden_dropped_total", what="ledger") == 0
    assert page.value("gpuwarden_kernel_log_gaps_total") == 2
    assert page.value("gpuwarden_kernel_log_lost_records_total") == 17


@pytest.mark.parametrize("uses", ["nobody", "a process", "a job"])
def test_a_node_is_busy_while_a_process_or_a_job_has_a_gpu(uses: str) -> None:
    shown = snapshot(2)
    assert shown.nvml is not None
    if uses == "a process":
        gpus = (shown.nvml.gpus[0], replace(shown.nvml.gpus[1], processes=(GpuProcess(pid=71),)))
        shown = replace(shown, nvml=replace(shown.nvml, gpus=gpus))
    ended, there = Job(id=11, gpus=(0,), started=5.0, ended=9.0), Job(id=12, gpus=(1,), started=5.0)
    shown = replace(shown, jobs=JobsFacts(jobs=(ended, there) if uses == "a job" else (ended,)))
    assert scrape(shown).value("gpuwarden_node_busy") == int(uses != "nobody")
    unseen = scrape(replace(shown, nvml=None)).value("gpuwarden_node_busy")
    assert unseen == (1 if uses == "a job" else None)


def test_clients_that_were_not_answered_are_counted_from_zero() -> None:
    assert set(scrape(snapshot()).values("gpuwarden_http_refused_total")) == {0}
    page = scrape(replace(snapshot(), clients=Clients(turned_away=3, refused={"login": 2})))
    assert page.value("gpuwarden_http_turned_away_total") == 3
    assert page.value("gpuwarden_http_refused_total", why="login") == 2
    assert page.value("gpuwarden_http_refused_total", why="handshake") == 0


def test_no_metric_but_one_names_the_node() -> None:
    assert [metric.name for metric in METRICS if "node" in metric.labels] == ["gpuwarden_node_info"]


# --- under DCGM's names


def read(name: str, readings: GpuReadings) -> int | float | None:
    (field,) = (field for field in FIELDS if field.name == name)
    return field.read(Telemetry(readings))


def test_names_are_unique_and_help_needs_no_escape() -> None:
    assert len({field.name for field in FIELDS}) == len(FIELDS)
    assert not any(set(field.help) & {"\n", "\\", '"'} for field in FIELDS)


def test_every_row_reads_a_reading_that_exists_and_gives_none_for_none() -> None:
    assert {field.read(Telemetry(GpuReadings())) for field in FIELDS} == {None}


def test_every_row_gives_a_number_once_every_reading_is_known() -> None:
    every = GpuReadings(**{field.name: 3 for field in fields(GpuReadings)})
    published = Telemetry(
        replace(every, memory_reserved_bytes=0), last_xid=79, nvlink_mb_per_second=5, memory_unrepairable=0
    )
    assert [field.name for field in FIELDS if field.read(published) is None] == []


@pytest.mark.parametrize(
    ("name", "readings", "value"),
    [
        ("DEV_POWER_USAGE", GpuReadings(power_usage_mw=412_345), 412.345),
        ("DEV_POWER_MGMT_LIMIT", GpuReadings(power_limit_mw=699_999), 699),
        ("DEV_FB_USED", GpuReadings(memory_used_bytes=3 * 2**20 - 1), 2),
        (
            "DEV_FB_USED_PERCENT",
            GpuReadings(memory_used_bytes=30, memory_total_bytes=100, memory_reserved_bytes=40),
            0.5,
        ),
        ("DEV_FB_USED_PERCENT", GpuReadings(memory_used_bytes=0, memory_total_bytes=0), None),
        ("DEV_GPU_TEMP", GpuReadings(temperature=200), 200),
        ("DEV_GPU_TEMP", GpuReadings(temperature=255), None),
        ("DEV_FABRIC_MANAGER_STATUS", GpuReadings(fabric_state=2, fabric_status=9), 2),
        ("DEV_FABRIC_MANAGER_STATUS", GpuReadings(fabric_state=3, fabric_status=0), 3),
        ("DEV_FABRIC_MANAGER_STATUS", GpuReadings(fabric_state=3, fabric_status=9), 4),
        ("DEV_FABRIC_MANAGER_ERROR_CODE", GpuReadings(fabric_state=3, fabric_status=9), 9),
        ("DEV_FABRIC_MANAGER_ERROR_CODE", GpuReadings(fabric_state=2, fabric_status=9), None),
        ("DEV_NVLINK_COUNT_SYMBOL_BER_FLOAT", GpuReadings(nvlink5_symbol_ber=(5 << 8) | 12), 5e-12),
        ("PROF_PIPE_TENSOR_ACTIVE", GpuReadings(gpm_tensor_active=87.5), 0.875),
        ("PROF_PIPE_TENSOR_ACTIVE", GpuReadings(gpm_tensor_active=math.nan), None),
        ("PROF_NVLINK_TX_BYTES", GpuReadings(gpm_nvlink_tx_mib=1.5), 1_572_864),
        ("PROF_NVLINK_TX_BYTES", GpuReadings(gpm_nvlink_tx_mib=math.inf), None),
    ],
)
def test_units_and_truncations_are_those_of_dcgm(name: str, readings: GpuReadings, value: float | None) -> None:
    assert read(name, readings) == (value if value is None else pytest.approx(value))


def test_doubles_have_six_decimals_and_integers_none_as_dcgm_exporter_prints_them() -> None:
    readings = GpuReadings(power_usage_mw=412_345, temperature=55, nvlink5_symbol_ber=(5 << 8) | 12)
    lines = Renderer().render(snapshot(1, readings=readings)).text.decode().splitlines()
    printed = {line.partition("{")[0]: line.rpartition(" ")[2] for line in lines}
    assert printed["DCGM_FI_DEV_POWER_USAGE"] == "412.345000"
    assert printed["DCGM_FI_DEV_GPU_TEMP"] == "55"
    assert printed["DCGM_FI_DEV_NVLINK_COUNT_SYMBOL_BER_FLOAT"] == "5e-12"


def test_labels_are_in_the_order_of_dcgm_exporter() -> None:
    text = Renderer(hostname_label="hostname").render(snapshot(1)).text.decode()
    assert (
        'DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-0000",pci_bus_id="00000000:4E:00.0",device="nvidia0",'
        'modelName="NVIDIA H100 80GB HBM3",hostname="gpu-node01",DCGM_FI_DRIVER_VERSION="550.163.01"} '
    ) in text


def test_the_last_xid_of_this_boot_is_named_and_those_of_earlier_boots_are_not() -> None:
    xids = (
        XidCount(slot=slot(0), xid=31, count=1, last=at(500).wall),
        XidCount(slot=slot(0), xid=79, count=1, last=at(600).wall),
        XidCount(slot=slot(1), xid=48, count=1, last=at(-600).wall),
    )
    page = scrape(replace(snapshot(2), xids=xids))
    assert page.values("DCGM_FI_DEV_XID_ERRORS") == [79]
    (labels,) = page.labels("DCGM_FI_DEV_XID_ERRORS")
    assert (labels["gpu"], labels["err_code"], labels["err_msg"]) == ("0", "79", XIDS[79].meaning)


def test_series_of_a_lost_gpu_end() -> None:
    shown = snapshot(2)
    assert shown.nvml is not None
    lost = replace(gpu_facts(1), answer=GpuAnswer.LOST, readings=GpuReadings())
    for nvml in (replace(shown.nvml, gpus=(gpu_facts(0), lost)), replace(shown.nvml, gpus=(gpu_facts(0),))):
        page = scrape(replace(shown, nvml=nvml))
        assert {s.labels["gpu"] for s in page.samples if s.name.startswith("DCGM")} == {"0"}


def test_without_fresh_readings_there_is_no_telemetry() -> None:
    page = scrape(replace(snapshot(), nvml=None))
    assert [s.name for s in page.samples if s.name.startswith("DCGM")] == []


def test_two_gpus_with_one_index_are_two_series() -> None:
    shown = snapshot(2)
    assert shown.nvml is not None
    twins = tuple(replace(facts, index=0) for facts in shown.nvml.gpus)
    page = scrape(replace(shown, nvml=replace(shown.nvml, gpus=twins)))
    assert len(page.values("DCGM_FI_DEV_SM_CLOCK", gpu="0")) == 2


@pytest.mark.parametrize(
    ("before", "now", "rate"),
    [
        (None, Traffic(10**6, 5.0), None),
        (Traffic(10**6, 0.0), Traffic(11 * 10**6, 5.0), 2000),
        (Traffic(10**6, 5.0), Traffic(10**6, 5.0), None),
        (Traffic(10**6, 0.0), Traffic(5, 5.0), None),
    ],
)
def test_nvlink_traffic_is_a_rate_between_two_passes(before: Traffic | None, now: Traffic, rate: int | None) -> None:
    assert nvlink_mb_per_second(before, now) == rate


def test_a_snapshot_between_two_passes_keeps_the_nvlink_rate() -> None:
    renderer, shown = Renderer(), snapshot(1, readings=replace(h100_readings(), nvlink_tx_kib=0, nvlink_rx_kib=0))
    later = snapshot(1, readings=replace(h100_readings(), nvlink_tx_kib=5 * 10**6, nvlink_rx_kib=10**6))
    later = replace(later, observed=at(UPTIME + 2), made=at(UPTIME + 2))
    name = "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL_total"  # the parser gives every counter that ending
    assert scrape(shown, renderer).value(name) is None
    assert scrape(later, renderer).value(name) == 3000
    assert scrape(replace(later, made=at(UPTIME + 3)), renderer).value(name) == 3000


def test_of_xids_that_are_no_failures_the_latest_are_published_and_of_failures_always_the_count() -> None:
    dead = XidCount(slot=slot(0), xid=79, count=3, last=1.0)
    xids = (dead, *(XidCount(slot=slot(n % 8), xid=200 + n, count=1, last=10.0 + n) for n in range(100)))
    page = scrape(replace(snapshot(8), xids=xids))
    published = {labels["xid"] for labels in page.labels("gpuwarden_xid_last_timestamp_seconds")}
    assert published == {str(200 + n) for n in range(100 - XIDS_MOST, 100)}
    assert page.value("gpuwarden_xid_total", gpu="0", xid="79") == 3
    others = {labels["xid"] for labels in page.labels("gpuwarden_xid_total")}
    assert {number for number in others if int(number) >= 200} == published


def test_the_worst_boards_are_published_however_many_there_are() -> None:
    lemons = tuple(LemonDays(what="xids", days=n, slot=slot(n)) for n in range(1, 40))
    shown = snapshot(1)
    page = scrape(replace(shown, verdict=replace(shown.verdict, lemons=lemons)))
    days = sorted(value for value in page.values("gpuwarden_lemon") if value)
    assert days == list(range(40 - LEMONS_MOST, 40))
