"""The documents, key by key: tools depend on them."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from gpuwarden.health.model import NODE, Advice, Event, EventKind, Health, Key, Latch, Severity, Subject, gpu
from gpuwarden.policy.model import Notice
from gpuwarden.publish import status
from gpuwarden.publish.returning import BY_ITSELF, BY_PERSON
from gpuwarden.publish.snapshot import Enforced
from gpuwarden_collectors.base import PassOutcome
from gpuwarden_collectors.facts import CallError, Stamp
from support.snapshots import FRESH_FOR, UPTIME, at, collector, finding, missing, slot, snapshot

NOW = at(UPTIME + 2.5)
LATER = at(UPTIME + FRESH_FOR + 1)


def test_a_heartbeat_has_everything_that_its_contract_names() -> None:
    code, document = status.heartbeat(snapshot(), NOW)
    assert code == 200
    assert document == {
        "node": "gpu-node01",
        "status": "healthy",
        "schedulable": True,
        "reasons": [],
        "sequence": 7,
        "observed_at": "2027-01-15T08:16:40.000Z",
        "age_seconds": 2.5,
        "boot_id": "a-boot",
        "started_at": "2027-01-15T08:01:40.000Z",
        "version": "1.2.3",
        "mode": "observe",
        "simulated": False,
        "gpus": {"expected": 8, "present": 8},
        "notice": None,
        "excluded_by": [],
    }


@pytest.mark.parametrize(
    ("health", "code"), [(Health.HEALTHY, 200), (Health.WARNING, 200), (Health.FAILURE, 503), (Health.UNKNOWN, 503)]
)
def test_a_node_may_take_work_while_it_is_healthy_or_warned(health: Health, code: int) -> None:
    assert status.heartbeat(snapshot(health=health), NOW)[0] == code


def test_an_old_observation_is_unknown_with_a_reason() -> None:
    code, document = status.heartbeat(snapshot(), LATER)
    assert (code, document["status"], document["schedulable"]) == (503, "unknown", False)
    assert document["reasons"] == ["observation_too_old"]


@pytest.mark.parametrize("age", [0.0, FRESH_FOR / 2, FRESH_FOR, FRESH_FOR * 3])
def test_how_long_gpus_may_be_shown_ends_when_they_are_no_longer_fresh(age: float) -> None:
    """A reader that wakes then finds them too old, and no earlier."""
    shown, now = snapshot(), at(UPTIME + age)
    assert shown.observed is not None
    seconds = shown.lasts(now)
    assert (seconds > 0) is shown.fresh(now)
    assert not shown.fresh(at(now.boottime + max(0.0, seconds)))
    assert replace(shown, nvml=None).lasts(now) == math.inf


def test_a_failure_stays_a_failure_however_old_it_grows() -> None:
    shown = snapshot(health=Health.FAILURE, findings=[finding("gpu_missing", gpu(slot(1)))])
    code, document = status.heartbeat(shown, LATER)
    assert (code, document["status"]) == (503, "failure")
    assert document["reasons"] == ["gpu_missing", "observation_too_old"]


def test_before_the_first_observation_times_are_null() -> None:
    code, document = status.heartbeat(replace(snapshot(), observed=None), NOW)
    assert (code, document["status"]) == (503, "unknown")
    assert (document["observed_at"], document["age_seconds"]) == (None, None)


@pytest.mark.parametrize(
    "enforced",
    [
        Enforced(excluded=(("slurm", "failure"),)),
        Enforced(notice=Notice(source="aws", kind="interruption", at=NOW, boot_id="b")),
    ],
    ids=["excluded", "notice"],
)
def test_an_excluded_or_departing_node_takes_no_work(enforced: Enforced) -> None:
    code, document = status.heartbeat(replace(snapshot(), enforced=enforced), NOW)
    assert (code, document["status"], document["schedulable"]) == (503, "healthy", False)


def test_a_clock_that_was_set_back_gives_no_negative_age() -> None:
    assert status.heartbeat(snapshot(), at(UPTIME - 5))[1]["age_seconds"] == 0.0


def test_simulated_is_in_every_document() -> None:
    shown = snapshot(simulated=True)
    documents = (
        status.heartbeat(shown, NOW)[1],
        status.status(shown, NOW),
        status.gpus(shown, NOW),
        status.findings(shown),
        status.events(shown, []),
    )
    assert all(document["simulated"] is True for document in documents)


def test_status_holds_the_whole_node() -> None:
    root = finding("gpu_missing", gpu(slot(3)))
    quiet = replace(finding("nvlink_down", Subject("link", slot(3), "4")), silenced_by=str(root.key))
    shown = missing(snapshot(), 3)
    shown = replace(shown, verdict=replace(shown.verdict, silenced=(quiet,), unknown=("something",)))
    document = status.status(shown, NOW)
    assert document["expected"] == {"count": 8, "from": "learned"}
    assert document["present"] == 7
    assert document["unknown"] == ["something"]
    assert [row["index"] for row in document["gpus"]] == [0, 1, 2, None, 4, 5, 6, 7]
    assert [row["id"] for row in document["findings"]] == [f"gpu_missing@gpu/{slot(3)}"]
    assert [(row["id"], row["silenced_by"]) for row in document["silenced"]] == [
        (f"nvlink_down@link/{slot(3)}/4", f"gpu_missing@gpu/{slot(3)}")
    ]
    assert json.loads(status.to_json(document)) == document


def test_a_gpu_shows_its_identity_health_and_main_readings() -> None:
    row = status.gpus(snapshot(), NOW)["gpus"][2]
    assert {name: row[name] for name in row if name != "readings"} == {
        "index": 2,
        "uuid": "GPU-0002",
        "pci_bus_id": slot(2),
        "name": "NVIDIA H100 80GB HBM3",
        "serial": "1652",
        "health": "healthy",
        "expected": True,
        "present": True,
        "reasons": [],
    }
    assert set(row["readings"]) == set(status.MAIN_READINGS)


def test_old_readings_are_not_shown_and_a_gpu_without_news_is_unknown() -> None:
    rows = status.gpus(missing(snapshot(), 3), LATER)["gpus"]
    assert all(row["readings"] == {} for row in rows)
    assert [row["health"] for row in rows] == ["unknown"] * 3 + ["failure"] + ["unknown"] * 4


def test_a_finding_names_its_gpu_and_what_ends_it() -> None:
    shown = snapshot(findings=[finding("xid", gpu(slot(1)), detail="79", latch=Latch.REBOOT)])
    (row,) = status.findings(shown)["findings"]
    assert row == {
        "id": f"xid.79@gpu/{slot(1)}",
        "check": "xid",
        "severity": "failure",
        "title": "the title of xid",
        "gpu": 1,
        "uuid": "GPU-0001",
        "pci_bus_id": slot(1),
        "detail": "79",
        "advice": "observe",
        "to_do": f"Check `timeout 20 nvidia-smi -i {slot(1)}`. Bus and driver still have the GPU: `dmesg -x` shows whether the kernel "
        "wrote the line.",
        "runbook": "https://github.com/gpuwarden/gpuwarden/blob/main/docs/use/runbooks/gpu.md#xid",
        "evidence": {"count": 1, "text": "what was seen"},
        "first_seen": "2027-01-15T08:15:40.000Z",
        "last_seen": "2027-01-15T08:16:40.000Z",
        "count": 1,
        "latched": False,
        "confirmed": True,
        "shadow": False,
        "ends_when": status.ENDS_WHEN[Latch.REBOOT],
        "comes_back_when": BY_ITSELF,
        "caused_by": None,
    }


def test_every_latch_has_a_text_on_what_ends_it() -> None:
    assert set(status.ENDS_WHEN) == set(Latch)


def test_a_finding_that_ends_by_itself_shows_how_long_that_takes() -> None:
    shown = snapshot(findings=[finding("xid", gpu(slot(1)), Severity.WARNING, detail="94")])
    assert status.findings(shown)["findings"][0]["ends_when"] == "it has not been seen for 1h"


@pytest.mark.parametrize("wall", [1e18, -1e18])
def test_a_time_that_no_calendar_has_is_no_error(wall: float) -> None:
    strange = Event(kind=EventKind.STARTED, at=Stamp(0.0, wall), boot_id="a-boot")
    assert status.events(snapshot(), [strange])["events"][0]["at"].endswith("Z")


def test_a_finding_on_the_node_names_no_gpu_and_one_on_a_link_names_the_link() -> None:
    shown = snapshot(
        findings=[
            finding("ledger_unavailable", NODE, Severity.WARNING),
            finding("nvlink_down", Subject("link", slot(0), "3")),
        ]
    )
    node, link = status.findings(shown)["findings"]
    assert (node["gpu"], node["uuid"], node["pci_bus_id"], node["detail"]) == (None, None, None, "")
    assert (link["gpu"], link["detail"]) == (0, "link 3")


def test_a_number_that_json_cannot_express_is_null() -> None:
    odd = replace(finding("xid", NODE), evidence={"rate": math.nan, "most": math.inf, "least": 1.5})
    document = status.findings(snapshot(findings=[odd]))
    assert json.loads(status.to_json(document))["findings"][0]["evidence"] == {"rate": None, "most": None, "least": 1.5}


def test_a_collector_shows_its_last_pass_and_its_worker() -> None:
    (row,) = status.status(replace(snapshot(), collectors=(collector(),)), NOW)["collectors"]
    assert (row["name"], row["outcome"], row["age_seconds"], row["duration_seconds"]) == ("nvml", "observed", 3.5, 0.25)
    assert (row["worker"]["pid"], row["worker"]["silent_since"]) == (4711, None)


def test_errors_list_what_the_daemon_could_not_do() -> None:
    shown = replace(
        snapshot(),
        collectors=(replace(collector("pci", PassOutcome.FAILED), error="cannot read /sys"),),
        dropped={"log": 3, "ledger": 0},
        log_gaps=1,
        log_lost=40,
    )
    assert status.status(shown, NOW)["errors"] == [
        "pci: failed: cannot read /sys",
        "log: 3 writes dropped, because they were not taken in time",
        "kernel log: 40 records lost in 1 gaps",
    ]


@pytest.mark.parametrize("fate", ["abandoned", "parked"])
def test_a_reader_that_was_left_behind_is_shown_though_another_one_reads(fate: str) -> None:
    nvml = collector()
    assert nvml.worker is not None
    left = replace(nvml, worker=replace(nvml.worker, **{fate: True}))  # type: ignore[arg-type]  # both are bool
    (expected,) = status.status(replace(snapshot(), collectors=(left,)), NOW)["errors"]
    assert expected.startswith("nvml: a reader process could not be ended")


def test_a_failed_call_of_a_gpu_is_shown() -> None:
    shown = snapshot(2)
    assert shown.nvml is not None
    sick = replace(
        shown.nvml.gpus[1], errors=(CallError(call="nvmlDeviceGetRemappedRows", code=999, text="Unknown Error"),)
    )
    shown = replace(shown, nvml=replace(shown.nvml, gpus=(shown.nvml.gpus[0], sick)))
    expected = f"GPU 1 ({slot(1)}): failed calls: nvmlDeviceGetRemappedRows: Unknown Error"
    assert status.status(shown, NOW)["errors"] == [expected]


def test_an_event_shows_its_kind_subject_and_time() -> None:
    raised = Event(
        kind=EventKind.RAISED, at=at(UPTIME), boot_id="a-boot", key=Key("xid", gpu(slot(1)), "79"), data={"severity": "failure"}
    )  # fmt: skip
    started = Event(kind=EventKind.STARTED, at=at(UPTIME), boot_id="a-boot")
    first, second = status.events(snapshot(), [started, raised])["events"]
    assert (first["kind"], first["id"], first["check"], first["pci_bus_id"]) == ("started", None, None, None)
    assert second == {
        "at": "2027-01-15T08:16:40.000Z",
        "kind": "raised",
        "id": f"xid.79@gpu/{slot(1)}",
        "check": "xid",
        "pci_bus_id": slot(1),
        "boot_id": "a-boot",
        "data": {"severity": "failure"},
    }


def test_a_failure_says_when_the_node_comes_back_and_a_warning_does_not() -> None:
    person = replace(finding("gpu_missing", gpu(slot(1))), advice=Advice.INSPECT_HARDWARE)
    shown = snapshot(
        findings=[person, finding("xid", gpu(slot(2)), detail="48"), finding("disk_full", NODE, Severity.WARNING)]
    )
    assert [row["comes_back_when"] for row in status.findings(shown)["findings"]] == [BY_PERSON, BY_ITSELF, ""]


def test_an_unknown_node_says_why_and_what_to_do_unless_a_finding_does() -> None:
    shown = snapshot(health=Health.UNKNOWN)
    shown = replace(shown, verdict=replace(shown.verdict, unknown=("driver_not_loaded",)))
    (reason,) = status.status(shown, NOW)["unknown_because"]
    assert reason["to_do"].startswith("If nothing reloads it, run `modprobe nvidia`")
    assert reason["runbook"].endswith("/docs/use/runbooks/GpuwardenNodeUnknown.md")
    told = replace(shown, verdict=replace(shown.verdict, findings=(finding("driver_not_loaded", NODE),)))
    assert status.status(told, NOW)["unknown_because"] == []
    assert [row["reason"] for row in status.status(snapshot(), LATER)["unknown_because"]] == ["observation_too_old"]


def test_a_failing_call_is_not_told_twice() -> None:
    shown = snapshot()
    assert shown.nvml is not None
    failing = replace(
        shown.nvml.gpus[1], errors=(CallError(call="nvmlDeviceGetHandleByIndex", code=15, text="GPU is lost"),)
    )
    shown = replace(shown, nvml=replace(shown.nvml, gpus=(shown.nvml.gpus[0], failing)))
    assert any("GPU is lost" in line for line in status.status(shown, NOW)["errors"])
    told = replace(shown, verdict=replace(shown.verdict, findings=(finding("gpu_missing", gpu(slot(1))),)))
    assert status.status(told, NOW)["errors"] == []
