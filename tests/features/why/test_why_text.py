"""What `gpuwarden why` prints of a job, and the document that it is made of."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gpuwarden.features.why.document import of_record, of_running
from gpuwarden.features.why.model import Answer, Cause, Certainty, End, Epoch, Record, Touch, Use
from gpuwarden.features.why.text import lines, short
from gpuwarden_collectors.facts import Stamp

BEGAN = 1_800_000_000.0
SLOTS = ("0000:1b:00.0", "0000:28:00.0")
INDICES = {SLOTS[0]: 0, SLOTS[1]: 1}


def at(seconds: float) -> Stamp:
    return Stamp(1000.0 + seconds, BEGAN + seconds)


EPOCH = Epoch(
    name="slurm/4711",
    began=at(0),
    boot_id="b",
    uid=1000,
    user="alice",
    job_name="train-70b",
    slots=SLOTS,
    touches=(
        Touch(what="finding", detail=f"thermal_slowdown@gpu/{SLOTS[0]}", at=at(600), until=at(1320), slot=SLOTS[0]),
        Touch(what="xid", detail="79", at=at(5171.2), slot=SLOTS[1], pid=4242, count=2),
        Touch(what="finding", detail=f"xid.79@gpu/{SLOTS[1]}", at=at(5171.5), slot=SLOTS[1]),
        Touch(what="excluded", detail="failure gpu=1 xid=79", at=at(5172), follows=f"xid.79@gpu/{SLOTS[1]}"),
        Touch(what="reset", at=at(5200), slot=SLOTS[1]),
    ),
    use=Use(
        energy_j=7.2e6, energy_covers=0.9, busy=0.871, tensor=0.414, memory_peak_bytes=71 * 2**30,
        idle_gpu_seconds=1800, throttled_gpu_seconds=30, observed_gpu_seconds=10_350,
    ),
)  # fmt: skip
RECORD = Record(
    epoch=EPOCH,
    end=End(at=at(5180), known_from="epilog", state="FAILED", exit_code=1),
    answer=Answer(
        cause=Cause.HARDWARE,
        sentence="GPU 1 fell off the bus (Xid 79) while the job ran on it.",
        code="xid.79",
        slot=SLOTS[1],
        serial="1650922001234",
    ),
)


def screen(record: Record = RECORD, **more: int) -> str:
    return "\n".join(lines(of_record(record, INDICES, node="n7", **more)))


def test_the_screen_of_a_job_begins_with_the_answer_and_says_the_rest_in_order_of_time() -> None:
    assert (
        screen()
        == """\
slurm/4711: GPU 1 fell off the bus (Xid 79) while the job ran on it.
cause: hardware, certain, xid.79, serial 1650922001234

job     slurm/4711 train-70b of alice (uid 1000) on n7
GPUs    2: 0, 1
began   2027-01-15 08:00:00 UTC
ended   2027-01-15 09:26:20 UTC, after 1 h 26 min, FAILED, exit code 1; known from Slurm's epilog
used    2.00 kWh (7200000 J) in 90 % of its time, the rest was not measured; measured over 2.88 GPU-hours
        87 % busy, 41 % tensor cores active, memory peak 71.0 GiB on one GPU
        0.50 GPU-hours without a process, 30 GPU-seconds throttled

what touched it, by time since its start
  +0:10:00  GPU 0  finding thermal_slowdown: A GPU is slowed down by heat, for 12 min
  +1:26:11  GPU 1  Xid 79: GPU has fallen off the bus, process 4242, 2 times
  +1:26:11  GPU 1  finding xid.79: The driver reported an Xid
  +1:26:12  node   this node was taken out of scheduling: failure gpu=1 xid=79 (follows from xid.79)
  +1:26:20  end of the job
  +1:26:40  GPU 1  GPU reset"""
    )


def test_one_line_has_the_job_the_answer_and_its_certainty() -> None:
    document = of_record(RECORD, INDICES)
    assert short(document) == (
        "gpuwarden: slurm/4711: GPU 1 fell off the bus (Xid 79) while the job ran on it. "
        "(hardware, certain, xid.79, serial 1650922001234)"
    )


def test_a_running_job_shows_what_touched_it_so_far() -> None:
    document = of_running(EPOCH, INDICES, at(5230))
    assert short(document) == "gpuwarden: slurm/4711 is running: GPU 1: GPU reset, 30 s ago"
    assert "ended   not yet, after 1 h 27 min" in list(lines(document))
    assert "end of the job" not in "\n".join(lines(document))
    answered = of_running(EPOCH, INDICES, at(5230), answer=RECORD.answer)
    assert short(answered).startswith("gpuwarden: slurm/4711 is running; if it ended now: GPU 1 fell off the bus")
    untouched = of_running(replace(EPOCH, touches=()), INDICES, at(59))
    assert short(untouched) == "gpuwarden: slurm/4711 is running: nothing touched it so far"
    assert list(lines(untouched))[-1] == "this node saw nothing that touched it"


def test_what_is_not_known_is_not_made_up() -> None:
    bare = Epoch(name="session/77", began=at(0), boot_id="b", slots=SLOTS)
    end = End(at=at(30), known_from="processes")
    answer = Answer(cause=Cause.NOT_SEEN, sentence="")
    text = screen(Record(epoch=bare, end=end, answer=answer))
    assert text.splitlines()[:2] == ["session/77: nothing that this node saw", "cause: nothing that this node saw"]
    assert "ended   2027-01-15 08:00:30 UTC, after 30 s; known from the end of its last process" in text
    assert "energy not measured; measured over 0 GPU-seconds" in text
    assert "busy" not in text
    assert "None" not in text


def test_a_number_that_was_given_before_is_said_to_have_been() -> None:
    assert "older" not in screen()
    assert screen(older=1).endswith("this is the newest of its name: 1 older job ended here")
    assert screen(older=3).endswith("this is the newest of its name: 3 older jobs ended here")


def test_a_job_that_has_ended_a_moment_ago_does_not_run_and_waits_for_its_answer() -> None:
    answered = of_running(EPOCH, INDICES, at(5230), end=RECORD.end, answer=RECORD.answer)
    assert short(answered).startswith("gpuwarden: slurm/4711 has ended, so far: GPU 1 fell off the bus")
    unknown = of_running(EPOCH, INDICES, at(5230), end=RECORD.end)
    assert short(unknown) == "gpuwarden: slurm/4711 has ended: what ended it is not known yet; ask again in a minute"
    assert "not yet" not in "\n".join(lines(unknown))


def test_a_likely_cause_is_not_printed_as_a_certain_one() -> None:
    answer = replace(RECORD.answer, certainty=Certainty.POSSIBLE, slot="", serial="")
    assert "cause: hardware, possible, xid.79" in screen(replace(RECORD, answer=answer)).splitlines()


@pytest.mark.parametrize(
    ("action", "detail", "text"),
    [
        ("signalled", "sent", "the job was signalled"),
        ("saved", "saved", "the job saved its work"),
        ("saved", "unsaved", "the job was done, and did not acknowledge that it saved its work"),
        ("excluded_by_others", "slurm", "another party took this node out of scheduling: slurm"),
        (
            "excluded",
            "operator by=bob@example.com fans",
            "this node was taken out of scheduling: operator by=bob@example.com fans",
        ),
        ("signalled", "new", "the job was signalled new"),
    ],
)
def test_what_was_done_with_a_job_is_a_sentence(action: str, detail: str, text: str) -> None:
    touch = Touch(what=action, detail=detail, at=at(60))
    assert f"  +0:01:00  node  {text}" in screen(replace(RECORD, epoch=replace(EPOCH, touches=(touch,)))).splitlines()


@pytest.mark.parametrize("evil", ["\x1b[2J\x1b]0;owned\x07", "a\nb", "\u202egnp.exe", "\x9b31m", "\x00"])
def test_names_from_outside_cannot_move_the_cursor(evil: str) -> None:
    touch = Touch(what=evil, detail=evil, at=at(1), slot=evil, follows=evil)
    epoch = replace(EPOCH, name=f"slurm/{evil}", user=evil, job_name=evil, slots=(evil,), touches=(touch,))
    end = End(at=at(5), known_from=evil, state=evil, by=evil)
    answer = Answer(cause=Cause.HARDWARE, sentence=evil, code=evil, slot=evil, serial=evil)
    document = of_record(Record(epoch=epoch, end=end, answer=answer), {}, node=evil)
    for line in (*lines(document), short(document), *lines(of_running(epoch, {}, at(9), node=evil))):
        assert line.isprintable(), line


def test_the_keys_of_the_document_are_a_contract() -> None:
    document = of_record(RECORD, INDICES, node="n7")
    assert json.loads(json.dumps(document)) == document
    assert list(document) == [
        "job", "kind", "id", "node", "job_name", "user", "uid", "gpus", "began", "touches", "use",
        "running", "ended", "seconds", "end", "answer", "final", "older",
    ]  # fmt: skip
    assert document["gpus"][1] == {"pci_bus_id": SLOTS[1], "gpu": 1}
    assert document["answer"] == {
        "cause": "hardware", "certainty": "certain", "sentence": RECORD.answer.sentence, "code": "xid.79",
        "pci_bus_id": SLOTS[1], "gpu": 1, "serial": "1650922001234",
    }  # fmt: skip
    assert document["touches"][1] == {
        "what": "xid", "detail": "79", "text": "GPU has fallen off the bus", "at": "2027-01-15T09:26:11.200Z",
        "until": None, "after_seconds": 5171.2, "for_seconds": None, "pci_bus_id": SLOTS[1], "gpu": 1, "pid": 4242, "count": 2, "follows": "",
    }  # fmt: skip
    running = of_running(EPOCH, INDICES, at(1))
    assert sorted(running) == sorted(document)
    assert (running["running"], running["ended"], running["end"], running["answer"]) == (True, None, None, None)
    settling = of_running(EPOCH, INDICES, at(5230), end=RECORD.end)
    assert sorted(settling) == sorted(document)
    assert [settling[key] for key in ("running", "ended", "seconds", "end", "final")] == [
        *(document[key] for key in ("running", "ended", "seconds", "end")), False,
    ]  # fmt: skip


def test_a_wall_clock_that_is_set_while_a_job_runs_changes_neither_its_length_nor_the_order() -> None:
    for step in (7_200.0, -7_200.0):
        set_back = [replace(touch, at=Stamp(touch.at.boottime, touch.at.wall + step)) for touch in EPOCH.touches]
        set_back[0] = replace(set_back[0], until=Stamp(at(1320).boottime, at(1320).wall))
        end = replace(RECORD.end, at=Stamp(at(5180).boottime, at(5180).wall + step))
        document = of_record(replace(RECORD, epoch=replace(EPOCH, touches=tuple(set_back)), end=end), INDICES)
        assert document["seconds"] == 5180
        assert document["touches"][0]["for_seconds"] == 720
        assert [touch["after_seconds"] for touch in document["touches"]] == [600, 5171.2, 5171.5, 5172, 5200]


def test_over_a_boot_the_wall_clock_counts() -> None:
    boot = Touch(what="boot", at=Stamp(0.0, BEGAN + 600))
    end = End(at=Stamp(0.0, BEGAN + 600), known_from="boot")
    document = of_record(Record(epoch=replace(EPOCH, touches=(boot,)), end=end, answer=RECORD.answer), INDICES)
    assert (document["seconds"], document["touches"][0]["after_seconds"]) == (600, 600)


def test_the_owner_of_a_job_does_not_learn_whose_process_a_full_node_ended() -> None:
    own, others = (Touch(what="oom_node", detail=name, at=at(5100), pid=77) for name in (EPOCH.name, "slurm/9999"))
    document = of_record(replace(RECORD, epoch=replace(EPOCH, touches=(own, others))), INDICES)
    assert [(touch["detail"], touch["pid"]) for touch in document["touches"]] == [(EPOCH.name, 77), ("", None)]
