"""What `status` shows a person and a script."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.cli.status_text import status_text
from gpuwarden.health.model import NODE, Advice, Health, Incident, Latch, Severity, Subject, gpu
from gpuwarden.health.runbooks import RUNBOOKS
from gpuwarden.publish.snapshot import CollectorStatus, Enforced, Snapshot
from gpuwarden.publish.status import status
from gpuwarden_collectors.base import PassOutcome
from support.commands import gpuwarden
from support.control_server import refusal, result, serving
from support.snapshots import UPTIME, at, finding, missing, slot, snapshot


def document(shown: Snapshot) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(status(shown, at(UPTIME + 3))))
    return made


def text(shown: Snapshot) -> str:
    return "\n".join(status_text(document(shown)))


@pytest.mark.parametrize(("health", "code"), [("healthy", 0), ("warning", 1), ("failure", 2), ("unknown", 3)])
def test_the_exit_code_is_the_health_as_nagios_has_it(health: str, code: int, tmp_path: Path) -> None:
    shown = document(snapshot(2, health=Health(health)))
    with serving(tmp_path / "run", lambda _: result(shown)):
        for words in (("status",), ("status", "--json")):
            done = gpuwarden(*words, temporary=tmp_path, more={"GPUWARDEN_RUN_DIR": str(tmp_path / "run")})
            assert (done.returncode, done.stderr) == (code, "")
    assert json.loads(done.stdout) == shown


def test_without_a_daemon_the_health_is_unknown(tmp_path: Path) -> None:
    done = gpuwarden("status", "--run-dir", tmp_path, temporary=tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"gpuwarden status: no daemon answers at {tmp_path}/control.sock\n"


def test_a_daemon_that_refuses_leaves_the_health_unknown(tmp_path: Path) -> None:
    with serving(tmp_path / "run", lambda _: refusal("internal error", 70)):
        done = gpuwarden("status", "--run-dir", tmp_path / "run", temporary=tmp_path)
    assert (done.returncode, done.stderr) == (3, "gpuwarden status: internal error\n")


def test_a_healthy_node_is_a_headline_and_a_row_for_each_gpu() -> None:
    lines = text(snapshot(2)).splitlines()
    assert lines[0] == "gpu-node01 is HEALTHY"
    assert lines[1] == "may take work; 2 of 2 GPUs present (learned); observed 3 s ago; mode observe"
    assert lines[3].split() == ["GPU", "HEALTH", "PCI", "BUS", "ID", "NAME", "TEMP", "POWER", "LOAD", "MEMORY", "WHY"]
    assert lines[4].split()[:3] == ["0", "healthy", slot(0)]
    assert lines[5].endswith("20 GiB")
    assert len(lines) == 6


def test_a_failure_that_no_scheduler_hears_of_is_said_to_be_so() -> None:
    failed = snapshot(2, health=Health.FAILURE, findings=[finding("xid", gpu(slot(1)), detail="79")])
    said = "enforcement:\n  no scheduler is configured: nothing takes this node out"
    assert said in text(failed)
    assert said not in text(snapshot(2))
    assert said not in text(replace(failed, service=replace(failed.service, simulated=True)))
    drained = replace(failed, enforced=replace(failed.enforced, actuators=("slurm",)))
    assert said not in text(drained)


def test_an_incident_is_shown_as_one_with_its_cause_first() -> None:
    cause = finding("xid", gpu(slot(2)), detail="79")
    others = [replace(finding("sxid", Subject("switch", at), detail="20034"), caused_by=cause.key) for at in SWITCHES]
    alone = finding("disk_full", NODE, Severity.WARNING)
    shown = snapshot(4, health=Health.FAILURE, findings=[others[0], cause, alone, others[1]])
    incidents = (Incident(cause.key, tuple(reported.key for reported in others)), Incident(alone.key))
    shown = replace(shown, verdict=replace(shown.verdict, incidents=incidents))
    status_document = document(shown)
    assert status_document["incidents"] == [
        {"cause": str(cause.key), "consequences": [str(reported.key) for reported in others]},
        {"cause": str(alone.key), "consequences": []},
    ]
    assert [reported["caused_by"] for reported in status_document["findings"]] == [
        str(cause.key),
        None,
        None,
        str(cause.key),
    ]
    lines = text(shown).splitlines()
    order = [line.strip().removeprefix("id: ") for line in lines if line.startswith("  id: ")]
    assert order == [str(reported.key) for reported in (cause, *others, alone)]
    assert not any(line.startswith("  also recorded: ") for line in lines), "they are on this screen"
    assert lines.count(f"  caused by: {cause.key}") == 2


SWITCHES = ("0000:05:00.0", "0000:06:00.0")


def test_simulated_gpus_are_marked_first() -> None:
    assert text(snapshot(1, simulated=True)).startswith("SIMULATED")


def test_a_missing_gpu_is_shown_with_its_advice_and_how_it_ends() -> None:
    printed = text(missing(snapshot(4), 2))
    assert "3 of 4 GPUs present" in printed
    assert "may not take work" in printed
    assert f"FAILURE: the title of gpu_missing: {slot(2)}\n  id: gpu_missing@gpu/{slot(2)}\n" in printed
    assert "  to do: Drain the node and power-cycle the machine. " in printed
    assert "  ends when it has not been seen for 10s\n" in printed
    assert f"  runbook: {RUNBOOKS}/GpuwardenGpuMissing.md" in printed
    assert "  evidence: count: 1; kernel log or check: what was seen\n" in printed


def test_a_latched_finding_is_shown_as_no_longer_observed() -> None:
    held = replace(finding("xid", gpu(slot(0)), detail="79", latch=Latch.RESET), latched=True, count=12)
    printed = text(snapshot(1, health=Health.FAILURE, findings=[held]))
    assert "gpu-node01 is FAILURE: xid" in printed
    assert f": GPU 0 ({slot(0)})\n" in printed
    assert ", 12 times; latched: no longer seen\n" in printed
    assert "ends when the GPU was reset, the node rebooted or an operator acknowledged it" in printed


def test_consequences_and_blind_spots_are_shown_apart_from_findings() -> None:
    shown = snapshot(1)
    quiet = replace(finding("gpu_missing", gpu(slot(0))), silenced_by="driver_not_loaded@node")
    shown = replace(
        shown,
        verdict=replace(shown.verdict, silenced=(quiet,)),
        collectors=(
            CollectorStatus(name="nvml"),
            CollectorStatus(name="pci", outcome=PassOutcome.ABSENT, error="no PCI bus"),
            CollectorStatus(name="kernel_log", outcome=PassOutcome.FAILED, error="no permission"),
        ),
        dropped={"log": 3},
    )
    printed = text(shown).split("\n\n")
    assert (
        printed[-2]
        == f"suppressed, as consequences of other findings:\n  gpu_missing@gpu/{slot(0)} (caused by driver_not_loaded@node)"
    )
    assert printed[-1].splitlines()[1:] == [
        "  nvml: not read yet",
        "  kernel_log: failed: no permission",
        "  log: 3 writes dropped, because they were not taken in time",
    ]


def test_a_node_where_nothing_was_observed_yet_can_be_shown() -> None:
    shown = snapshot(0, health=Health.UNKNOWN)
    shown = replace(shown, observed=None, verdict=replace(shown.verdict, expected=None, reasons=("starting",)))
    assert text(shown).splitlines()[:2] == [
        "gpu-node01 is UNKNOWN: starting",
        "may not take work; 0 GPUs present, expected number unknown; nothing observed yet; mode observe",
    ]


def test_what_users_wrote_into_names_and_kernel_lines_cannot_move_the_cursor() -> None:
    evil = replace(
        finding("xid", NODE, Severity.WARNING), evidence={"name": "\x1b[2J\rHEALTHY\n", "x": "\u202e", "ok": "ü"}
    )
    printed = text(snapshot(1, health=Health.WARNING, findings=[evil]))
    assert "evidence: name: \\x1b[2J\\rHEALTHY\\n; x: \\u202e; ok: ü" in printed


def test_sources_that_this_host_lacks_are_shown_on_request_alone() -> None:
    absent = (CollectorStatus(name="dcgm", outcome=PassOutcome.ABSENT, error="no nv-hostengine"),)
    shown = replace(snapshot(1), collectors=absent)
    assert "dcgm" not in text(shown)
    assert "  dcgm: not on this host: no nv-hostengine" in list(status_text(document(shown), verbose=True))


def test_an_xid_has_its_number_and_meaning_as_title_and_once() -> None:
    seen = replace(
        finding("xid", gpu(slot(0)), detail="79"), evidence={"xid": 79, "meaning": "GPU has fallen off the bus"}
    )
    shown = snapshot(1, health=Health.FAILURE, findings=[seen])
    shown = replace(
        shown,
        verdict=replace(
            shown.verdict, reasons=("xid.79",), gpus=(replace(shown.verdict.gpus[0], reasons=("xid.79",)),)
        ),
    )
    lines = text(shown).splitlines()
    assert lines[0] == "gpu-node01 is FAILURE: xid 79"
    assert lines[4].endswith("  xid 79")
    assert f"FAILURE: Xid 79: GPU has fallen off the bus: GPU 0 ({slot(0)})" in lines
    assert text(shown).count("fallen off the bus") == 1


def test_an_unknown_node_says_what_to_do() -> None:
    shown = snapshot(1, health=Health.UNKNOWN)
    printed = text(replace(shown, verdict=replace(shown.verdict, unknown=("driver_not_loaded",))))
    assert "\nUNKNOWN: driver_not_loaded: the NVIDIA driver is not loaded;" in printed
    assert "\n  to do: If nothing reloads it, run `modprobe nvidia` " in printed


@pytest.mark.parametrize(
    ("person", "advice", "line"),
    [
        ((), Advice.RESET_GPU, "the node comes back when this finding has ended and the node has been clean for a while: by itself"),
        ((), Advice.INSPECT_HARDWARE, "the node comes back when it was repaired and an operator runs `gpuwarden restore`: "),
        (("gpu_missing@gpu/0",), Advice.RESET_GPU, "the node comes back when an operator runs `gpuwarden restore` after a repair, because of gpu_missing@gpu/0"),
    ],
)  # fmt: skip
def test_it_is_said_once_when_the_node_comes_back(person: tuple[str, ...], advice: Advice, line: str) -> None:
    failures = [replace(finding("ecc_uncorrectable", gpu(slot(n))), advice=advice) for n in range(3)]
    blocked = (
        {"slurm": "it was excluded for what needs an operator: only a person restores it (gpuwarden restore)"}
        if person
        else {}
    )
    enforced = Enforced(actuators=("slurm",), person=person, blocked=blocked)
    printed = text(replace(snapshot(4, health=Health.FAILURE, findings=failures), enforced=enforced))
    assert [each.strip() for each in printed.splitlines() if "comes back" in each or "restore" in each] == [
        each.strip() for each in printed.splitlines() if each.startswith(f"  {line}")
    ]
    assert printed.count("the node comes back when") == 1


def test_a_node_that_takes_work_is_not_said_to_come_back() -> None:
    enforced = Enforced(actuators=("slurm",), person=("gpu_missing@gpu/0",))
    printed = text(replace(snapshot(4), enforced=enforced))
    assert "may take work" in printed
    assert "comes back" not in printed
