"""Who of a job is signalled, with which signal, and which way: nobody who would die of it, nobody of another's, nobody twice."""

from __future__ import annotations

import fnmatch
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.features.evacuation.policy.delivery import (
    MARK_STANDS,
    SIGNALLED_MOST,
    Delivery,
    DeliveryRules,
    SiteRule,
    Way,
    commented,
    declared,
    delivery,
    mark,
    markable,
    parse_mark,
)
from gpuwarden_collectors.receivers.facts import NOTHING, SIGNALS, Kind, LocalJob, Receiver, Role
from gpuwarden_collectors.slurm.departing_facts import SlurmJob
from support.evacuations import BOOTED, CATCHES, UID, local, process, slurm_job

NOW = BOOTED + 1_000.0
DEAF: frozenset[str] = frozenset()


def deliver(
    job: LocalJob, slurm: SlurmJob | None = None, rules: DeliveryRules | None = None, **more: object
) -> Delivery:
    return delivery(job, slurm, rules or DeliveryRules(), now=NOW, **more)  # type: ignore[arg-type]


def signals(delivery: Delivery) -> dict[int, str]:
    return {aim.receiver.pid: aim.signal for aim in delivery.receivers}


# --- which signal


def test_a_rank_that_catches_it_gets_the_default_and_one_that_would_die_of_it_gets_nothing() -> None:
    job = local(7, process(1), process(2, catches=frozenset({"USR1", "HUP"})))
    assert signals(deliver(job)) == {1: "TERM"}


def test_nobody_but_ranks_is_ever_signalled_whatever_it_declares() -> None:
    others = [
        process(n, role, catches=CATCHES, declared="TERM") for n, role in enumerate(Role) if role is not Role.RANK
    ]
    delivery = deliver(local(7, *others))
    assert (delivery.way, delivery.receivers, delivery.text) == (Way.NONE, (), "no rank of it is found here")


SITE = DeliveryRules(default="TERM", rules=(SiteRule(signal="HUP", partition="gpu"),))


@pytest.mark.parametrize(
    ("own", "comment", "label", "rules", "expected"),
    [
        ("USR2", "gpuwarden:signal=USR1", "HUP", SITE, "USR2"),
        ("", "night run, gpuwarden:signal=USR1 please", "HUP", SITE, "USR1"),
        ("", "GPUWARDEN_SIGNAL=sigusr1", "", SITE, "USR1"),
        ("", "", "USR2", SITE, "USR2"),
        ("", "", "", SITE, "HUP"),
        ("", "", "", DeliveryRules(default="USR1"), "USR1"),
        ("", "gpuwarden:signal=KILL", "", SITE, None),
        ("", "GPUWARDEN_SIGNAL=", "", SITE, None),
        (NOTHING, "gpuwarden:signal=USR1", "", SITE, None),
        ("", "", "", DeliveryRules(default=NOTHING), None),
    ],
)
def test_the_choice_is_its_own_then_the_comment_s_then_the_label_s_then_the_site_s_then_the_default(
    own: str, comment: str, label: str, rules: DeliveryRules, expected: str | None
) -> None:
    job = local(7, process(1, declared=own, catches=frozenset(SIGNALS)), declared=label)
    delivery = deliver(job, slurm_job(7, comment=comment, node_count=1), rules)
    assert signals(delivery) == ({} if expected is None else {1: expected})
    assert delivery.text == (f"SIG{expected} to 1 rank here" if expected else "it asks for no signal")


@pytest.mark.parametrize(
    ("partition", "name", "expected"),
    [("gpu", "nemo-7", "USR1"), ("gpu", "bert", "HUP"), ("cpu", "nemo-7", "TERM"), ("cpu", "bert", "TERM")],
)
def test_of_the_site_rules_the_first_counts_that_fits_partition_and_name(
    partition: str, name: str, expected: str
) -> None:
    rules = DeliveryRules(
        rules=(
            SiteRule(signal="USR1", partition="gpu", name=fnmatch.translate("nemo-*")),
            SiteRule(signal="HUP", partition="gpu"),
        )
    )
    job = local(7, process(1, catches=frozenset(SIGNALS)))
    assert signals(deliver(job, slurm_job(7, partition=partition, name=name, node_count=1), rules)) == {1: expected}


def test_ranks_of_one_job_that_want_different_signals_get_each_its_own_on_this_host() -> None:
    delivery = deliver(local(7, process(1), process(2, declared="USR1")), slurm_job(7))
    assert (delivery.way, delivery.signal, signals(delivery)) == (Way.LOCAL, "TERM USR1", {1: "TERM", 2: "USR1"})
    assert delivery.local_only


@pytest.mark.parametrize("text", ["USR1", "usr1", " SIGUSR1", "SigUsr1 "])
def test_a_signal_is_named_with_or_without_sig_in_any_case(text: str) -> None:
    assert declared(text) == "USR1"


@settings(max_examples=300)
@given(st.text(max_size=40))
def test_whatever_a_user_writes_no_other_signal_than_the_four_comes_of_it(text: str) -> None:
    assert declared(text) in (*SIGNALS, NOTHING)
    assert commented(f"x GPUWARDEN_SIGNAL={text}") in (*SIGNALS, NOTHING)
    assert commented(text.replace("=", "")) == ""


def test_a_process_under_another_user_than_the_job_s_is_not_the_job_s_to_signal() -> None:
    job = local(7, process(1, uid=0), process(2))
    assert signals(deliver(job, slurm_job(7, node_count=1))) == {2: "TERM"}
    assert signals(deliver(local(9, process(1, uid=0), kind=Kind.PROCESS))) == {}
    assert signals(deliver(local("c0ffee", process(1, uid=0), kind=Kind.CONTAINER))) == {1: "TERM"}, "users of its own"


def test_a_process_that_does_not_answer_to_the_kernel_is_left_alone() -> None:
    delivery = deliver(local(7, process(1, stuck=True)))
    assert (delivery.way, delivery.text) == (
        Way.NONE,
        "its ranks here cannot be read, do not respond, or run as another user than the job",
    )


def test_a_signalled_process_is_not_signalled_again_and_one_that_came_later_is() -> None:
    job = local(7, process(1), process(2))
    assert signals(deliver(job, signalled=frozenset({(1, 10)}))) == {2: "TERM"}
    assert signals(deliver(job, signalled=frozenset({(1, 99)}))) == {1: "TERM", 2: "TERM"}, (
        "another process had that number"
    )
    assert deliver(job, signalled=frozenset({(1, 10), (2, 20)})).text == "all of its ranks here were signalled before"


def test_of_ten_thousand_processes_as_many_are_signalled_as_can_be_remembered() -> None:
    job = local(7, *(process(n) for n in range(1, 10_001)))
    first = deliver(job)
    assert len(first.receivers) == SIGNALLED_MOST
    assert deliver(job, signalled=frozenset(aim.process for aim in first.receivers)).receivers == ()


@pytest.mark.parametrize("state", ["completing", "completed", "cancelled", "timeout", "preempted", "node_fail"])
def test_a_job_that_is_ending_was_signalled_by_slurm_already(state: str) -> None:
    delivery = deliver(local(7, process(1)), slurm_job(7, state=state))
    assert (delivery.way, delivery.text) == (Way.NONE, f"it is {state}: it ends by itself")


# --- which way


def test_a_job_of_several_nodes_is_signalled_as_a_whole_where_all_leaders_here_are_ranks_that_catch_it() -> None:
    delivery = deliver(local(7, process(1), process(2)), slurm_job(7))
    assert (delivery.way, delivery.signal, delivery.local_only) == (Way.JOB_WIDE, "TERM", False)
    assert signals(delivery) == {1: "TERM", 2: "TERM"}


def helper(pid: int) -> Receiver:
    return process(pid, Role.HELPER)


@pytest.mark.parametrize(
    ("job", "slurm", "more"),
    [
        (local(7, process(1)), slurm_job(7, node_count=1), {}),
        (local(7, process(1)), None, {}),
        (local(7, process(1)), slurm_job(7, state="suspended"), {}),
        (local(7, process(1)), slurm_job(7, admin_comment="ticket 4711"), {}),
        (local(7, process(1)), slurm_job(7), {"wide": False}),
        (local(7, process(1)), slurm_job(7), {"signalled": frozenset({(5, 50)})}),
        (local(7, process(1), process(2, catches=DEAF)), slurm_job(7), {}),
        (local(7, process(1), process(2, Role.LAUNCHER, leader=True)), slurm_job(7), {}),
        (local(7, process(1), process(2, Role.SHELL, leader=True)), slurm_job(7), {}),
        (local(7, process(1), process(2, leader=True, stuck=True, catches=DEAF)), slurm_job(7), {}),
        (local(7, process(1), process(2, uid=0)), slurm_job(7), {}),
        (local(7, process(1), helper(2)), slurm_job(7), {"trees": True}),
        (local(7, process(1), helper(2)), slurm_job(7), {"trees": None}),
        (local(7, process(1, leader=False)), slurm_job(7), {}),
        (local(7, process(1), process(2, Role.SHELL, step="interactive")), slurm_job(7), {}),
    ],
    ids=[
        "one node", "controller away", "not running", "foreign mark", "no time", "signalled before", "deaf leader", "launcher leads",
        "shell leads", "stuck leader", "another user", "a helper would die", "perhaps a helper would die", "no leader",
        "interactive shell would die",
    ],
)  # fmt: skip
def test_else_only_the_ranks_on_this_host_are_signalled(
    job: LocalJob, slurm: SlurmJob | None, more: dict[str, object]
) -> None:
    delivery = deliver(job, slurm, DeliveryRules(), **more)
    assert (delivery.way, signals(delivery)) == (Way.LOCAL, {1: "TERM"})
    assert delivery.local_only == (slurm is not None and slurm.node_count > 1)


@pytest.mark.parametrize(("nodes", "way", "local_only"), [(1, Way.LOCAL, True), (2, Way.JOB_WIDE, False)])
def test_the_text_says_that_other_parts_of_a_heterogeneous_job_get_no_signal(
    nodes: int, way: Way, *, local_only: bool
) -> None:
    delivery = deliver(local(7, process(1)), slurm_job(7, node_count=nodes, called="7+0"))
    assert (delivery.way, delivery.local_only) == (way, local_only)
    assert delivery.text.endswith(" are not signalled by this node")


def test_where_only_leaders_are_reached_their_helpers_are_in_no_danger() -> None:
    delivery = deliver(local(7, process(1), helper(2)), slurm_job(7), trees=False)
    assert (delivery.way, signals(delivery)) == (Way.JOB_WIDE, {1: "TERM"})


def test_what_a_signal_for_all_steps_does_not_reach_is_signalled_on_this_host_afterwards() -> None:
    batch = process(2, step="batch")
    job = local(
        7, process(1), batch, process(3, Role.SHELL, step="batch", leader=True), process(4, Role.SERVICE, step="extern")
    )
    first = deliver(job, slurm_job(7))
    assert (first.way, signals(first)) == (Way.JOB_WIDE, {1: "TERM"})
    second = deliver(job, slurm_job(7), signalled=frozenset({(1, 10)}))
    assert (second.way, signals(second)) == (Way.LOCAL, {2: "TERM"})


def test_the_batch_script_is_signalled_by_slurm_only_where_it_is_the_rank_itself() -> None:
    script = process(1, step="batch")
    assert deliver(local(7, script), slurm_job(7)).way is Way.BATCH
    assert deliver(local(7, script, process(2)), slurm_job(7)).way is not Way.BATCH
    assert deliver(local(7, script), slurm_job(7, batch=False)).way is Way.LOCAL
    assert deliver(local(7, replace(script, leader=False)), slurm_job(7)).way is Way.LOCAL


# --- marks


def test_with_a_fresh_mark_of_this_run_the_ranks_that_it_reaches_count_as_signalled() -> None:
    slurm = slurm_job(7, admin_comment=mark("n2", NOW - 1.0))
    delivery = deliver(local(7, process(1), helper(2)), slurm)
    assert (delivery.way, signals(delivery), delivery.text) == (
        Way.WATCH,
        {1: "TERM"},
        "n2 signals the whole job, 1 rank of it here",
    )


def test_a_mark_counts_for_steps_that_run_on_its_node_and_others_are_signalled_on_this_host() -> None:
    """The node that set it signals the steps that it has, and knows nothing of the rest."""
    slurm = slurm_job(7, nodes="n[1-3]", node_count=3, admin_comment=mark("n2", NOW - 1.0))
    both, here = process(1, step_nodes="n[1-2]"), process(2, step="1", step_nodes="n[1,3]")
    delivery = deliver(local(7, both, here), slurm)
    assert (delivery.way, signals(delivery)) == (Way.WATCH, {1: "TERM"})
    left = deliver(local(7, both, here), slurm, signalled=frozenset({(1, 10)}))
    assert (left.way, signals(left)) == (Way.LOCAL, {2: "TERM"})
    alone = deliver(local(7, here), slurm)
    assert (alone.way, signals(alone)) == (Way.LOCAL, {2: "TERM"}), "it would find that mark"


def test_of_a_job_signalled_as_a_whole_the_steps_are_named_that_have_a_leader_here() -> None:
    late, session = process(2, step="1", leader=False), process(3, step="interactive")
    delivery = deliver(local(7, process(1), late, session, process(4, step="batch")), slurm_job(7))
    assert (delivery.way, delivery.steps, signals(delivery)) == (Way.JOB_WIDE, frozenset({"0"}), {1: "TERM"})


@pytest.mark.parametrize(
    ("at", "started"), [(NOW - MARK_STANDS - 1.0, BOOTED), (NOW + MARK_STANDS + 1.0, BOOTED), (NOW - 9.0, NOW - 3.0)]
)
def test_a_mark_that_is_old_or_of_an_earlier_run_is_written_over(at: float, started: float) -> None:
    slurm = slurm_job(7, admin_comment=mark("n2", at), started=started)
    assert deliver(local(7, process(1)), slurm).way is Way.JOB_WIDE


def test_a_mark_that_was_set_in_the_second_in_which_the_job_began_counts() -> None:
    slurm = slurm_job(7, admin_comment=mark("n2", NOW - 3.4), started=NOW - 3.1)
    assert deliver(local(7, process(1)), slurm).way is Way.WATCH


@pytest.mark.parametrize("text", ["", "  ", mark("n1", NOW), None])
def test_a_mark_may_be_written_over_nothing_or_another_mark(text: str | None) -> None:
    assert markable(text)


@pytest.mark.parametrize(
    "text", ["ticket 4711", f"{mark('n1', NOW)} and more", "gpuwarden:ckpt@n1", "gpuwarden:ckpt@n1@x"]
)
def test_what_anybody_else_wrote_is_no_mark_and_is_never_written_over(text: str) -> None:
    assert parse_mark(text) is None
    assert not markable(text)


@settings(max_examples=200)
@given(node=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True), at=st.integers(0, 4_000_000_000))
def test_a_mark_is_read_as_it_was_written(node: str, at: int) -> None:
    read = parse_mark(mark(node, at))
    assert read is not None
    assert (read.node, read.at) == (node, at)


PROCESSES = st.builds(
    process,
    st.integers(1, 40),
    st.sampled_from(Role),
    catches=st.frozensets(st.sampled_from(SIGNALS)),
    declared=st.sampled_from(["", NOTHING, *SIGNALS]),
    step=st.sampled_from(["0", "1", "batch", "extern", "interactive", ""]),
    leader=st.booleans(),
    uid=st.sampled_from([0, UID]),
    stuck=st.booleans(),
)


@pytest.mark.slow
@settings(max_examples=400)
@given(
    processes=st.lists(PROCESSES, max_size=6, unique_by=lambda p: p.pid),
    slurm=st.none() | st.builds(slurm_job, st.just(7), node_count=st.integers(1, 2), comment=st.sampled_from(["", "GPUWARDEN_SIGNAL=USR1"])),
    trees=st.none() | st.booleans(),
    default=st.sampled_from([NOTHING, *SIGNALS]),
)  # fmt: skip
def test_whatever_runs_here_nobody_is_sent_what_it_does_not_catch_and_only_ranks_of_the_job_s_user_are_sent_anything(
    processes: list[Receiver], slurm: SlurmJob | None, trees: bool | None, default: str
) -> None:
    delivery = deliver(local(7, *processes), slurm, DeliveryRules(default=default), trees=trees)
    for aim in delivery.receivers:
        assert aim.signal in aim.receiver.catches
        assert (aim.receiver.role, aim.receiver.uid, aim.receiver.stuck) == (Role.RANK, UID, False)
    assert (delivery.way is Way.NONE) == (not delivery.receivers)
    assert delivery.text
    if delivery.way is Way.JOB_WIDE:
        reached = [p for p in processes if p.step not in ("", "batch", "extern") and (trees is not False or p.leader)]
        assert all(delivery.signal in p.catches for p in reached)
