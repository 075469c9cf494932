"""Replaying a trace: the judge finds what it would have found, a restart changes nothing, damage loses nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from evaluate.classes import CLASSES
from evaluate.jury import Jury
from evaluate.measure import cut
from evaluate.node import Node
from gpuwarden.cli.main import PIPE_CLOSED
from gpuwarden.cli.replay_main import Side
from gpuwarden.health.checkpoint import checkpoint
from gpuwarden.health.model import Health
from gpuwarden.health.view import Rules
from gpuwarden.replay.replay import SILENT_STEPS_MOST, SILENT_STEPS_OVERALL, Replay
from gpuwarden.trace.records import Accepted, Acknowledged, Began, HostEventsSeen, Record
from gpuwarden_collectors.facts import Stamp
from support.commands import COMMAND, gpuwarden
from support.hosts import Host, slot
from support.traces import STRUCK_AFTER, reported, story, write, write_lines

NAMES = [row.name for row in CLASSES if row.detected_within < 1000]  # of the others `make evaluate` cuts the stories


def end(records: list[Record]) -> Jury:
    jury = Jury()
    for record in records:
        jury.take(record)
    return jury


def later(record: Record, seconds: float) -> Stamp:
    return Stamp(record.at.boottime + seconds, record.at.wall + seconds)


# --- as the daemon would


def test_a_fault_is_reported_when_it_comes_and_why() -> None:
    records = story("configuration space 0xFFFFFFFF")
    raised = [event for event in reported(records) if event[1] == "raised"]
    assert [finding for _, _, finding in raised] == [f"gpu_missing@gpu/{slot(1)}"]


def test_silence_becomes_visible_without_a_record() -> None:
    records = story("row remapping failed", 30.0)
    replay = Replay()
    for record in records:
        replay.take(record)
    (*steps,) = replay.take(HostEventsSeen(at=later(records[-1], 60.0), events=()))
    assert len(steps) >= 12
    assert "nvml_not_answering" in steps[-1].verdict.unknown


def test_a_gap_of_years_is_stepped_through_for_ten_minutes_and_no_more() -> None:
    records = story("Xid 95", 30.0)
    replay = Replay()
    for record in records:
        replay.take(record)
    assert len(replay.take(HostEventsSeen(at=later(records[-1], 1e9), events=()))) == SILENT_STEPS_MOST + 1


@pytest.mark.slow
def test_a_trace_of_centuries_with_a_gap_behind_each_record_ends() -> None:
    """Four hundred gaps are 48,000 steps; a trace of 250 years has room for 13 million of them."""
    records = story("Xid 95", 30.0)
    replay = Replay()
    for record in records:
        replay.take(record)
    gaps = 2 * SILENT_STEPS_OVERALL // SILENT_STEPS_MOST
    taken = [replay.take(HostEventsSeen(at=later(records[-1], n * 2e7), events=())) for n in range(1, gaps + 1)]
    assert sum(map(len, taken)) <= SILENT_STEPS_OVERALL + 2 * gaps + SILENT_STEPS_MOST
    assert (replay.is_coarse, len(taken[-1])) == (True, 2)
    assert "nvml_not_answering" in taken[-1][0].verdict.unknown, "silence is silence, however seldom it is judged"


def test_time_never_goes_back() -> None:
    records = story("Xid 95", 30.0)
    replay = Replay()
    for record in records:
        replay.take(record)
    (step,) = replay.take(HostEventsSeen(at=records[1].at, events=()))
    assert step.verdict.at >= records[-1].at


def test_a_trace_begins_with_what_the_ledger_knew() -> None:
    host = Host(4)
    host.step(host.xid(2, 95))
    host.run(30)
    memory = tuple(checkpoint(host.state, host.now))
    (step,) = Replay().take(Began(at=host.now, boot_id=host.boot_id, memory=memory))
    assert [str(finding.key) for finding in step.verdict.findings] == [f"xid.95@gpu/{slot(2)}"]
    assert step.verdict.expected == 4


def test_what_an_operator_did_is_reported_and_policy_knows_of_it() -> None:
    """Xid 54 needs a person: without the acknowledgement the node would never come back."""
    records = story("Xid 54", 900.0)
    then = next(n for n, record in enumerate(records) if record.at.boottime > records[0].at.boottime + 180)
    finding = f"xid.54@gpu/{slot(1)}"
    acknowledged = Acknowledged(at=records[then].at, finding=finding, by="root")

    def shown(*order: Record) -> list[tuple[str, str]]:
        side = Side(None)
        events = (e for r in [*records[:then], *order, *records[then:]] for step in side.take(r) for e in step)
        return [
            (event.kind, str(event.data.get("intent", event.key)))
            for event in events
            if event.kind in ("intended", "acknowledged")
        ]

    assert shown() == [("intended", "exclude")]
    assert shown(acknowledged) == [("intended", "exclude"), ("acknowledged", finding), ("intended", "restore")]


def test_an_acknowledgement_ends_a_finding_as_it_did_then_and_is_passed_over_where_there_is_none() -> None:
    records = story("Xid 95", 60.0)
    last = records[-1]
    acknowledgement = Acknowledged(at=later(last, 1.0), finding=f"xid.95@gpu/{slot(1)}", by="root")
    assert end(records).health is Health.FAILURE
    assert end([*records, acknowledgement]).health is Health.HEALTHY
    assert (
        end([*records, acknowledgement, acknowledgement, replace(acknowledgement, finding="nonsense")]).health
        is Health.HEALTHY
    )


def test_an_accepted_inventory_expects_what_was_there() -> None:
    records = story("GPU gone from the bus, no Xid", 30.0)
    jury = end([*records, Accepted(at=later(records[-1], 1.0))])
    assert jury.last is not None
    assert (jury.health, jury.last.verdict.expected) == (Health.HEALTHY, 3)


def test_other_rules_give_another_verdict() -> None:
    records = story("NVLink down")
    (strict,) = Replay(Rules(expected_gpus=8)).take(records[0])
    assert strict.verdict.expected == 8


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@given(name=st.sampled_from(NAMES), place=st.floats(0.0, 0.999), away=st.sampled_from((0.0, 3.0, 30.0)))
def test_a_restart_at_any_point_of_any_fault_leads_to_the_same_end(name: str, place: float, away: float) -> None:
    """The moment at which readings are lost is left out: a daemon that starts then had no answer, and one that never
    had any misses none.
    """
    fault = next(row for row in CLASSES if row.name == name)
    struck = story(name, fault.after + fault.grace + 90.0)
    where = max(1, int(place * len(struck)))
    since = struck[where].at.boottime - struck[0].at.boottime - STRUCK_AFTER
    assume("gpu_readings_lost" not in fault.expects or not -away - 6.0 <= since <= 1.0)  # passes are 5 s apart
    whole = story(name, 2 * (fault.after + fault.grace + 90.0) + 400.0)
    assert whole[: len(struck)] == struck
    assert end(cut(whole, where, away)).verdict() == end(whole).verdict()


@pytest.mark.slow
def test_a_restart_forgets_no_more_however_long_the_trace_was() -> None:
    records: list[Record] = []
    node = Node(records.append, Random(1), gpus=1)
    node.walks = False
    node.start_daemon(remembers=False)
    for _ in range(3000):  # more events than are kept one by one
        node.xids(0, 13, 43, events_too=False)
        node.run(2.0)
    node.xids(0, 95)
    node.run(10.0)
    node.stop_daemon()
    node.start_daemon()
    node.run(10.0)
    jury = end(records)
    assert [str(finding.key) for finding in jury.findings] == [f"xid.95@gpu/{slot(0)}"]
    assert {str(r.key): r.count for r in jury.replay.engine.state.records.values()}[f"xid.13@gpu/{slot(0)}"] == 3000


# --- the command


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write(tmp_path / "node7.trace", story("Xid 95"))


def test_replay_prints_what_changed_and_what_it_came_to(trace: Path, tmp_path: Path) -> None:
    done = gpuwarden("replay", trace, temporary=tmp_path)
    assert done.returncode == 0
    assert f"raised       xid.95@gpu/{slot(1)}  xid=95 meaning=Uncontained memory error" in done.stdout
    assert "from=healthy to=failure reasons=xid.95" in done.stdout
    assert done.stderr.splitlines()[1:] == [f"still present at the end: failure xid.95@gpu/{slot(1)}"]
    assert "36 passes, 2 host events, 1 boots, 1 intents: " in done.stderr


def test_replay_as_json_is_one_object_on_each_line(trace: Path, tmp_path: Path) -> None:
    done = gpuwarden("replay", trace, "--json", temporary=tmp_path)
    *events, last = map(json.loads, done.stdout.splitlines())
    assert [event["id"] for event in events if event["kind"] == "raised"] == [f"xid.95@gpu/{slot(1)}"]
    assert last["summary"]["passes"] == 36
    assert [finding["id"] for finding in last["summary"]["findings"]] == [f"xid.95@gpu/{slot(1)}"]


def test_a_reader_that_has_seen_enough_is_no_fault_of_the_trace(trace: Path, tmp_path: Path) -> None:
    """`head` closes the pipe in the middle of `gpuwarden replay FILE | head -1`."""
    piped = ("sh", "-c", '{ "$@"; echo "code $?" >&2; } | true', "sh", *COMMAND)
    done = gpuwarden("replay", trace, temporary=tmp_path, more={"PYTHONUNBUFFERED": "1"}, command=piped)
    assert done.stderr == f"code {PIPE_CLOSED}\n"


def test_a_damaged_trace_is_judged_up_to_the_fault(trace: Path, tmp_path: Path) -> None:
    raw = trace.read_bytes()
    trace.write_bytes(raw[: len(raw) * 9 // 10])
    done = gpuwarden("replay", trace, temporary=tmp_path)
    assert done.returncode == 65
    assert f"raised       xid.95@gpu/{slot(1)}" in done.stdout
    assert "gpuwarden replay: " in done.stderr
    assert "the trace ends in the middle" in done.stderr
    assert done.stderr.endswith("; the part before it was judged\n")


@pytest.mark.slow
def test_a_trace_that_is_invalid_or_missing_is_an_error(tmp_path: Path) -> None:
    done = gpuwarden("replay", write_lines(tmp_path / "t", "hello"), temporary=tmp_path)
    assert (done.returncode, done.stdout) == (65, "")
    done = gpuwarden("replay", tmp_path / "nothing", temporary=tmp_path)
    assert (done.returncode, "cannot read" in done.stderr) == (66, True)
    done = gpuwarden("replay", tmp_path, temporary=tmp_path)
    assert (done.returncode, "Is a directory" in done.stderr) == (66, True)


@pytest.mark.slow
def test_another_configuration_is_judged_by_and_the_difference_shown(trace: Path, tmp_path: Path) -> None:
    (tmp_path / "now.toml").write_text("[inventory]\nexpected_gpus = 4\n")
    (tmp_path / "next.toml").write_text("[inventory]\nexpected_gpus = 8\n")
    alone = gpuwarden("replay", trace, "--config", tmp_path / "next.toml", temporary=tmp_path)
    assert "raised       gpu_missing@node" in alone.stdout
    same = gpuwarden(
        "replay", trace, "--config", tmp_path / "now.toml", "--diff", tmp_path / "now.toml", temporary=tmp_path
    )
    assert (same.returncode, same.stdout) == (0, "")
    differ = gpuwarden(
        "replay", trace, "--config", tmp_path / "now.toml", "--diff", tmp_path / "next.toml", temporary=tmp_path
    )
    assert {line[:2] for line in differ.stdout.splitlines() if "gpu_missing@node" in line} == {"> "}
    assert {line[:2] for line in differ.stderr.splitlines()} == {"< ", "> "}


def test_intents_are_shown_as_the_schedulers_reason(trace: Path, tmp_path: Path) -> None:
    done = gpuwarden("replay", trace, temporary=tmp_path)
    (would,) = [line for line in done.stdout.splitlines() if " would " in line]
    assert would.endswith("would exclude: gpuwarden: failure gpu=1 xid=95 - reset the GPU when it is empty")
    assert "1 intents" in done.stderr


@pytest.mark.slow
def test_a_node_that_is_well_again_would_be_brought_back_by_the_configuration_s_rule(tmp_path: Path) -> None:
    trace = write(tmp_path / "t", [*story("Xid 46", 60.0), *a_repaired_hour(story("Xid 46", 60.0))])
    (tmp_path / "quick.toml").write_text("[policy]\nrestore_after = '1m'\nrestore_passes = 3\n")
    (tmp_path / "never.toml").write_text("[policy]\nrestores_per_day = 0\n")
    assert wanted(trace, tmp_path) == ["exclude", "restore"]
    assert wanted(trace, tmp_path, "--config", tmp_path / "never.toml") == ["exclude"]
    differ = gpuwarden(
        "replay", trace, "--config", tmp_path / "never.toml", "--diff", tmp_path / "quick.toml", temporary=tmp_path
    )
    assert [line[:2] + line.split("  ")[-1] for line in differ.stdout.splitlines() if " would " in line] == [
        "> would restore"
    ]  # fmt: skip


def a_repaired_hour(before: list[Record]) -> list[Record]:
    """The same node after a reboot that mended it."""
    records: list[Record] = []
    node = Node(records.append, Random("mended"), gpus=4)
    node.reboot(away=300.0, uptime=60.0)
    node.run(3600.0)
    return records


def wanted(trace: Path, folder: Path, *words: str | Path) -> list[str]:
    done = gpuwarden("replay", trace, "--json", *words, temporary=folder)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    return [event["data"]["intent"] for event in events if event.get("kind") == "intended"]


def test_a_fault_in_a_configuration_is_reported_before_anything_is_judged(trace: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[inventory]\nexpected = 4\n")
    done = gpuwarden("replay", trace, "--diff", tmp_path / "bad.toml", temporary=tmp_path)
    assert (done.returncode, done.stdout) == (64, "")
    assert "inventory.expected" in done.stderr
