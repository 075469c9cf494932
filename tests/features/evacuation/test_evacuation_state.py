"""What was done for jobs is a replay of the events: cut, restarted or summed up anywhere, it goes on the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import fields
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.features.evacuation.policy import events
from gpuwarden.features.evacuation.policy.budget import budget
from gpuwarden.features.evacuation.policy.delivery import Aim, Delivery, Process, Way
from gpuwarden.features.evacuation.policy.event_data import Answered, KeptProcesses, Saved, Signalling, processes_of
from gpuwarden.features.evacuation.policy.model import (
    CALLED_OFF_FOR,
    EVACUATIONS_MOST,
    SIGNALLED_WITHIN,
    TEXT_MOST,
    EvacuationState,
    Given,
    JobState,
    Sent,
)
from gpuwarden.features.evacuation.policy.plan import slurm_of
from gpuwarden.features.evacuation.policy.steps import Approve, Requeue, SignalJob
from gpuwarden.health.event_data import read, write
from gpuwarden.health.model import Event, EventKind, Json
from gpuwarden.policy.model import Result
from gpuwarden_collectors.cloud.facts import Approval
from gpuwarden_collectors.receivers.facts import Kind
from support.evacuations import BOOT, Dies, Story, announced, local, process, stamp

DIES: tuple[Dies, ...] = ("before marking", "behind the mark", "before sending", "after sending")
Action = Callable[[Story, int], object]
DEAF: frozenset[str] = frozenset()


def runs(story: Story, n: int, **more: object) -> None:
    """Job n of two ranks, the second of which catches nothing for now if n is odd."""
    number = n % 4
    second = process(10 * number + 2, rank=1, catches=DEAF) if n % 2 else process(10 * number + 2, rank=1)
    story.runs(number, process(10 * number + 1, rank=0), second, **{"node_count": 1 + n % 2, **more})


def back(story: Story, n: int) -> None:
    """Run the job here again, with other processes."""
    number, again = n % 4, 1 + n % 3
    story.runs(number, process(1_000 * again + number + 1, rank=0), restarts=again, started=story.now.wall)


def announces(story: Story, n: int) -> None:
    """Announce no, one or two of three sources, with ends that differ from call to call."""
    sources = [name for bit, name in enumerate(("aws", "operator", "planned")) if n >> bit & 1]
    by_source = {notice.source: notice for notice in story.notices.values()}
    notices = []
    for place, source in enumerate(sources):
        at = by_source[source].at.boottime if source in by_source else story.now.boottime
        within = None if (n + place) % 5 == 0 else story.now.boottime - at + 7.0 * (n % 11)
        approval = Approval.ALONE if source == "aws" and n % 2 else Approval.NONE
        notices.append(announced(within, source=source, at=at, approval=approval))
    story.announces(*notices)


ACTIONS: dict[str, Action] = {
    "runs": runs,
    "pinned here": lambda story, n: runs(story, n, requeue=False),
    "ready": lambda story, n: story.runs(n % 4, process(10 * (n % 4) + 1, rank=0), process(10 * (n % 4) + 2, rank=1)),
    "back": back,
    "container": lambda story, n: story.hosts(local("c0ffee", process(500 + n), kind=Kind.CONTAINER)),
    "ends": lambda story, n: story.ends(10 * (n % 4) + 1 + n % 2),
    "over": lambda story, n: story.slurm.pop(n % 4, None),
    "announces": announces,
    "saved": lambda story, n: story.acknowledges(n % 4, n % 2),
    "all saved": lambda story, n: story.acknowledges(n % 4, n % 2, all_ranks=True),
    "steps end": lambda story, n: story.stepless.add(n % 4),
    "approval": lambda story, n: setattr(story, "approval", (Result.DONE, Result.RETRY, Result.REFUSED)[n % 3]),
    "waits": lambda story, n: story.waits(float(n)),
    "waits long": lambda story, n: story.waits(100.0 * n),
    "excluded": lambda story, n: setattr(story, "unschedulable", n % 3 > 0),
    "away": lambda story, n: setattr(story, "controller", n % 3 > 0),
    "mark": lambda story, n: setattr(story, "wide", (Sent.SENT, Sent.UNSENT, Sent.WATCHED, Sent.UNKNOWN)[n % 4]),
    "requeue": lambda story, n: setattr(story, "requeue_works", n % 2 == 0),
    "dies": lambda story, n: story.acts(1 + n % 3, dies=DIES[n % 4]).restarts(),
    "sums up": lambda story, _: story.sums_up(),
}  # fmt: skip
scripts = st.lists(st.tuples(st.sampled_from(sorted(ACTIONS)), st.integers(0, 30)), max_size=16)


def play(story: Story, script: list[tuple[str, int]], *, act: bool = True) -> Story:
    story.runs(0, process(1, rank=0), process(2, rank=1)).announces(announced(600.0, approval=Approval.ALONE))
    for action, number in script:
        ACTIONS[action](story, number)
        for step in story.steps():
            assert not isinstance(step, Requeue | Approve) or story.unschedulable
            assert not isinstance(step, Approve) or not may_be_lost(story)
            assert not isinstance(step, Requeue) or not requeued_for_one_rank(story, step)
        if act:
            story.acts()
    return story


def requeued_for_one_rank(story: Story, step: Requeue) -> bool:
    """Return True if a job of several nodes is requeued early although no acknowledgement stands for all of its ranks."""
    evacuation = story.evacuation
    end = budget(evacuation.kind, evacuation.at.boottime, evacuation.deadline.boottime if evacuation.deadline else None)
    early = story.now.boottime < end.wait_until
    return early and step.slurm.several and not evacuation.jobs[step.key].acknowledged.all_ranks


def may_be_lost(story: Story) -> bool:
    """Somebody who was signalled, here or on another node of the job, may be at it still."""
    jobs = story.evacuation.jobs.items()
    return any(name in story.jobs and job.signalled and not _answered(story, name, job) for name, job in jobs)


def _answered(story: Story, name: str, job: JobState) -> bool:
    acknowledged, slurm = job.acknowledged, slurm_of(story.jobs[name], story.seen)
    if slurm is not None and slurm.several:
        return acknowledged.all_ranks
    return len(acknowledged.ranks) >= len(job.signalled) or job.signalled <= acknowledged.processes


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(script=scripts)
def test_the_state_is_the_fold_of_the_ledger_and_so_is_that_of_its_summary(script: list[tuple[str, int]]) -> None:
    story = play(Story(), script)
    state = story.state
    assert story.restarts().state == state
    assert story.sums_up().state == state
    assert all(event.kind != EventKind.REQUEUED for event in story.ledger), "it would count for the lemons again"


@pytest.mark.slow
@settings(deadline=None, max_examples=250)
@given(script=scripts)
def test_nobody_is_signalled_twice_for_one_termination(script: list[tuple[str, int]]) -> None:
    """Within ten minutes only if the notice was called off meanwhile, and then 30 s later or after an acknowledgement."""
    story = Story()
    times_by_process: dict[Process, list[tuple[float, int]]] = defaultdict(list)
    story.runs(0, process(1, rank=0), process(2, rank=1)).announces(announced())
    for action, number in script:
        for carried_out in (ACTIONS[action], lambda replayed, _: replayed.acts()):
            before = len(story.sent)
            carried_out(story, number)
            if action == "sums up":
                return  # when what came between is not in the ledger any more
            for _, who, _ in story.sent[before:]:
                times_by_process[who].append((story.now.boottime, len(story.ledger)))
    for times in times_by_process.values():
        for (earlier, place), (later, end) in pairwise(times):
            between = {event.kind for event in story.ledger[place:end]}
            again = EventKind.DEPARTED in between and (later - earlier > CALLED_OFF_FOR or EventKind.SAVED in between)
            assert later - earlier > SIGNALLED_WITHIN or again


@settings(deadline=None, max_examples=150)
@given(script=scripts)
def test_what_is_said_of_a_job_is_never_empty(script: list[tuple[str, int]]) -> None:
    story = play(Story(), script)
    jobs = [job for evacuation in story.state.evacuations.values() for job in evacuation.jobs.values()]
    assert all(job.text for job in jobs)


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(script=scripts, stops=st.lists(st.integers(1, 3), max_size=4))
def test_stopping_after_any_step_and_starting_again_gives_the_remainder(
    script: list[tuple[str, int]], stops: list[int]
) -> None:
    through, cut = play(Story(), script, act=False), play(Story(), script, act=False)
    through.acts()
    for steps in stops:
        cut.acts(steps).restarts()
    cut.sums_up().acts()
    assert cut.sent == through.sent
    assert cut.requeues == through.requeues
    assert cut.final_node_state == through.final_node_state
    assert cut.approvals == through.approvals
    assert cut.state == through.state
    assert cut.restarts().steps() == ()


@settings(deadline=None, max_examples=150)
@given(script=scripts, step=st.integers(1, 4), dies=st.sampled_from(DIES))
def test_a_crash_in_the_midst_of_a_step_sends_nothing_a_second_time(
    script: list[tuple[str, int]], step: int, dies: Dies
) -> None:
    story = play(Story(), script, act=False)
    already = list(story.sent)
    story.acts(step, dies=dies).restarts().acts()
    sent = story.sent[len(already) :]
    assert len(sent) == len(set(sent))


def test_what_was_begun_before_a_crash_is_shown_as_not_known() -> None:
    story = Story().runs(7, process(1)).announces(announced()).acts(1, dies="before sending").restarts()
    assert story.known(7).result is Sent.UNKNOWN
    assert story.known(7).signalled == {(1, 10)}
    assert story.acts().sent == []


@pytest.mark.parametrize("kind", [EventKind.BOOT, EventKind.MACHINE_CHANGED])
def test_another_boot_or_machine_restarts_the_state(kind: EventKind) -> None:
    story = Story().runs(7, process(1)).announces(announced()).acts()
    story.took([Event(kind=kind, at=stamp(3.0), boot_id="another")])
    assert story.state == EvacuationState(boot_id="another")
    story.took(events.follow(EvacuationState(), [announced()], boot_id=BOOT, now=story.now))
    assert story.state == EvacuationState(boot_id="another"), "what comes late from the boot before"


def test_the_boot_that_goes_on_ends_nothing() -> None:
    story = Story().runs(7, process(1)).announces(announced()).acts()
    before = story.state
    story.took([Event(kind=EventKind.BOOT, at=story.now, boot_id=BOOT)])
    assert story.state == before


def test_a_hundred_processes_and_more_go_through_the_ledger_s_texts() -> None:
    aims = tuple(Aim(process(4_000_000 + n, started=10**11 + n), "TERM") for n in range(1_000))
    delivery = Delivery(way=Way.LOCAL, text="t", signal="TERM", receivers=aims)
    written = events.signalling("n", "slurm/7", delivery, None, boot_id=BOOT, now=stamp(1.0))
    assert all(len(str(event.data["processes"])) <= events.WORDS_MOST for event in written)
    story = Story()
    story.took(written)
    assert story.state.evacuations["n"].jobs["slurm/7"].signalled == {aim.process for aim in aims}
    before = story.state
    assert story.sums_up().state == before
    more = [event for event in events.checkpoint(before) if event.data.get("more")]
    assert more
    assert [write(read(KeptProcesses, event)) for event in more] == [event.data for event in more]


def test_of_an_event_only_the_first_part_names_the_restarts() -> None:
    """The value is null where the restarts are unknown, as in every version."""
    aims = tuple(Aim(process(4_000_000 + n, started=10**11 + n), "TERM") for n in range(200))
    delivery = Delivery(way=Way.LOCAL, text="t", signal="TERM", receivers=aims)
    first, *others = events.signalling("n", "slurm/7", delivery, None, boot_id=BOOT, now=stamp(1.0))
    assert first.data == write(read(Signalling, first))
    assert "restarts" in first.data
    assert first.data["restarts"] is None
    assert others
    assert not any("restarts" in event.data for event in others)


@pytest.mark.parametrize("value", [-1, 1 << 63, True, 1.5, "1", None])
def test_a_number_that_no_version_writes_is_read_as_none(value: Json) -> None:
    written: dict[str, Json] = {"job": "slurm/7", "by": "socket", "saved": True, "rank": value, "step": 3}
    data = read(Saved, Event(kind=EventKind.SAVED, at=stamp(1.0), boot_id=BOOT, data=written))
    assert (data.rank, data.step, data.job) == (None, 3, "slurm/7")


def test_each_answer_has_its_count() -> None:
    assert [field.name for field in fields(Answered)] == [answer.value for answer in Given]


def test_as_many_departures_are_remembered_as_one_boot_needs() -> None:
    story = Story()
    for _ in range(EVACUATIONS_MOST + 9):
        story.waits(1.0).announces(announced(600.0, at=story.now.boottime))
    assert len(story.state.evacuations) == EVACUATIONS_MOST
    assert story.evacuation.over is None


def test_text_that_comes_from_outside_is_held_to_a_length() -> None:
    story = Story().runs(7, process(1)).announces(announced()).acts()
    story.took([
        events.not_requeued("slurm/7", "x" * 5_000, permanent=False, boot_id=BOOT, now=story.now),
        events.final_node_state(story.evacuation.id, "down", Result.RETRY, "y" * 5_000, boot_id=BOOT, now=story.now),
    ])  # fmt: skip
    assert len(story.known(7).requeued_text) == TEXT_MOST
    assert story.evacuation.final_node_state
    assert len(story.evacuation.final_node_state.text) == TEXT_MOST


ODD = (
    st.sampled_from(["unsure", "unsure_here", "undecided", "job_wide", "local", "unknown", "unsent", "1:10"])
    | st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=30)
)
NAMES = [
    "notice", "job", "way", "result", "processes", "rank", "ranks", "pid", "started", "step", "kept", "more", "earlier",
    "restarts", "count", "text", "by", "saved", "permanent", "named", "requeued", "deadline_boottime", "deadline_wall",
    "signalled_boottime", "signalled_wall", "requeued_boottime", "requeued_wall", "tries", "unsaved", "ended",
    "remaining", "returned", "in_steps", "steps", "all_ranks", "marking", "again", "due", "only", "wide", "signal",
]  # fmt: skip
EVACUATION_KINDS = [
    EventKind.DEPARTING, EventKind.SIGNALLING, EventKind.SIGNALLED, EventKind.SAVED, EventKind.REQUEUED,
    EventKind.NOT_REQUEUED, EventKind.FINAL_NODE_STATE, EventKind.APPROVING, EventKind.APPROVED, EventKind.DEPARTED,
    EventKind.ANSWERED,
]  # fmt: skip


@pytest.mark.slow
@settings(max_examples=300)
@given(kind=st.sampled_from(EVACUATION_KINDS), data=st.dictionaries(st.sampled_from(NAMES), ODD))
def test_a_ledger_that_was_edited_ends_nothing(kind: EventKind, data: dict[str, str | float | None]) -> None:
    story = Story().runs(7, process(1)).announces(announced()).acts()
    for more in (data, {**data, "notice": story.evacuation.id, "job": "slurm/7"}):
        story.took([Event(kind=kind, at=story.now, boot_id=BOOT, data=more)])
    before = story.state
    assert story.sums_up().state == before
    story.acts()


@settings(max_examples=200)
@given(st.text(max_size=60))
def test_processes_are_read_from_any_text(text: str) -> None:
    assert processes_of(f"{text} 12:34 x:1 5 :") >= {(12, 34)}


def test_a_job_known_to_many_evacuations_is_signalled_for_none_of_them_again() -> None:
    story = Story().runs(7, process(1))
    for n in range(5):
        story.waits(1.0).announces(announced(60.0, at=story.now.boottime, source=f"s{n}")).acts()
    assert len(story.sent) == 1
    assert not any(isinstance(step, SignalJob) and step.delivery.receivers for step in story.steps())


def test_the_result_of_signalling_a_job_as_a_whole_counts_wherever_it_was_taken_over() -> None:
    """An earlier daemon was killed before its mark was set; then the controller is away, and another source announces the end."""
    story = Story().spreads(7, process(1)).announces(announced())
    first, signal_step = story.evacuation.id, story.steps()[0]
    assert isinstance(signal_step, SignalJob)
    story.took(
        events.signalling(first, signal_step.key, signal_step.delivery, signal_step.slurm, boot_id=BOOT, now=story.now)
    )
    story.controller = False
    story.restarts().announces(announced(), announced(30.0, source="operator")).acts()
    assert story.sent == []
    assert story.known(7).signalled == {(1, 10)}
    story.controller = True
    assert story.acts().signals == [(1, "TERM")]
    assert [evacuation.jobs["slurm/7"].unsure for evacuation in story.state.evacuations.values()] == [frozenset()] * 2
