"""What holds of every condition: its keys work, one log line when it is raised and one when it ends, and no names of jobs leave the node.

Each is raised by a fault of the evaluation, on a whole node that is repaired afterwards.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from structlog.testing import capture_logs

import configuration_page
from evaluate.fault_class import LINE
from evaluate.node import Node
from gpuwarden.config.model import Config
from gpuwarden.engine.log_lines import EventLines
from gpuwarden.health.condition import Condition
from gpuwarden.health.conditions import CONDITIONS
from gpuwarden.health.model import Event, EventKind, Severity
from gpuwarden.health.view import CheckRule, Rules
from gpuwarden.notify.grouping import Grouping
from gpuwarden.notify.messages import Origin, message
from gpuwarden.replay.replay import Replay
from gpuwarden.trace.records import Began, Passed, Record, RulesChanged
from gpuwarden_collectors.options import keys
from gpuwarden_collectors.slurm.jobs_facts import Job, JobsFacts
from support.condition_faults import CODES, LATER, fault
from tables import DOCS

USER, JOB_NAME, JOB = "alice", "secret-model", 4242
GPU = 3
HEALTHY_FOR = 150.0
REBOOTED, REPAIR_MOST = 780.0, 1500.0
"""Seconds from the begin of a repair on: until the node has been up again for two minutes, and until whatever ends by itself has ended."""
DAYS = 86_400.0
OUTLASTS_A_REPAIR = {
    "memory_degrading": "an idle GPU makes no errors", "gpu_slow": "an idle GPU shows nothing", "nvlink_link_errors": "of a day",
    "infiniband_flapping": "of three hours", "infiniband_errors": "of an hour", "ecc_correctable_rate": "of an hour",
    **dict.fromkeys(("test_failed", "test_hung", "gpu_sm_slow", "gpu_bandwidth_low"), "only another test, another board or an operator ends it"),
}  # fmt: skip
"""These end by other means, or hours later; the tests of each have how."""
MOMENTARY = ("xid", "pcie_aer_fatal")
"""Seen for 5 s after each line, so that one line alone never has a rise."""
GOES_ON = ("soft_lockup",)
"""Lines that are repeated. Others are seen for 45 s after a line."""


class Story:
    """A node with a fault, and what its daemon puts out under this rule; jobs with names are on all of its GPUs.

    `events` and `lines` (of the log): about the condition. `sent`: what a webhook is sent. `counts`: whether it ever counted.
    """

    def __init__(self, code: str, rule: CheckRule) -> None:
        self.code, self.fault = code, fault(code)
        self.events: list[Event] = []
        self.lines: list[dict[str, Any]] = []
        self.sent: list[dict[str, Any]] = []
        self.counts = False
        self._rules = Rules(checks={code: rule})
        self._replay = Replay()
        self._log = EventLines(self._shadowed)
        self._grouping = Grouping()
        self._node = Node(self._take, Random(code), model=self.fault.models[0])
        self._node.jobs = JobsFacts(jobs=(Job(id=JOB, uid=1000, gpus=tuple(range(8)), started=0.0),))
        self._node.start_daemon(remembers=False)
        self._node.run(HEALTHY_FOR)

    def strike(self, lasts: float = 180.0) -> None:
        self._node.go(self.fault.strike(self._node, GPU))
        self._node.run(self.fault.after + self.fault.grace + lasts)

    def repair(self, lasts: float) -> None:
        """Repair the node, and run until a minute after the finding ended, at most for `lasts`."""
        self._node.repair()
        for _ in range(round(lasts / 60.0)):
            ended = bool(self.kinds(EventKind.CLEARED))
            self._node.run(60.0)
            if ended:
                break

    def switch_off(self) -> None:
        self._rules = Rules(checks={self.code: CheckRule(enabled=False)})
        self._take(RulesChanged(at=self._node.now, rules=self._rules))
        self._node.run(60.0)

    def kinds(self, *kinds: EventKind) -> list[Event]:
        return [event for event in self.events if event.kind in kinds]

    def _shadowed(self, event: Event) -> bool:
        return self._replay.engine.shadowed(event)

    def _take(self, record: Record) -> None:
        for step in self._replay.take(self._as_here(record)):
            mine = [event for event in step.events if event.key is not None and event.key.code == self.code]
            self.events += mine
            with capture_logs() as lines:
                self._log.write(mine)
            self.lines += [dict(line) for line in lines if line["event"].startswith("finding")]
            for event in self._grouping.of(step.events, step.state, self._shadowed):
                made = message(event, Origin(node="n1", mode="enforce", boot_id="b"))
                self.sent += [] if made is None else [json.loads(made[1].body)]
            self.counts |= any(
                finding.key.code == self.code and not finding.shadow for finding in step.verdict.findings
            )

    def _as_here(self, record: Record) -> Record:
        """Return the record with this site's rules, and with names of jobs as Slurm gives them."""
        match record:
            case Began():
                return replace(record, rules=self._rules)
            case Passed(observation) if isinstance(observation.facts, JobsFacts):
                jobs = tuple(replace(job, user=USER, job_name=JOB_NAME) for job in observation.facts.jobs)
                return Passed(replace(observation, facts=replace(observation.facts, jobs=jobs)))
        return record


def other(severity: Severity) -> Severity:
    return Severity.WARNING if severity is Severity.FAILURE else Severity.FAILURE


def test_every_condition_is_raised_here_or_has_a_reason_why_not() -> None:
    for code in CODES:
        fault(code)
    assert set(OUTLASTS_A_REPAIR) <= set(CODES)


@pytest.mark.slow
@pytest.mark.parametrize("code", CODES)
def test_a_rise_and_a_fall_are_one_line_each_and_no_webhook_gets_names_of_jobs(code: str) -> None:
    """The rules have a `fall` that the site set."""
    row = CONDITIONS[code]
    rise = LATER if code == "row_remap_overdue" else None
    story = Story(code, CheckRule(fall=30.0, rise=rise, shadow=False))
    story.strike()
    (raised,) = story.kinds(EventKind.RAISED)
    begins = story.lines[0]
    assert (begins["event"], begins["id"], begins["title"]) == ("finding raised", str(raised.key), row.title)
    story.repair(REPAIR_MOST)
    if code in OUTLASTS_A_REPAIR:
        assert story.kinds(EventKind.CLEARED) == [], "take it out of the table"
        story.switch_off()
    latches = raised.data.get("latch", "none") != "none"
    ends = [line["event"].partition(":")[0] for line in story.lines[1:]]
    assert ends in [["finding cleared"], *([["finding latched", "finding cleared"]] if latches else [])]
    notified = [sent["event"] for sent in story.sent if sent.get("finding") == str(raised.key)]
    assert notified == ["raised", "cleared"] or (story.fault.also and not notified), (
        "unless it follows from another finding"
    )
    assert not re.search(rf"{USER}|{JOB_NAME}", json.dumps([story.sent, story.lines], default=str))


@pytest.mark.slow
@pytest.mark.parametrize("code", CODES)
def test_in_shadow_later_and_of_another_severity_as_the_site_has_it_until_it_is_switched_off(code: str) -> None:
    row = CONDITIONS[code]
    severity = Severity.WARNING if row.scope == "job" else other(row.severity)
    later = LATER if fault(code).shown != LINE or code in GOES_ON else 0.0 if code in MOMENTARY else 10.0
    rise = later if code == "row_remap_overdue" else row.rise + later
    story = Story(code, CheckRule(shadow=True, severity=severity, rise=rise, fall=DAYS))
    story.strike(LATER + 180.0)
    (raised,) = story.kinds(EventKind.RAISED)
    assert raised.at.boottime - float(str(raised.data["first_boottime"])) >= rise
    assert len(story.kinds(EventKind.RISING)) == (rise > 0.0)
    assert raised.data["severity"] == severity
    assert not story.counts
    assert [(line["log_level"], line["event"]) for line in story.lines] == [
        ("info", "finding raised (shadow: only reported)")
    ]
    assert str(raised.key) not in json.dumps(story.sent)
    story.repair(min(REPAIR_MOST, REBOOTED + row.fall))
    story.switch_off()
    (end,) = story.kinds(EventKind.CLEARED, EventKind.ACKNOWLEDGED)
    assert end.data["by"] == f"the site: checks.{code}.enabled is false"
    assert len(story.lines) == 2


# --- the keys


def test_the_keys_of_a_check_are_documented() -> None:
    section = (DOCS / "reference/configuration.md").read_text().partition("## `[checks.CODE]`")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == ["enabled", "shadow", "rise", "fall", "severity"]


@pytest.mark.parametrize("row", CONDITIONS.values(), ids=CONDITIONS)
def test_a_key_that_a_condition_names_is_one_of_the_configuration(row: Condition) -> None:
    all_keys = {f"{path}.{key.name}" for path, cls in configuration_page.tables(Config) for key in keys(cls)}
    named = {
        name
        for name in re.findall(r"\b([a-z_]+(?:\.[a-z_]+)+)\b", row.why)
        if name.partition(".")[0] in {key.name for key in keys(Config)}
    }
    assert named <= all_keys
