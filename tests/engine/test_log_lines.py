"""Log lines of events whose text depends on what the event says."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from gpuwarden.engine.log_lines import LINE_SPACING, SPACED_MOST, EventLines, write_line
from gpuwarden.features.active_test.gate.state import Gate, GateResult
from gpuwarden.features.evacuation.policy.events import saved
from gpuwarden.features.evacuation.policy.model import BY_EXIT, BY_STEP
from gpuwarden.features.repair.model import Outcome, StepKind
from gpuwarden.health.event_data import write
from gpuwarden.health.model import Event, EventKind, Key, Subject
from gpuwarden_collectors.facts import Stamp
from support.repair_scenes import FINDING, begun, ended

NOW = Stamp(boottime=1.0, wall=1.0)


@pytest.mark.parametrize(
    ("by", "has_saved", "text"),
    [
        ("socket", True, "checkpoint acknowledged"),
        ("file", True, "checkpoint acknowledged"),
        ("socket", False, "acknowledged without a checkpoint"),
        ("file", False, "acknowledged without a checkpoint"),
        (BY_EXIT, False, "signalled process ended"),
        (BY_STEP, False, "job ended before acknowledging"),
    ],
)
def test_a_log_line_says_whether_a_job_acknowledged_a_checkpoint_or_ended(by: str, has_saved: bool, text: str) -> None:
    with capture_logs() as lines:
        write_line(saved("slurm/7", by, saved=has_saved, boot_id="b", now=NOW))
    assert [line["event"] for line in lines] == [text]


def test_a_repair_is_in_the_log_before_and_after_it() -> None:
    """The line before a reboot is what tells syslog why the machine goes down."""
    with capture_logs() as lines:
        EventLines().write([begun("t0", 60.0, StepKind.REBOOT), ended("t0", 0.0, Outcome.REBOOTED, StepKind.REBOOT)])
    assert [(line["event"], line["id"], line["try_id"]) for line in lines] == [
        ("repair: step begins", str(FINDING.key), "t0"),
        ("repair: step done", str(FINDING.key), "t0"),
    ]


@pytest.mark.parametrize(
    ("result", "level", "text"),
    [
        ("void", "warning", "return gate is void: the node returns without a test"),
        ("failed", "warning", "return gate: test ended"),
        ("no_verdict", "warning", "return gate: test ended"),
        ("passed", "info", "return gate: test ended"),
    ],
)
def test_every_return_without_a_test_and_every_test_that_did_not_pass_is_a_warning(
    result: str, level: str, text: str
) -> None:
    over = Gate(failures="xid.79@gpu/0000:42:00.0", result=GateResult(result), text="no libcuda")
    event = Event(kind=EventKind.GATE_ENDED, at=NOW, boot_id="b", data=write(over))
    with capture_logs() as lines:
        EventLines().write([event, event])
    assert [(line["log_level"], line["event"], line["text"]) for line in lines] == [(level, text, "no libcuda")] * 2


def killed(job: int, boottime: float) -> Event:
    key = Key("oom_kill", Subject("job", f"slurm/{job}"), "limit")
    return Event(kind=EventKind.OOM_KILL, at=Stamp(boottime=boottime, wall=boottime), boot_id="b", key=key)


def test_of_one_subject_there_is_a_line_a_minute_and_of_all_that_ever_were_only_the_newest_are_remembered() -> None:
    lines = EventLines()
    with capture_logs() as logged:
        lines.write([killed(0, 1.0), killed(0, LINE_SPACING), killed(0, 1.0 + LINE_SPACING), killed(0, 70.0)])
    assert len(logged) == 2
    with capture_logs() as logged:
        lines.write(killed(job, 200.0 + job) for job in range(SPACED_MOST + 9))
    assert len(logged) == SPACED_MOST + 9
    assert sum(len(attribute) for attribute in vars(lines).values() if isinstance(attribute, dict)) == SPACED_MOST
