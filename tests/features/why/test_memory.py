"""What is remembered of jobs is a replay of events: of any order, cut anywhere, through the ledger's rows and checkpoints."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.features.evacuation.active_notices import GPU
from gpuwarden.features.evacuation.policy.budget import FAILING_GPU
from gpuwarden.features.evacuation.policy.delivery import Way
from gpuwarden.features.evacuation.policy.events import signalled
from gpuwarden.features.evacuation.policy.model import Sent
from gpuwarden.features.why.memory import EPOCHS_MOST, RECORDS_MOST, begun, ended, memory_of, record_of, used
from gpuwarden.features.why.model import TOUCHES_MOST, Answer, Cause, Certainty, End, Epoch, Record, Touch, Use
from gpuwarden.health.checkpoint import checkpoint
from gpuwarden.health.model import NODE, Event, EventKind, Json, Key, Subject, gpu
from gpuwarden.health.state import State, fold
from gpuwarden.ledger.rows import event_of, row_of
from gpuwarden.policy.model import Notice
from gpuwarden.policy.notices import id_of, noticed
from gpuwarden_collectors.facts import Stamp

SLOTS = ("0000:10:00.0", "0000:11:00.0")
BOOT = "boot-1"


def at(second: float) -> Stamp:
    return Stamp(1_000.0 + second, 1_800_000_000.0 + second)


def epoch(name: str = "slurm/7", second: float = 0.0, *slots: str) -> Epoch:
    return Epoch(
        name=name, began=at(second), boot_id=BOOT, uid=1001, user="ada", job_name="train", slots=slots or SLOTS,
        energy_at=dict.fromkeys(slots or SLOTS, 12345), pids=(11, 12),
    )  # fmt: skip


def folded(*events: Event, state: State | None = None) -> State:
    state = state or State(boot_id=BOOT)
    for event in events:
        state = fold(state, event)
    return state


def xid(number: int, second: float, slot: str = SLOTS[0], **data: int) -> Event:
    return Event(
        kind=EventKind.XID, at=at(second), boot_id=BOOT, key=Key("xid", gpu(slot), str(number)), data={"count": 1, "text": "", **data}
    )  # fmt: skip


TOUCH = Touch(what="xid", detail="79", at=at(5), until=at(6), slot=SLOTS[0], pid=11, count=3, follows="xid.48@gpu/x")
RECORD = Record(
    epoch=replace(epoch(), touches=(TOUCH,), use=Use(energy_j=12.5, busy=0.5, observed_gpu_seconds=100.0), energy_at={}),
    end=End(at=at(90), known_from="epilog", state="FAILED", exit_code=1, signal=9, by="root"),
    answer=Answer(
        cause=Cause.HARDWARE, certainty=Certainty.LIKELY, sentence="GPU 0 fell off the bus.", code="xid.79", slot=SLOTS[0],
        serial="1650",
    ),
)  # fmt: skip


def test_a_record_comes_back_from_the_ledger_as_it_was() -> None:
    assert record_of(event_of(row_of(ended(RECORD, BOOT)))) == RECORD


def test_a_record_of_an_earlier_boot_keeps_the_boot_of_its_begin() -> None:
    record = replace(RECORD, epoch=replace(RECORD.epoch, boot_id="boot-0"))
    assert record_of(ended(record, BOOT)) == record


def test_a_record_with_all_that_may_be_in_it_fits_in_one_row() -> None:
    touches = tuple(
        Touch(what="xid", detail="9" * 200, at=at(n), until=at(n), slot=SLOTS[0], pid=n, follows="x" * 200)
        for n in range(TOUCHES_MOST)
    )
    slots = tuple(f"0000:{n:02x}:00.0" for n in range(16))
    epoch = replace(RECORD.epoch, touches=touches, slots=slots, pids=tuple(range(4_000_000, 4_000_064)))
    record = replace(RECORD, epoch=replace(epoch, boot_id="boot-0"))
    assert record_of(event_of(row_of(ended(record, BOOT)))) == record


def test_a_job_is_remembered_until_its_record() -> None:
    state = folded(begun(epoch()), xid(79, 5, pid=11))
    newer = replace(epoch(), use=Use(energy_j=9.0), pids=(13,), energy_at={SLOTS[0]: 99})
    state = folded(used(newer, at(30), BOOT), state=state)
    (remembered,) = memory_of(state).epochs.values()
    assert (remembered.use.energy_j, remembered.pids, remembered.used_at, len(remembered.touches)) == (
        9.0,
        (13,),
        at(30),
        1,
    )
    state = folded(ended(replace(RECORD, epoch=remembered), BOOT), state=state)
    assert not memory_of(state).epochs
    assert [record.epoch.name for record in memory_of(state).records] == ["slurm/7"]


def test_a_record_is_kept_for_a_day_and_only_the_newest() -> None:
    records = [replace(RECORD, end=replace(RECORD.end, at=at(90 + n))) for n in range(RECORDS_MOST + 5)]
    kept = memory_of(folded(*(ended(record, BOOT) for record in records))).records
    assert kept == tuple(records[-RECORDS_MOST:])
    later = replace(RECORD, end=replace(RECORD.end, at=at(2 * 86_400)))
    assert memory_of(folded(ended(RECORD, BOOT), ended(later, BOOT))).records == (later,)


def test_no_flood_of_jobs_fills_memory() -> None:
    state = folded(*(begun(epoch(f"slurm/{n}", n)) for n in range(EPOCHS_MOST + 20)))
    assert len(memory_of(state).epochs) == EPOCHS_MOST
    assert f"slurm/{EPOCHS_MOST + 19}" in memory_of(state).epochs


def test_a_program_that_begins_anew_without_end_leaves_room_for_what_ends_it() -> None:
    crashes = [xid(31, n, pid=200 + n) for n in range(3 * TOUCHES_MOST)]
    (remembered,) = memory_of(folded(begun(epoch()), xid(13, 0.0), *crashes, xid(79, 100))).epochs.values()
    assert len(remembered.touches) == TOUCHES_MOST
    kept = [(touch.detail, touch.at) for touch in remembered.touches]
    assert (kept[0], kept[-1]) == (("13", at(0)), ("79", at(100)))
    assert kept[-2] == ("31", at(3 * TOUCHES_MOST - 1)), "the newest one of the same is the one that may have ended it"


def test_warnings_with_which_a_job_goes_on_leave_room_for_what_ends_it() -> None:
    slots = tuple(f"0000:{n}0:00.0" for n in range(1, 9))

    def warning(code: str, slot: str, second: float) -> Event:
        return Event(kind=EventKind.RAISED, at=at(second), boot_id=BOOT, key=Key(code, gpu(slot)))

    hot = [
        warning(code, slot, 100 * n)
        for n, code in enumerate(("thermal_slowdown", "power_brake", "gpu_slow", "pcie_replay_rate"))
        for slot in slots
    ]
    fatal = warning("gpu_missing", slots[0], 10_001)
    lost = folded(begun(epoch("slurm/7", 0.0, *slots)), *hot, xid(79, 10_000, slots[0]), fatal)
    (remembered,) = memory_of(lost).epochs.values()
    assert len(remembered.touches) == TOUCHES_MOST
    assert [touch.detail for touch in remembered.touches[-2:]] == ["79", f"gpu_missing@gpu/{slots[0]}"]


def test_programs_that_fail_for_days_leave_room_for_what_ends_the_job() -> None:
    slots = tuple(f"0000:{n}0:00.0" for n in range(1, 9))
    errors = [xid(number, 10.0 * n, slot) for n, slot in enumerate(slots) for number in (13, 31, 43)]
    failed = folded(begun(epoch("slurm/7", 0.0, *slots)), *errors, xid(79, 10_000, slots[0]))
    (remembered,) = memory_of(failed).epochs.values()
    assert remembered.touches[-1].detail == "79"


def test_a_limit_above_the_job_is_not_its_own() -> None:
    def killed(limit_job: str) -> Event:
        return _node(EventKind.OOM_KILL, 5, of_limit=True, job="slurm/7", limit_job=limit_job)

    for limit_job, kind in (("slurm/7", "oom_limit"), ("", "oom_shared")):
        jobs = memory_of(folded(begun(epoch()), begun(epoch("slurm/8")), killed(limit_job))).epochs
        assert [touch.what for touch in jobs["slurm/7"].touches] == [kind]
        assert not jobs["slurm/8"].touches


def test_bad_values_in_the_ledger_are_not_believed() -> None:
    data: dict[str, Json] = {
        "slots": "\x1b[31m " * 200, "uid": "root", "job_name": "a\nb", "user": "x" * 5_000, "pids": "7 -1 x 1e3 99999999999999999999",
        "energy_at": "0000:10:00.0=x =5 0000:11:00.0=5", "touch0": "xid\t79", "touch1": "\t" * 9, "touch2": 7,
        "touch3": "xid\t79\t1e400\t2\t\t\t\t\t1\t", "touch4": "xid\t79\t1\t2\t\t\t\tx\t1\t", "energy_j": "much", "used_boottime": 1e300,
    }  # fmt: skip
    bad = Event(kind=EventKind.JOB_BEGUN, at=at(0), boot_id=BOOT, key=begun(epoch()).key, data=data)
    (remembered,) = memory_of(folded(bad)).epochs.values()
    assert remembered.job_name == "a?b"
    assert (len(remembered.user), remembered.uid, remembered.pids, remembered.touches) == (64, None, (7,), ())
    assert remembered.energy_at == {"": 5, "0000:11:00.0": 5}
    assert all(slot.isprintable() for slot in remembered.slots)
    assert record_of(replace(bad, kind=EventKind.JOB_ENDED)) is None


# --- any order


def _node(kind: EventKind, second: float, **data: str | bool) -> Event:
    return Event(kind=kind, at=at(second), boot_id=BOOT, data=data)


def _found(kind: EventKind, key: str, second: float, **data: float) -> Event:
    return Event(kind=kind, at=at(second), boot_id=BOOT, key=Key.parse(key), data={"severity": "failure", **data})


NAMES = st.sampled_from(["slurm/7", "slurm/8", "container/0123456789ab"])
FINDINGS = st.sampled_from([
    f"gpu_missing@gpu/{SLOTS[0]}", f"nvlink_down@link/{SLOTS[1]}/3", "driver_unresponsive@node", "mount_hung@mount//data",
    "collector_failed.judge@node", f"xid.31@gpu/{SLOTS[0]}",
])  # fmt: skip
EVENTS = st.one_of(
    st.builds(lambda name, n, slots: begun(epoch(name, n, *slots)), NAMES, st.integers(0, 90), st.sampled_from([SLOTS, SLOTS[:1]])),
    st.builds(lambda name, n: used(replace(epoch(name), use=Use(energy_j=float(n))), at(n), BOOT), NAMES, st.integers(0, 99)),
    st.builds(lambda name, n: ended(replace(RECORD, epoch=epoch(name)), BOOT, n), NAMES, st.integers(0, 9)),
    st.builds(xid, st.sampled_from([31, 45, 79, 94]), st.integers(0, 99), st.sampled_from(SLOTS)),
    st.builds(lambda n, pid: xid(94, n, pid=pid), st.integers(0, 99), st.sampled_from([0, 11, 99])),
    st.builds(
        lambda kind, key, n: _found(kind, key, n, first_boottime=at(n).boottime, first_wall=at(n).wall),
        st.sampled_from([EventKind.RISING, EventKind.RAISED, EventKind.CLEARED, EventKind.SUBSIDED]), FINDINGS, st.integers(0, 99),
    ),
    st.builds(lambda n: Event(kind=EventKind.RESET, at=at(n), boot_id=BOOT, key=Key("gpu", gpu(SLOTS[0])), data={"ok": True}), st.integers(0, 99)),
    st.builds(lambda n: _node(EventKind.NOTICED, n, source="aws", notice="stop", id="1", hard=True), st.integers(0, 99)),
    st.builds(lambda n: _node(EventKind.NOTICE_ENDED, n, source="aws"), st.integers(0, 99)),
    st.builds(lambda n, job: _node(EventKind.SAVED, n, job=job, saved=True), st.integers(0, 99), NAMES),
    st.builds(lambda n: _node(EventKind.OOM_KILL, n, of_limit=True, job="slurm/7", limit_job="slurm/7"), st.integers(0, 99)),
    st.builds(lambda n: replace(_node(EventKind.BOOT, n), boot_id="boot-2"), st.integers(0, 99)),
)  # fmt: skip


@settings(deadline=None, max_examples=150)
@given(events=st.lists(EVENTS, max_size=25))
def test_what_the_ledger_and_a_checkpoint_hold_is_what_was_live(events: list[Event]) -> None:
    live = folded(*events, state=State())
    assert memory_of(folded(*(event_of(row_of(event)) for event in events), state=State())) == memory_of(live)
    again = folded(*(event_of(row_of(event)) for event in checkpoint(live, at(100))), state=State())
    assert memory_of(again) == memory_of(live)


def test_what_a_checkpoint_repeats_after_its_jobs_is_counted_once() -> None:
    raised = _found(
        EventKind.RAISED, f"gpu_missing@gpu/{SLOTS[0]}", 9, first_boottime=at(5).boottime, first_wall=at(5).wall
    )
    noticed = _node(EventKind.NOTICED, 6, source="aws", notice="stop", id="1", hard=True)
    reset = Event(kind=EventKind.RESET, at=at(7), boot_id=BOOT, key=Key("gpu", gpu(SLOTS[0])), data={"ok": True})
    once = folded(begun(epoch()), raised, noticed, reset)
    again = folded(replace(raised, at=at(50)), noticed, reset, state=once)
    assert [touch.what for touch in memory_of(once).epochs["slurm/7"].touches] == ["finding", "notice", "reset"]
    assert memory_of(again).epochs == memory_of(once).epochs


def test_an_exclusion_by_others_counts_once_from_when_it_was_written_and_its_text_is_not_kept() -> None:
    def seen(second: float, since: float) -> Event:
        data: dict[str, Json] = {"actuator": "slurm", "reason": f"fan {second}", "since": since}
        return Event(kind=EventKind.EXCLUDED_BY_OTHERS, at=at(second), boot_id=BOOT, data=data)

    since = at(30).wall
    state = folded(begun(epoch()), begun(epoch("slurm/8", 40.0)), seen(35, since), seen(500, since), seen(900, since))
    jobs = memory_of(state).epochs
    assert jobs["slurm/7"].touches == (Touch(what="excluded_by_others", detail="slurm", at=at(30)),)
    assert jobs["slurm/8"].touches == (), "the drain is older than the job, whenever the daemon was started"
    cycles = folded(
        *(seen(1_000 + n, at(1_000 + n).wall) for n in range(3 * TOUCHES_MOST)), xid(79, 2_000), state=state
    )
    assert [touch.what for touch in memory_of(cycles).epochs["slurm/7"].touches] == ["excluded_by_others", "xid"]
    unknown = folded(begun(epoch()), seen(50, 0.0))
    assert [touch.at for touch in memory_of(unknown).epochs["slurm/7"].touches] == [at(50)]


def test_a_process_that_was_told_of_the_end_of_the_machine_is_found_in_its_session() -> None:
    told = _node(EventKind.SIGNALLED, 5, job="process/12", result="sent")
    state = folded(begun(epoch("session/4711")), begun(replace(epoch("session/4712"), pids=(13,))), told)
    assert {name: len(remembered.touches) for name, remembered in memory_of(state).epochs.items()} == {
        "session/4711": 1,
        "session/4712": 0,
    }


def test_a_signal_since_a_gpu_fails_names_that_gpu() -> None:
    for source, name, slot in ((GPU, SLOTS[0], SLOTS[0]), ("aws", "spot", "")):
        notice = Notice(source=source, kind=FAILING_GPU, at=at(1), boot_id=BOOT, id=name)
        told = signalled(id_of(notice), "slurm/7", Way.LOCAL, Sent.SENT, boot_id=BOOT, now=at(5))
        (touch,) = memory_of(folded(begun(epoch()), told)).epochs["slurm/7"].touches
        assert (touch.what, touch.detail, touch.slot) == ("signalled", "sent", slot)


def test_each_notice_that_is_withdrawn_ends() -> None:
    told = [
        noticed(Notice(source=source, kind=kind, at=at(1), boot_id=BOOT, id=kind, deadline=at(2 + seconds)))
        for source, kind, seconds in (
            ("aws", "interruption", 120),
            ("aws", "maintenance", 1e6),
            ("azure", "scale_in", 5),
        )
    ]
    for by, left in (({"source": "aws"}, ["azure/scale_in"]), ({}, [])):
        over = _node(EventKind.NOTICE_ENDED, 9, **by)
        touches = memory_of(folded(begun(epoch()), *told, over)).epochs["slurm/7"].touches
        assert [touch.detail for touch in touches if touch.until is None] == left


def test_a_notice_of_an_end_that_is_far_away_is_only_listed() -> None:
    for seconds, kind in ((None, "notice"), (120.0, "notice"), (14 * 86_400.0, "announced")):
        deadline = None if seconds is None else at(1 + seconds)
        notice = Notice(source="aws", kind="maintenance", at=at(1), boot_id=BOOT, id="i", deadline=deadline)
        (touch,) = memory_of(folded(begun(epoch()), noticed(notice))).epochs["slurm/7"].touches
        assert (touch.what, touch.detail) == (kind, "aws/maintenance")


def test_events_of_other_versions_end_nothing() -> None:
    """Another machine has none of the jobs: that event forgets them, whatever else it holds."""
    for kind in EventKind:
        for key in (None, Key("job", NODE), Key("job", Subject("job")), Key("xid", gpu("x"), "y")):
            strange = Event(kind=kind, at=at(1), boot_id=BOOT, key=key, data={"began_boottime": "x", "count": None})
            epochs = memory_of(folded(begun(epoch()), strange)).epochs
            assert (epoch().name in epochs) is (kind != EventKind.MACHINE_CHANGED)
