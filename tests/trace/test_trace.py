"""Traces: what is written is read again, only changes are written, and no file can harm its reader."""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import signal
import subprocess
import threading
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluate.classes import CLASSES
from evaluate.faults_jobs import WORKED_FOR
from evaluate.node import Node
from gpuwarden.health.checkpoint import checkpoint
from gpuwarden.health.detectors import COUNTERS
from gpuwarden.health.model import Event, Evidence, Key, gpu
from gpuwarden.health.view import Rules
from gpuwarden.health.xid.bursts import from_text
from gpuwarden.replay.replay import Replay
from gpuwarden.trace.pseudonyms import Pseudonyms
from gpuwarden.trace.reader import TraceError, TraceReader
from gpuwarden.trace.recorder import Recorder
from gpuwarden.trace.records import Acknowledged, ActiveTested, Began, ErrorsChanged, Passed, Record, RulesChanged
from gpuwarden.trace.writer import JUDGED, TELEMETRY
from gpuwarden_collectors.facts import GpuAnswer, NvmlFacts, Stamp
from gpuwarden_collectors.nvml.simulated_gpu import simulated_uuid
from support import job_world
from support.commands import COMMAND, SMALL_FILES, environment
from support.hosts import Host
from support.quick import first_quick
from support.traces import lines, read, reported, so_far, story, write, write_lines

ROOT = Path(__file__).parents[2]
HEADER = {"trace": 1, "gpuwarden": "1.2.3"}
BEGAN = {"began": "boot-1", "at": 10.0, "wall": 1.8e9}


def content(record: Record) -> object:
    """Return the record without the wall clock of the line, which is kept to the millisecond."""
    at = record.at.boottime
    if isinstance(record, Passed):
        seen = record.observation
        took = round(seen.finished.boottime - seen.started.boottime, 5)
        return at, took, seen.collector, seen.outcome, seen.facts, seen.error, seen.worker
    return at, replace(record, at=Stamp(0, 0))


@pytest.mark.parametrize("fault", first_quick(4, [row.name for row in CLASSES[::15]]))
def test_what_is_written_is_read_again(fault: str, tmp_path: Path) -> None:
    records = story(fault)
    again = read(write(tmp_path / "t", records))
    assert [content(record) for record in again] == [content(record) for record in records]
    assert max(abs(a.at.wall - r.at.wall) for a, r in zip(again, records, strict=True)) < 0.001
    assert reported(again) == reported(records)


def test_an_operators_acknowledgement_and_the_daemons_own_errors_are_kept(tmp_path: Path) -> None:
    at = Stamp(20.0, 1.8e9)
    records: list[Record] = [
        Began(at=at, boot_id="b", rules=Rules(expected_gpus=4), memory=()),
        ErrorsChanged(at=at, errors={"ledger": "full"}),
        Acknowledged(at=at, finding="xid.95@gpu/0000:10:00.0", by="root"),
        RulesChanged(at=at, rules=Rules(expected_gpus=2)),
    ]
    assert read(write(tmp_path / "t", records)) == records


def of_active_test(*kinds: str) -> ActiveTested:
    """Return events of an active test with pids and a UUID in them."""
    data: Evidence = {
        "uuid": "GPU-12345678-1234-1234-1234-123456789012",
        "gpus": "GPU-12345678-1234-1234-1234-123456789012",
        "workers": "4242 77",
        "pid": 4242,
    }
    key = Key("test", gpu("0000:10:00.0"), "quick")
    at = Stamp(20.0, 1.8e9)
    return ActiveTested(at=at, events=tuple(Event(kind=kind, at=at, boot_id="b", key=key, data=data) for kind in kinds))


def test_what_the_daemon_was_given_of_an_active_test_is_kept(tmp_path: Path) -> None:
    records: list[Record] = [
        Began(at=Stamp(20.0, 1.8e9), boot_id="b", memory=()), of_active_test("test_begun", "tested", "released", "test_ended"),
    ]  # fmt: skip
    assert read(write(tmp_path / "t", records)) == records
    with pytest.raises(TraceError, match="does not belong to an active test"):
        read(write(tmp_path / "u", [records[0], of_active_test("gpu_pinned")]))


def test_an_active_tests_processes_and_boards_get_pseudonyms() -> None:
    (line,) = [Pseudonyms((), b"k")({"data": dict(event.data)}) for event in of_active_test("test_begun").events]
    data = line["data"]
    assert data["workers"].split()[0] == str(data["pid"]) != "4242"
    assert "77" not in data["workers"].split()
    assert data["uuid"] == data["gpus"] != of_active_test("x").events[0].data["uuid"]


def test_what_the_ledger_knew_is_kept(tmp_path: Path) -> None:
    host = Host(2)
    host.step(host.xid(1, 95))
    host.run(30)
    began = Began(at=host.now, boot_id=host.boot_id, memory=tuple(checkpoint(host.state, host.now)))
    assert read(write(tmp_path / "t", [began])) == [began]


def test_a_step_of_the_wall_clock_is_kept(tmp_path: Path) -> None:
    records: list[Record] = []
    node = Node(records.append, Random(1), gpus=1)
    node.start_daemon(remembers=False)
    node.run(20)
    node.step_wall_clock(-3600.0)
    node.run(20)
    again = read(write(tmp_path / "t", records))
    assert [round(r.at.wall, 2) for r in again] == [round(r.at.wall, 2) for r in records]


def test_a_pass_without_news_is_a_short_line(tmp_path: Path) -> None:
    records: list[Record] = []
    node = Node(records.append, Random(1))
    node.walks = False
    node.start_daemon(remembers=False)
    node.run(600)
    passes = [
        line for line in lines(write(tmp_path / "t", records)) if line.get("pass") in ("nvml", "pci", "dcgm", "storage")
    ]
    longer = [line for line in passes[4:] if sorted(line) != ["at", "pass", "took"]]
    fields = {field for line in longer for gpu in line["facts"]["gpus"].values() for field in gpu}
    assert fields == {
        "read_at"
    }  # in one pass of eleven: counters that are read each minute were read, and are what they were
    assert len(longer) == 10


def test_telemetry_is_written_once_a_minute(tmp_path: Path) -> None:
    records: list[Record] = []
    node = Node(records.append, Random(1), gpus=1)
    node.walks = False
    node.start_daemon(remembers=False)
    for n in range(60):
        node.give(0, power_instant_mw=1000 * n, power_usage_mw=1000 * n, temperature=40 + n % 20)
        node.run(5)
    facts = [r.observation.facts for r in read(write(tmp_path / "t", records)) if isinstance(r, Passed)]
    readings = [f.gpus[0].readings for f in facts if isinstance(f, NvmlFacts)]
    assert len({r.temperature for r in readings}) == 20
    assert len({r.power_instant_mw for r in readings}) == 5
    assert len({r.power_usage_mw for r in readings}) == 20, "a condition about minutes depends on it"


@pytest.mark.slow
def test_a_stalled_job_is_found_in_a_trace_of_it_within_five_minutes_of_its_fall(tmp_path: Path) -> None:
    records = story("a collective that does not end", WORKED_FOR + 360.0)
    fell = records[0].at.boottime + 60.0 + WORKED_FOR
    reports = [(at, kind) for at, kind, key in reported(read(write(tmp_path / "t", records))) if "job_stalled" in key]
    assert [kind for _, kind in reports] == ["raised"]
    assert reports[0][0] - fell <= 300.0
    hidden = read(write(tmp_path / "hidden", records, names=Pseudonyms([])))
    keys = [key for _, _, key in reported(hidden) if "job_stalled" in key]
    assert len(keys) == 1
    assert "4711" not in keys[0]


NO_CONDITIONS = ("resets.py", "profiling.py", "use.py")
"""Files that read telemetry for something else: `use.py` what a job used."""


def test_no_condition_depends_on_what_is_taken_for_telemetry_but_where_a_gpu_comes_back() -> None:
    folders = (ROOT / "daemon/gpuwarden/health", ROOT / "daemon/gpuwarden/features")
    judge = "\n".join(
        path.read_text()
        for folder in folders
        for path in folder.rglob("*.py")
        if path.name not in NO_CONDITIONS and path.parent.name != "tester"
    )
    assert {name for name in TELEMETRY if re.search(rf"[.\"']{name}\b", judge)} == set(JUDGED)
    assert not set(TELEMETRY) & set(COUNTERS)
    assert {"clock_event_reasons", "temperature_memory", "utilization_gpu", "energy_mj"} - set(TELEMETRY) == {
        "clock_event_reasons", "temperature_memory", "utilization_gpu",
    }  # fmt: skip


@pytest.mark.parametrize("away", ["unlisted", "lost"])
def test_telemetry_is_written_at_once_when_a_gpu_comes_back(away: str, tmp_path: Path) -> None:
    """Its counters show that it was reset."""
    records: list[Record] = []
    node = Node(records.append, Random(1), gpus=2, beside=False, dcgm=False)
    node.walks = False
    node.start_daemon(remembers=False)
    for energy in (1000, 2000):
        node.give(0, energy_mj=energy)
        node.run(5)
    node.list_(0, listed=away != "unlisted")
    node.put(0, answer=GpuAnswer.OK if away == "unlisted" else GpuAnswer.LOST)
    node.run(5)
    node.list_(0, listed=True)
    node.put(0, answer=GpuAnswer.OK)
    node.give(0, energy_mj=7)
    node.run(5)
    facts = [r.observation.facts for r in read(write(tmp_path / "t", records)) if isinstance(r, Passed)]
    energies = [f.gpus[0].readings.energy_mj for f in facts if isinstance(f, NvmlFacts) and len(f.gpus) == 2]
    assert (energies[0], energies[-1]) == (1000, 7)


# --- damage


def prefix_and_error(path: Path) -> tuple[int, TraceError | None]:
    count = 0
    try:
        with TraceReader(path) as trace:
            for _ in trace:
                count += 1
    except TraceError as error:
        return count, error
    return count, None


@settings(deadline=None, max_examples=40)
@given(share=st.floats(0.0, 1.0))
def test_a_trace_cut_anywhere_is_read_up_to_the_cut_which_is_named(
    tmp_path_factory: pytest.TempPathFactory, share: float
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    whole = write(folder / "whole", story("Xid 79", 30.0))
    raw = whole.read_bytes()
    (folder / "cut").write_bytes(raw[: int(share * (len(raw) - 1))])
    count, error = prefix_and_error(folder / "cut")
    assert error is not None
    assert f"cut, line {count + 2 if count else error.line}: " in str(error)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(place=st.floats(0.0, 1.0), byte=st.integers(0, 255), zipped=st.booleans())
def test_a_byte_changed_anywhere_is_at_worst_a_trace_error_and_what_is_read_can_be_judged(
    tmp_path_factory: pytest.TempPathFactory, place: float, byte: int, *, zipped: bool
) -> None:
    folder = tmp_path_factory.mktemp("changed")
    raw = bytearray(write(folder / "whole", story("Xid 79", 30.0)).read_bytes())
    raw = raw if zipped else bytearray(gzip.decompress(bytes(raw)))
    at = int(place * (len(raw) - 1))
    raw[at] = byte
    (folder / "changed").write_bytes(raw)
    replay, taken = Replay(), 0
    with contextlib.suppress(TraceError), TraceReader(folder / "changed") as trace:
        for record in trace:
            replay.take(record)
            taken += 1
    assert zipped or taken >= raw[:at].count(b"\n") - 1  # the first line is no record


def test_a_trace_of_a_newer_format_is_refused_with_the_version_that_reads_it(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", {"trace": 2, "gpuwarden": "9.0.0"}, {"anything": True})
    with pytest.raises(
        TraceError, match=r"t, line 1: gpuwarden 9\.0\.0 wrote this trace in format 2, .* use a newer one"
    ):
        TraceReader(path)


def test_what_a_newer_version_adds_within_the_format_is_passed_over(tmp_path: Path) -> None:
    facts = {"=": {"devices": [], "colour": "red"}}
    path = write_lines(
        tmp_path / "t", {**HEADER, "mood": "good"}, BEGAN, {"dreams": [], "at": 11.0}, {"pass": "tea", "at": 12.0, "facts": 3},
        {"pass": "pci", "at": 13.0, "facts": facts, "weather": "fine"},
    )  # fmt: skip
    with TraceReader(path) as trace:
        kinds = [type(record) for record in trace]
    assert (kinds, trace.skipped) == ([Began, Passed], 2)


@pytest.mark.parametrize(
    "raw", [b"", b"\n", b"{}\n", b"[1]\n", b"hello", b'{"trace":"1"}\n', b"\x1f\x8b", b"\x1f\x8bgarbage"]
)
def test_what_is_no_trace_is_called_none(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(raw)
    with pytest.raises(TraceError, match="line 1: "):
        TraceReader(tmp_path / "t")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("nonsense", "this is not JSON"),
        (b"\xff\xfe", "this is not JSON"),
        ("[]", "this is not a JSON object"),
        ("[" * 100_000, "this is not JSON"),
        ('{"at":NaN}', "NaN is not a number"),
        ('{"at":1e999}', "1e999 is not a number"),
        ('{"at":1' + "0" * 400 + "}", "is not a number"),
        ({"accepted": True}, "expected float, found NoneType"),
        ({"accepted": True, "at": "now"}, "expected float, found str"),
        ({"accepted": True, "at": -1.0}, "an implausible time"),
        ({"accepted": True, "at": 1.0, "wall": 1e200}, "an implausible time"),
        ({"events": {}, "at": 1.0}, "expected a list"),
        ({"events": [{"type": "Xid"}], "at": 1.0}, "expected an object whose type is one of"),
        ({"events": [{"type": "LogGap", "at": {"boottime": 1e12, "wall": 1}, "lost": 1}], "at": 1.0}, "an implausible time"),
        ({"pass": "nvml", "at": 1.0}, "a pass observed, but has no facts"),
        ({"pass": "nvml", "at": 1.0, "outcome": "asleep"}, "expected one of observed"),
        ({"pass": "pci", "at": 1.0, "facts": {"devices": {"0": {"slot": "x"}}}}, "a change to a value that was never sent whole"),
        ({"pass": "pci", "at": 1.0, "facts": {"=": {"devices": [{"slot": 7}]}}}, "devices[0].slot: expected str"),
        ({"pass": "pci", "at": 1.0, "facts": 3}, "expected a change"),
        ({"began": "b", "at": 1.0, "rules": {"expected_gpus": "many"}}, "expected_gpus: expected int"),
        ({"began": "b", "at": 1.0, "memory": [{"kind": "boot"}]}, "expected a list"),
        ({"errors": [], "at": 1.0}, "expected an object"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_a_line_that_means_nothing_is_named_and_what_was_before_it_is_read(
    line: object, problem: str, tmp_path: Path
) -> None:
    path = write_lines(tmp_path / "t", HEADER, BEGAN, line, BEGAN)
    count, error = prefix_and_error(path)
    assert count == 1
    assert "t, line 3: " in str(error)
    assert problem in str(error)


def test_a_change_to_a_gpu_that_is_not_there_is_named_by_its_path(tmp_path: Path) -> None:
    whole = {"=": {"gpus": [{"slot": "0000:10:00.0", "index": 0}]}}
    path = write_lines(
        tmp_path / "t", HEADER, BEGAN, {"pass": "nvml", "at": 11.0, "facts": whole},
        {"pass": "nvml", "at": 12.0, "facts": {"gpus": {"0": {"readings": {"temperature": "hot"}}}}},
    )  # fmt: skip
    _, error = prefix_and_error(path)
    assert "t, line 4: facts.gpus[0].readings.temperature: expected int, found str" in str(error)
    write_lines(
        path, HEADER, BEGAN, {"pass": "nvml", "at": 11.0, "facts": whole},
        {"pass": "nvml", "at": 12.0, "facts": {"gpus": {"7": {}}}},
    )  # fmt: skip
    _, error = prefix_and_error(path)
    assert "a change to item '7' of 1" in str(error)


def a_gpu(number: int, **more: object) -> dict[str, object]:
    return {"slot": f"{number:04x}:10:00.0", "index": number, **more}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ({"pass": "nvml", "at": 11.0, "facts": {"=": {"gpus": [a_gpu(n) for n in range(65)]}}}, "65 gpus"),
        ({"pass": "pci", "at": 11.0, "facts": {"=": {"devices": [{"slot": str(n)} for n in range(257)]}}}, "257 devices"),
        ({"pass": "nvml", "at": 11.0, "facts": {"=": {"gpus": [a_gpu(0, links=[{"link": 10**12}])]}}}, "a link with number"),
        ({"pass": "dcgm", "at": 11.0, "facts": {"=": {"watched_since": {}, "incidents": [{}] * 1025}}}, "1025 incidents"),
        ({"began": "b", "at": 11.0, "memory": [{}] * 16_385}, "16385 earlier events"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_more_than_any_host_has_is_refused(line: object, problem: str, tmp_path: Path) -> None:
    _, error = prefix_and_error(write_lines(tmp_path / "t", HEADER, BEGAN, line))
    assert problem in str(error)


def test_a_trace_that_brings_other_gpus_with_every_pass_is_refused_before_they_are_too_many(tmp_path: Path) -> None:
    passes = (
        {"pass": "nvml", "at": 11.0 + n, "facts": {"=": {"gpus": [a_gpu(64 * n + m) for m in range(64)]}}}
        for n in range(1000)
    )
    replay, path = Replay(), write_lines(tmp_path / "t", HEADER, BEGAN, *passes)
    problem = ""
    with TraceReader(path) as trace:
        try:
            for record in trace:
                replay.take(record)
        except TraceError as error:
            problem = str(error)
    assert "more than 1024 PCI addresses" in problem
    assert len(replay.engine.state.pins) <= 1024


def test_ten_gigabytes_of_nothing_are_refused_at_once(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", HEADER, BEGAN)
    with path.open("r+b") as file:
        file.truncate(10 << 30)  # sparse
    assert peak_of_reading(path) < 40 << 20
    assert "no trace has one" in str(prefix_and_error(path)[1])


@pytest.mark.slow
def test_a_trace_may_come_through_a_pipe_and_is_never_held_as_a_whole(tmp_path: Path) -> None:
    start = story("NVLink down", 60.0, gpus=2)
    whole = gzip.decompress(write(tmp_path / "t", start).read_bytes())
    quiet = b'{"pass":"pci","took":0.001,"at":99999.0}\n' * 1000
    os.mkfifo(tmp_path / "pipe")

    def feed() -> None:
        with (tmp_path / "pipe").open("wb") as pipe:
            pipe.write(whole)
            for _ in range(100):
                pipe.write(quiet)

    feeder = threading.Thread(target=feed)
    feeder.start()
    tracemalloc.start()
    with TraceReader(tmp_path / "pipe") as trace:
        count = sum(1 for _ in trace)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    feeder.join()
    assert count == len(start) + 100_000
    assert peak < 8 << 20


def peak_of_reading(path: Path) -> int:
    tracemalloc.start()
    try:
        prefix_and_error(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_a_bomb_of_zeros_is_refused_without_being_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb"
    with gzip.open(path, "wb") as file:
        for _ in range(256):
            file.write(bytes(1 << 20))
    assert peak_of_reading(path) < 40 << 20
    assert "no trace has one" in str(prefix_and_error(path)[1])


@pytest.mark.slow
def test_a_long_trace_needs_no_more_memory_than_a_short_one(tmp_path: Path) -> None:
    start = story("NVLink down", 60.0)
    passed = [record for record in start if isinstance(record, Passed)]
    short = write(tmp_path / "short", [start[0], *passed])
    long = write(tmp_path / "long", [start[0], *passed * 200])
    peak_of_reading(short)  # what is kept of each class is made by the first reader
    assert peak_of_reading(long) < 1.5 * peak_of_reading(short)


# --- names


def identified(node: Node) -> list[Record]:
    records: list[Record] = []
    node._sink = records.append
    node.start_daemon(remembers=False)
    node.run(30)
    node.say_lines(node.xid(0, 31, "by node7 on GPU-00000000-0000-4000-8000-000000000000", pid=4242))
    node.run(30)
    return records


def test_an_anonymised_trace_names_no_board_process_or_host_and_is_judged_the_same(tmp_path: Path) -> None:
    records = identified(Node(lambda _: None, Random(1), gpus=2))
    plain = write(tmp_path / "plain", records)
    hidden = write(tmp_path / "hidden", records, names=Pseudonyms(["node7"]))
    text = gzip.decompress(hidden.read_bytes()).decode()
    for name in ("-4000-8000-", "16500", "boot-1", "node7"):
        assert name in gzip.decompress(plain.read_bytes()).decode()
        assert name not in text
    for pid in (4242, 4711):  # as numbers of their own: the digits may be part of another number
        number = re.compile(rf"(?<![\d.]){pid}(?!\d)")
        assert number.search(gzip.decompress(plain.read_bytes()).decode())
        assert not number.search(text)
    hidden_boards, plain_boards = (_boards_as_one(reported(read(trace))) for trace in (hidden, plain))
    assert hidden_boards == plain_boards


def _boards_as_one(events: list[tuple[float, str, str]]) -> list[tuple[float, str, str]]:
    """Replace the name of a board in keys: the memory of a board has it as its key."""
    return [(at, kind, re.sub(r"board/GPU-[\w-]+", "board", key)) for at, kind, key in events]


def test_addresses_and_what_site_checks_say_are_in_no_anonymised_trace() -> None:
    names = Pseudonyms(["node7"])
    lines = (
        {"errors": {"dcgm": "cannot connect to 192.0.2.77:5555, nor to [2001:db8::77]:5555"}},
        {
            "pass": "plugin",
            "facts": {"results": [{"name": "storage", "text": "nas.corp is slow"}]},
        },
        {"memory": [{"kind": "raised", "key": "plugin_storage@node", "data": {"text": "nas.corp is slow"}}]},
    )
    assert not re.search(r"192\.0|:db8|corp", str([names(line) for line in lines]))
    kept = {"text": "0000:4e:00.0 and 96.00.5E.00.01, as on 127.0.0.1"}
    assert names(kept) == kept


def test_a_name_keeps_its_pseudonym_within_a_trace_and_loses_it_in_the_next() -> None:
    names, other = Pseudonyms([]), Pseudonyms([])
    uuid = "GPU-01234567-89ab-cdef-0123-456789abcdef"
    assert names({"uuid": uuid, "text": f"x {uuid}"})["text"] == f"x {names({'uuid': uuid})['uuid']}"
    assert names({"pid": 7}) == names({"pid": 7}) != other({"pid": 7})
    assert names({"uuid": uuid})["uuid"].startswith("GPU-")
    assert names({"uuid": "", "pid": None}) == {"uuid": "", "pid": None}
    (job,) = names({"jobs": [{"id": 7, "uid": 9}], "processes": [{"job": 7}]})["jobs"]
    assert names({"jobs": [{"uid": 9, "cancelled_by": 9}]})["jobs"][0] == {
        "uid": job["uid"],
        "cancelled_by": job["uid"],
    }
    assert names({"jobs": [{"cancelled_by": 0}]})["jobs"][0] == {"cancelled_by": 0}  # root
    assert job == names({"id": 0, "uid": 9}) | {"id": names({"job": 7})["job"]}
    assert names({"subject": "job/7", "job": "7 8"}) == {
        "subject": f"job/{job['id']}",
        "job": f"{job['id']} {names({'job': 8})['job']}",
    }
    (container,) = names({"containers": [{"id": "ab12cd34ef56"}]})["containers"]
    named = {"at": "x@job/container-ab12cd34ef56", "job": "container-ab12cd34ef56"}
    assert names(named) == {"at": f"x@job/container-{container['id']}", "job": f"container-{container['id']}"}
    killed = {
        "job": "slurm/7",
        "limit_job": "container/ab12cd34ef56",
        "at": "oom_kill.limit@job/slurm/7",
        "group": "/slurm/uid_9/job_7",
    }
    hidden = names(killed)
    assert hidden["job"] == f"slurm/{job['id']}"
    assert hidden["at"] == f"oom_kill.limit@job/slurm/{job['id']}"
    assert hidden["limit_job"] == f"container/{container['id']}"
    assert not re.search("uid_9|job_7", hidden["group"])
    (run,) = names(
        {
            "workloads": [
                {
                    "name": "pod/research/train-0",
                    "also": ["container/ab12cd34ef56"],
                    "slots": ["0000:1b:00.0"],
                    "group": "/slurm/uid_9/job_7",
                }
            ]
        }
    )["workloads"]
    assert run["name"] == f"pod/{names({'namespace': 'research'})['namespace']}/{names({'pod': 'train-0'})['pod']}"
    assert run["also"] == [f"container/{container['id']}"]
    assert (run["slots"], run["group"]) == (["0000:1b:00.0"], hidden["group"])
    assert names({"workloads": [{"name": "slurm/7"}]})["workloads"] == [{"name": hidden["job"]}]
    (burst,) = from_text(names({"bursts": "1.0 2.0 pid=7;GPC 0 T1_8"})["bursts"])
    assert (burst.pids, burst.signs) == ((names({"pid": 7})["pid"],), ("GPC 0 T1_8",))


# --- recording


def test_a_recording_is_its_owners_alone_and_never_takes_the_place_of_another(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "t")
    assert recorder.close(10.0)
    assert (tmp_path / "t").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        Recorder(tmp_path / "t")


def test_a_recording_holds_what_was_handed_over(tmp_path: Path) -> None:
    records = story("Xid 95", 30.0)
    recorder = Recorder(tmp_path / "t")
    for record in records:
        recorder.take(record)
    assert recorder.close(10.0)
    assert (recorder.dropped, recorder.error) == (0, "")
    assert reported(read(tmp_path / "t")) == reported(records)


def record(folder: Path, *words: str, limited: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*limited, *COMMAND, "record", "-o", str(folder / "t"), "--simulate", "8", *words],
        env=environment(folder), stderr=subprocess.PIPE,
    )  # fmt: skip


def wait_for_size(path: Path, size: int) -> None:
    give_up = time.monotonic() + 60.0
    while not path.exists() or path.stat().st_size < size:
        assert time.monotonic() < give_up
        time.sleep(0.05)


@pytest.mark.slow
def test_a_recorder_that_is_killed_leaves_what_it_saw(tmp_path: Path) -> None:
    with record(tmp_path) as process:
        wait_for_size(tmp_path / "t", 1500)
        process.kill()
    count, error = prefix_and_error(tmp_path / "t")
    assert count >= 2
    assert "the trace ends in the middle" in str(error)


def test_a_recording_lasts_for_the_given_time(tmp_path: Path) -> None:
    with record(tmp_path, "--for", "1s") as process:
        assert process.wait(60) == 0
    assert read(tmp_path / "t")


@pytest.mark.slow
def test_an_anonymised_recording_has_no_uuid(tmp_path: Path) -> None:
    with record(tmp_path, "--anonymise") as process:
        job_world.until(lambda: '"uuid":"GPU-' in so_far(tmp_path / "t"), "a pass of NVML")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert {type(r) for r in read(tmp_path / "t")} == {Began, Passed}
    assert simulated_uuid(0) not in gzip.decompress((tmp_path / "t").read_bytes()).decode()


@pytest.mark.slow
def test_sigterm_ends_a_recording_well(tmp_path: Path) -> None:
    with record(tmp_path) as process:
        wait_for_size(tmp_path / "t", 100)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert read(tmp_path / "t")


@pytest.mark.slow
def test_a_recording_that_cannot_be_written_ends_with_an_error(tmp_path: Path) -> None:
    with record(tmp_path, limited=SMALL_FILES) as process:
        assert process.wait(60) == 73
        assert process.stderr is not None
        assert b"gpuwarden record: the recording ended early: [Errno 27] File too large" in process.stderr.read()
