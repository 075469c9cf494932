"""Jobs are followed from their begin to their record: through restarts, boots, readers that are away, and numbers that come again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwarden.features.why.following import following_of
from gpuwarden.features.why.memory import EPOCHS_MOST, memory_of
from gpuwarden.features.why.model import SETTLES, TOUCHES_MOST, Cause, Certainty
from gpuwarden.features.why.snapshot import Shown
from gpuwarden.features.why.step import ANSWERED_WITHIN
from gpuwarden.features.why.touches import RECENT_FOR
from gpuwarden.features.why.writing import BEGUN_AT_LAST
from gpuwarden.health.model import EventKind
from gpuwarden.health.view import View
from gpuwarden_collectors.event_facts import KernelLineEvent, LineKind, LogOrigin, OomKillEvent, Source
from gpuwarden_collectors.facts import GpuProcess, NvmlProblem, Stamp
from gpuwarden_collectors.receivers.workloads_facts import WorkloadProcess, WorkloadsFacts
from gpuwarden_collectors.slurm.jobs_facts import Job, JobProcess, JobsFacts
from support.hosts import slot
from support.job_hosts import JOB, UID
from support.why_hosts import WhyHost, workload

NAME = f"slurm/{JOB}"


def spend(host: WhyHost) -> None:
    """Let so many short jobs run that a young one is not written down at once."""
    for number in range(1, 40):
        job = Job(id=number, uid=UID, gpus=(0,), started=host.uptime)
        host.job_facts = JobsFacts(jobs=(job,))
        host.free()
        host.run(2)
        host.job_facts = JobsFacts(jobs=(replace(job, ended=host.uptime),))
    host.job_facts = JobsFacts()
    host.run(65)


@pytest.fixture
def host() -> WhyHost:
    """Its job began 100 s ago."""
    host = WhyHost(2)
    host.run(10)
    return host


def test_a_job_is_written_down_with_its_user_and_its_gpus(host: WhyHost) -> None:
    (epoch,) = memory_of(host.state).epochs.values()
    assert (epoch.name, epoch.uid, epoch.slots, epoch.pids) == (NAME, UID, (slot(0), slot(1)), (100, 101))
    assert epoch.began.boottime == pytest.approx(9_900.0)


def test_where_many_jobs_begin_a_young_one_waits_for_a_minute(host: WhyHost) -> None:
    spend(host)
    began = host.uptime
    host.job_facts = JobsFacts(jobs=(Job(id=9_000, uid=UID, gpus=(0,), started=began),))
    host.processes(JobProcess(pid=100, uid=UID, job=9_000))
    host.run(50)
    assert "slurm/9000" in [epoch.name for epoch in host.shown().running]
    assert "slurm/9000" not in memory_of(host.state).epochs
    host.run(15)
    assert "slurm/9000" in memory_of(host.state).epochs


def test_a_job_in_its_first_seconds_has_a_record_after_a_boot() -> None:
    host = WhyHost(2)
    host.job(started=host.uptime)
    host.run(5)
    host.reboot()
    host.job_facts = JobsFacts()
    host.run(5)
    (record,) = host.records
    assert (record.epoch.name, record.end.known_from, record.answer.cause) == (NAME, "boot", Cause.HOST)


def test_its_record_comes_a_minute_after_its_end_and_only_once(host: WhyHost) -> None:
    host.ends()
    ended = host.uptime
    host.run(SETTLES - 5)
    assert not host.records
    assert host.shown().ends[NAME].at.boottime == ended
    record = host.settles()
    assert host.shown().ends == {}
    assert (record.epoch.name, record.end.at.boottime, record.end.known_from) == (NAME, ended, "epilog")
    host.run(400)
    assert len(host.records) == 1
    assert host.shown().running == ()
    assert host.shown().ended == (record,)


def test_what_touched_it_is_in_its_record_and_names_the_cause(host: WhyHost) -> None:
    host.step(replace(host.xid(1, 119), pid=101))
    host.run(10)
    host.ends()
    record = host.settles()
    assert record.answer.cause is Cause.HARDWARE
    assert (record.answer.slot, record.answer.serial, record.answer.code) == (slot(1), "1651", "xid.119")
    assert record.answer.sentence.startswith(
        "GPU 1 (serial 1651) failed: GSP does not answer a remote procedure call in time (Xid 119)"
    )


def test_where_many_jobs_fail_at_once_what_touched_one_that_is_not_written_down_yet_is_kept_to_its_record() -> None:
    host = WhyHost(4)
    host.job_facts = JobsFacts()
    host.run(10)
    for number in range(1, 60):
        host.job_facts = JobsFacts(jobs=(Job(id=number, uid=UID, gpus=(1,), started=host.uptime),))
        host.step(replace(host.xid(1, 31), pid=900 + number))
    began = host.uptime
    young = Job(id=9_000, uid=UID, gpus=(0,), started=began)
    host.job_facts = JobsFacts(jobs=(young,))
    host.processes(JobProcess(pid=100, uid=UID, job=9_000))
    host.run(5)
    host.step(replace(host.xid(0, 31), pid=100))
    host.run(50)
    assert "slurm/9000" not in memory_of(host.state).epochs, "the budget is spent"
    ended = replace(young, ended=host.uptime, batch=True)
    host.processes()
    host.free()
    for _ in range(12):
        host.job_facts = JobsFacts(jobs=(ended,))
        host.step(replace(host.xid(1, 31), pid=2_000))
        host.run(10)
    records = [*following_of(host.state).unwritten, *host.records]
    (record,) = [candidate for candidate in records if candidate.epoch.name == "slurm/9000"]
    assert record.answer.code == "xid.31"


def test_what_touched_a_job_is_kept_for_as_long_as_its_record_may_wait() -> None:
    assert RECENT_FOR >= BEGUN_AT_LAST + ANSWERED_WITHIN


def test_a_line_that_bus_and_nvml_contradict_accuses_nobody(host: WhyHost) -> None:
    host.step(host.xid(1, 79))
    host.run(10)
    assert host.shown().denied == {f"xid.79@gpu/{slot(1)}"}
    host.ends()
    assert host.settles().answer.cause is Cause.NOT_SEEN


def test_what_befalls_another_gpu_is_not_its_own() -> None:
    host = WhyHost(4)
    host.job(gpus=(0, 1))
    host.processes(*(JobProcess(pid=100 + n, uid=UID, job=JOB) for n in range(2)))
    host.run(10)
    host.step(host.xid(3, 119))
    host.ends()
    record = host.settles()
    assert record.epoch.touches == ()
    assert record.answer.cause is not Cause.HARDWARE


@pytest.mark.slow
def test_an_error_that_other_jobs_had_at_the_same_place_makes_the_gpu_suspect() -> None:
    host = WhyHost(2)
    text = "MMU Fault: ENGINE GRAPHICS GPC3 GPCCLIENT_T1_0 faulted @ 0x7f_0. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"
    for number in range(5):
        job = Job(id=number, uid=UID, gpus=(0,), started=host.uptime)
        host.job_facts = JobsFacts(jobs=(job,), processes=(JobProcess(pid=500 + number, uid=UID, job=number),))
        host.gpus[0] = replace(host.gpus[0], processes=(GpuProcess(pid=500 + number),))
        host.run(70)
        host.step(replace(host.xid(0, 31), pid=500 + number, text=text))
        host.run(10)
        host.job_facts = JobsFacts(jobs=(replace(job, ended=host.uptime, exit_code=1, state="FAILED"),))
        host.free()
        host.run(4_000, every=20)
    causes = [record.answer.cause for record in host.records]
    assert causes[0] is Cause.JOB
    assert causes[-1] is Cause.HARDWARE
    assert host.records[-1].answer.certainty is Certainty.POSSIBLE


def test_a_fault_in_its_first_minute_is_not_lost() -> None:
    host = WhyHost(2)
    host.job(started=host.uptime)
    host.run(10)
    host.step(host.xid(0, 48))
    host.run(5)
    assert host.count(EventKind.JOB_BEGUN) == 1, "it is written down at once"
    host.restart_daemon()
    host.run(10)
    host.ends()
    assert host.settles().answer.code == "xid.48"


def test_a_fault_of_the_previous_job_is_not_its_own() -> None:
    host = WhyHost(2)
    host.step(host.xid(0, 119))
    host.run(1)
    host.job_facts = JobsFacts(jobs=(Job(id=8, uid=UID, gpus=(0, 1), started=host.uptime + 1),))
    host.uptime += 2
    host.run(100)
    host.job_facts = JobsFacts(jobs=(Job(id=8, uid=UID, gpus=(0, 1), started=host.uptime - 101, ended=host.uptime),))
    host.run(SETTLES + 5)
    assert [record.epoch.touches for record in host.records if record.epoch.id == "8"] == [()]


def test_a_restart_in_the_middle_loses_nothing(host: WhyHost) -> None:
    host.step(host.xid(0, 31))
    host.run(20)
    host.restart_daemon()
    host.run(20)
    assert host.count(EventKind.JOB_BEGUN) == 1
    host.checkpointed()
    host.run(20)
    host.ends()
    record = host.settles()
    assert record.answer.code == "xid.31"
    assert record.epoch.began.boottime == pytest.approx(9_900.0)


def test_a_job_that_ended_while_the_daemon_was_away_gets_its_record(host: WhyHost) -> None:
    host.restart_daemon()
    host.uptime += 30
    host.ends()
    host.uptime += 40
    assert host.settles().end.known_from == "epilog"
    assert len(host.records) == 1


def test_a_job_that_died_long_before_the_daemon_was_started_again_waits_for_the_kernel_log(host: WhyHost) -> None:
    """A job's end is known with the first step, and what the driver wrote of it only when the log has been read."""
    line = replace(host.xid(1, 119), pid=101)
    host.uptime += 1
    host.ends()
    host.uptime += 2 * SETTLES
    host.restart_daemon()
    host.view = replace(host.view, log_read=False)
    host.run(20)
    assert not host.records
    host.view = replace(host.view, log_read=True)
    host.step(line)
    (record,) = host.records
    assert (record.answer.cause, record.answer.code) == (Cause.HARDWARE, "xid.119")


def test_of_lines_that_are_read_late_and_at_once_each_counts_at_its_own_time(host: WhyHost) -> None:
    """The driver goes on to complain after the job has died, and the next job has the same error."""
    died = host.now
    at = [Stamp(died.boottime + late, died.wall + late) for late in (-1, 12, 24, 36)]
    lines = [
        replace(host.xid(1, 119), at=moment, pid=pid) for moment, pid in zip(at, (101, None, None, 900), strict=True)
    ]
    host.ends()
    host.uptime += 2 * SETTLES
    host.restart_daemon()
    host.step(*lines)
    (record,) = host.records
    assert (record.answer.cause, record.answer.certainty) == (Cause.HARDWARE, Certainty.CERTAIN)
    assert [touch.at.boottime - died.boottime for touch in record.epoch.touches if touch.pid == 101] == [-1]


def test_a_kernel_log_that_is_never_read_to_its_end_is_waited_for_for_a_minute(host: WhyHost) -> None:
    host.ends()
    host.uptime += 2 * SETTLES
    host.restart_daemon()
    host.view = replace(host.view, log_read=False)
    host.run(SETTLES - 10)
    assert not host.records
    host.run(20)
    assert [record.answer.cause for record in host.records] == [Cause.NOT_SEEN]


def test_one_that_nobody_reports_any_more_ended_in_between(host: WhyHost) -> None:
    host.restart_daemon()
    host.ends()
    host.job_facts = JobsFacts()
    host.run(15)
    assert not host.records, "a reader that has only begun may not know all"
    host.run(30)
    record = host.settles()
    assert record.end.known_from == "restart"


def test_a_killed_daemon_writes_the_record_once_at_whatever_event_it_was_killed(host: WhyHost) -> None:
    host.step(host.xid(0, 119))
    host.ends()
    host.run(SETTLES + 5)
    all_of_it = list(host.ledger)
    last = max(n for n, event in enumerate(all_of_it) if event.kind == EventKind.JOB_ENDED)
    first = min(n for n, event in enumerate(all_of_it) if event.kind == EventKind.XID)
    for cut in range(first + 1, last + 2):
        host.ledger = all_of_it[:cut]
        host.restart_daemon()
        host.run(SETTLES + 30)
        assert [record.answer.code for record in host.records] == ["xid.119"]


def test_no_job_outlives_a_boot(host: WhyHost) -> None:
    host.reboot()
    host.job_facts = JobsFacts()
    host.run(5)
    (record,) = host.records
    assert (record.end.known_from, record.answer.cause) == ("boot", Cause.HOST)
    assert record.end.at.wall == pytest.approx(host.booted)
    assert not memory_of(host.state).epochs


def test_a_boot_after_a_lost_gpu_is_the_gpu_s_fault(host: WhyHost) -> None:
    host.step(host.xid(0, 119))
    host.run(10)
    host.reboot()
    host.run(5)
    assert [record.answer.code for record in host.records] == ["xid.119"]


@pytest.mark.parametrize(("after", "code"), [(60.0, "xid.119"), (3_600.0, "")])
def test_a_node_that_is_off_for_days_after_a_lost_gpu_does_not_hide_it(host: WhyHost, after: float, code: str) -> None:
    """Its use is stored every half hour, which shows that a job outlived an Xid by an hour."""
    host.run(100)
    host.step(host.xid(0, 119))
    host.run(int(after))
    host.booted += 2 * 86_400.0
    host.reboot()
    host.run(5)
    (record,) = host.records
    assert (record.end.known_from, record.answer.code) == ("boot", code)


def test_a_number_that_comes_again_is_another_job(host: WhyHost) -> None:
    host.step(host.xid(0, 31))
    host.ends()
    host.run(10)
    host.job_facts = JobsFacts(jobs=(Job(id=JOB, uid=1002, gpus=(0,), started=host.uptime),))
    host.run(5)
    first = host.records[-1]
    assert (first.epoch.uid, first.answer.code) == (UID, "xid.31")
    host.run(70)
    host.job(ended=host.uptime)
    second = host.settles()
    assert (second.epoch.uid, second.epoch.slots, second.epoch.touches) == (1002, (slot(0),), ())
    assert len(host.records) == 2


@pytest.mark.parametrize(("exit_code", "code"), [(None, "REQUEUED"), (3, "")])
def test_a_job_that_runs_again_was_requeued_unless_it_failed_by_itself(
    host: WhyHost, exit_code: int | None, code: str
) -> None:
    host.job(ended=host.uptime, exit_code=exit_code)
    host.processes()
    host.free()
    host.run(10)
    host.job_facts = JobsFacts(jobs=(Job(id=JOB, uid=UID, gpus=(0,), started=host.uptime),))
    host.run(5)
    (first,) = host.records
    assert (first.answer.code, first.end.exit_code) == (code, exit_code)
    assert first.answer.cause is (Cause.SCHEDULER if code else Cause.JOB)


@pytest.mark.parametrize(("step", "cause"), [(0, Cause.NONE), (1, Cause.HARDWARE)])
def test_a_script_that_ends_well_whose_step_lost_a_gpu_before_did_not_end_well(
    host: WhyHost, step: int, cause: Cause
) -> None:
    """Many end with an `echo`, whose exit code is that of the job: Slurm says COMPLETED, and DerivedExitCode=1:0."""
    host.step(host.xid(0, 95))
    host.job(ended=host.uptime, state="COMPLETED", exit_code=0, step_exit_code=step)
    host.processes()
    record = host.settles()
    assert (record.answer.cause, record.end.state, record.end.exit_code) == (cause, "COMPLETED", 0)


def begins_after(host: WhyHost, seconds: float) -> None:
    """Let no job be there for so long, and then one on the first GPU."""
    host.job_facts = JobsFacts()
    host.free()
    host.run(seconds)
    host.job_facts = JobsFacts(jobs=(Job(id=JOB, uid=UID, gpus=(0,), started=host.uptime),))
    host.run(5)


@pytest.mark.parametrize(
    ("lost", "length", "exit_code", "cause"),
    [
        (0, 20, 1, Cause.HARDWARE),
        (0, 20, 0, Cause.NONE),
        (0, 1_000, 1, Cause.JOB),
        (1, 20, 1, Cause.JOB),
    ],
    ids=["of its own", "but it ended well", "but it went on", "of others"],
)
def test_a_job_that_fails_at_once_is_told_of_a_gpu_that_was_gone_before(
    host: WhyHost, lost: int, length: int, exit_code: int, cause: Cause
) -> None:
    del host.gpus[lost]
    begins_after(host, 60)
    host.run(length)
    host.job(ended=host.uptime, exit_code=exit_code)
    answer = host.settles().answer
    assert answer.cause is cause
    if cause is Cause.HARDWARE:
        assert (answer.certainty, answer.code, answer.slot) == (Certainty.POSSIBLE, "gpu_missing", slot(0))
        assert "had failed before it began" in answer.sentence


def test_gpus_that_were_gone_before_a_job_leave_room_for_what_touched_it() -> None:
    host = WhyHost(8)
    host.run(10)
    for gone in range(7):
        del host.gpus[gone]
    host.job_facts = JobsFacts()
    host.free()
    host.run(60)
    host.job_facts = JobsFacts(jobs=(Job(id=JOB, uid=UID, gpus=tuple(range(8)), started=host.uptime),))
    host.run(65)
    for pid in range(TOUCHES_MOST - 1):
        host.step(replace(host.xid(7, 13), pid=5_000 + pid))
    host.step(host.xid(7, 79))
    host.job(ended=host.uptime, exit_code=1)
    touches = host.settles().epoch.touches
    assert len(touches) == TOUCHES_MOST
    assert [touch.what for touch in touches[:2]] == ["standing", "xid"]
    assert "79" in [touch.detail for touch in touches if touch.what == "xid"]


@pytest.mark.parametrize(("exit_code", "cause"), [(1, Cause.HOST), (None, Cause.NOT_SEEN)], ids=["failed", "not known"])
def test_libraries_that_were_replaced_before_a_job_are_the_cause_only_if_it_failed(
    host: WhyHost, exit_code: int | None, cause: Cause
) -> None:
    host.gpus = {}
    host.nvml_change = lambda facts: replace(facts, problem=NvmlProblem.LIBRARY_MISMATCH)
    begins_after(host, 60)
    host.job(ended=host.uptime, exit_code=exit_code)
    answer = host.settles().answer
    assert (answer.cause, answer.code) == (cause, "driver_library_mismatch" if exit_code else "")


def runs(host: WhyHost, job: Job, *pids: int) -> None:
    """Let only this job be there, with these processes on the first GPUs."""
    host.job_facts = JobsFacts(jobs=(job,), processes=tuple(JobProcess(pid=pid, uid=UID, job=JOB) for pid in pids))
    host.free()
    for gpu, pid in enumerate(pids):
        host.gpus[gpu] = replace(host.gpus[gpu], processes=(GpuProcess(pid=pid),))


@pytest.mark.parametrize("sees_end", [True, False])
def test_a_job_that_is_requeued_in_its_first_seconds_has_two_records(sees_end: bool) -> None:
    host = WhyHost(2)
    first, again = (Job(id=JOB, uid=UID, gpus=(0,), started=host.uptime + after) for after in (0, 3))
    runs(host, first, 100)
    host.step()
    host.uptime += 2
    if sees_end:
        runs(host, replace(first, ended=host.uptime), 200)  # of its next run already, whose note was not read yet
    host.step()
    runs(host, again, 200)  # it began after the pass did
    host.run(SETTLES)
    host.step(replace(host.xid(0, 31), pid=200))
    runs(host, replace(again, ended=host.uptime))
    host.settles()
    before, second = host.records
    assert (before.answer.code, before.epoch.began.boottime, before.epoch.touches) == ("REQUEUED", first.started, ())
    assert (before.end.at.boottime, before.end.known_from) == (
        (10_002.0, "epilog") if sees_end else (10_003.0, "scheduler")
    )
    assert (second.answer.code, second.epoch.began.boottime) == ("xid.31", again.started)


def test_a_prolog_that_runs_twice_ends_no_job(host: WhyHost) -> None:
    host.job(started=host.uptime)
    host.run(5)
    assert not host.records


def test_an_xid_of_an_unknown_process_in_its_first_moments_may_be_its_own_and_accuses_no_hardware() -> None:
    for number, cause, certainty in ((31, Cause.JOB, Certainty.POSSIBLE), (94, Cause.NOT_SEEN, Certainty.POSSIBLE)):
        host = WhyHost(2)
        host.job(started=host.uptime)
        host.run(5)
        host.step(replace(host.xid(0, number), pid=777))
        host.run(10)
        host.ends()
        answer = host.settles().answer
        assert (answer.cause, answer.certainty) == (cause, certainty), number


@pytest.mark.parametrize("away", ["stale", "absent for a moment", "one pass without it", "begins anew"])
def test_a_reader_that_is_away_for_a_moment_ends_nothing(host: WhyHost, away: str) -> None:
    jobs = host.job_facts
    if away == "stale":
        host.job_facts = None
        host.run(600)
    elif away == "absent for a moment":
        host.job_facts = None
        host.view = View(boot_id=host.boot_id)
        host.run(600)
    else:
        if away == "begins anew":
            host.job_facts = None
            host.run(600)
        host.job_facts = JobsFacts()
        host.run(10)
    host.job_facts = jobs
    host.run(SETTLES + 60)
    assert not host.records
    assert [epoch.name for epoch in host.shown().running] == [NAME]


def test_a_job_of_which_nobody_can_say_anything_for_a_day_has_ended(host: WhyHost) -> None:
    host.job_facts = None
    host.view = View(boot_id=host.boot_id)
    host.run(3_600, every=60)
    assert not host.records
    host.run(86_400, every=600)
    assert [record.end.known_from for record in host.records] == ["restart"]


def test_an_xid_of_another_job_on_the_same_gpu_is_that_job_s(host: WhyHost) -> None:
    assert host.job_facts is not None
    other = Job(id=8, uid=UID, gpus=(0,), started=host.uptime)
    host.job_facts = replace(
        host.job_facts,
        jobs=(*host.job_facts.jobs, other),
        processes=(*host.job_facts.processes, JobProcess(pid=200, uid=UID, job=8, known_from="cgroup")),
    )
    host.gpus[0] = replace(host.gpus[0], processes=(*host.gpus[0].processes, GpuProcess(pid=200)))
    host.run(70)
    host.step(replace(host.xid(0, 94), pid=200))
    host.run(5)
    ended = [replace(job, ended=host.uptime) for job in host.job_facts.jobs]
    host.job_facts = replace(host.job_facts, jobs=tuple(ended), processes=())
    host.run(SETTLES + 5)
    causes = {record.epoch.id: record.answer.cause for record in host.records}
    assert causes == {"8": Cause.HARDWARE, str(JOB): Cause.NOT_SEEN}


def test_a_node_without_jobs_follows_nothing() -> None:
    host = WhyHost(2)
    host.job_facts = JobsFacts()
    host.processes()
    for n in host.gpus:
        host.gpus[n] = replace(host.gpus[n], processes=())
    host.run(60)
    assert "why" not in host.state.moments.features
    assert host.shown() == Shown()


@pytest.mark.slow
def test_thousands_of_short_jobs_leave_few_records_and_none_of_a_fault_is_missing() -> None:
    host = WhyHost(2)
    host.processes()
    for number in range(1, 400):
        job = Job(id=number, uid=UID, gpus=(number % 2,), started=host.uptime)
        host.job_facts = JobsFacts(jobs=(job,))
        host.step(*([host.xid(number % 2, 119)] if number == 300 else []))
        host.uptime += 2
        host.job_facts = JobsFacts(jobs=(replace(job, ended=host.uptime - 1),))
        host.step()
    host.job_facts = JobsFacts()
    host.run(SETTLES + 30)
    hardware = [record.epoch.id for record in host.records if record.answer.cause is Cause.HARDWARE]
    assert hardware == ["300"]
    assert len(host.records) <= 60
    assert len(host.records) + following_of(host.state).left_out == 399
    said = sum(
        left
        for event in host.ledger
        if event.kind == EventKind.JOB_ENDED and isinstance(left := event.data.get("left_out", 0), int)
    )
    assert said + following_of(host.state).unreported == host.shown().left_out


def test_more_jobs_than_memory_takes_are_not_written_down_again_and_again() -> None:
    host = WhyHost(2)
    host.without_slurm()
    many = [
        replace(
            workload(host, f"container/{n:012x}"), processes=(WorkloadProcess(pid=300 + n, uid=UID, slots=(slot(0),)),)
        )
        for n in range(EPOCHS_MOST + 36)
    ]
    host.runs(*many)
    host.run(1_300)
    assert host.count(EventKind.JOB_BEGUN) == EPOCHS_MOST
    assert len(host.shown().running) == len(many)
    host.runs(*[replace(container, ended=host.uptime, processes=()) for container in many[:10]], *many[10:])
    host.run(SETTLES + 30)
    assert len(host.records) == 10
    assert host.count(EventKind.JOB_BEGUN) == EPOCHS_MOST + 10


def test_the_scheduler_s_word_is_waited_for_where_it_is_asked(host: WhyHost) -> None:
    host.job(batch=True, nodes=1)
    host.run(5)
    host.ends()
    host.run(SETTLES + 10)
    assert not host.records
    host.job(state="TIMEOUT")
    host.run(5)
    (record,) = host.records
    assert (record.end.state, record.end.nodes, record.answer.cause) == ("TIMEOUT", 1, Cause.SCHEDULER)


def test_it_is_not_waited_for_longer_than_two_minutes(host: WhyHost) -> None:
    host.job(batch=True, exit_code=3)
    host.ends()
    host.run(2 * SETTLES + 5)
    (record,) = host.records
    assert (record.end.exit_code, record.answer.cause) == (3, Cause.JOB)


# --- what is no job of Slurm's


@pytest.mark.parametrize("name", ["container/0123456789ab", "pod/default/train-0", "session/4711"])
def test_containers_pods_and_sessions_have_records(name: str) -> None:
    host = WhyHost(2)
    host.without_slurm()
    job = workload(host, name)
    host.runs(job)
    host.run(65)
    host.step(replace(host.xid(0, 31), pid=300))
    host.restart_daemon()
    host.run(5)
    host.runs(replace(job, ended=host.uptime, processes=()))
    record = host.settles()
    assert (record.epoch.name, record.epoch.uid, record.epoch.slots, record.end.known_from) == (
        name,
        UID,
        (slot(0),),
        "cgroup",
    )
    assert (record.answer.cause, record.answer.code) == (Cause.JOB, "xid.31")
    host.runs()
    host.run(100)
    assert len(host.records) == 1


def test_a_reader_that_began_anew_and_missed_the_first_process_splits_no_job() -> None:
    host = WhyHost(2)
    host.without_slurm()
    host.runs(workload(host))
    host.run(65)
    host.restart_daemon()
    host.runs(workload(host))
    host.run(65)
    assert not host.records
    host.runs(workload(host, pid=301))
    host.run(65)
    assert len(host.records) == 1, "with other processes and a later begin it is another one"


def test_kills_that_a_control_group_counts_are_named_where_the_kernel_s_line_is_not_seen() -> None:
    host = WhyHost(2)
    host.without_slurm()
    job = workload(host)
    host.runs(job)
    host.run(65)
    host.runs(replace(job, ended=host.uptime, processes=(), oom_kills=2))
    assert host.settles().answer.code == "oom_count"


def test_a_kill_in_a_container_of_a_pod_is_the_pod_s() -> None:
    host = WhyHost(2)
    host.without_slurm()
    pod = workload(host, "pod/default/train-0", also=("pod/0-1", "container/aaaaaaaaaaaa"))
    host.runs(pod)
    host.run(65)
    killed = OomKillEvent(
        at=host.now, of_limit=True, job="container/aaaaaaaaaaaa", limit_job="container/aaaaaaaaaaaa", pid=300, uid=UID,
        origin=LogOrigin(boot_id=host.boot_id, sequence=9),
    )  # fmt: skip
    host.step(killed)
    host.runs(replace(pod, ended=host.uptime, processes=(), oom_kills=1))
    record = host.settles()
    assert (record.answer.cause, record.answer.code) == (Cause.JOB, "oom_limit")
    assert "killed its process 300" in record.answer.sentence


def test_a_kill_in_a_job_that_the_tree_calls_by_its_sluid_is_the_job_s() -> None:
    """Slurm 26.05 names the control group so, and the kernel's line has no more than that."""
    host = WhyHost(2)
    host.job(sluid="s5KDM8K23S7J00")
    host.run(65)
    for number, name in ((15, "slurm/s5KDM8K23S7J00"), (16, "slurm/s5KDM8K23VB300")):
        origin = LogOrigin(boot_id=host.boot_id, sequence=number)
        host.step(
            OomKillEvent(at=host.now, of_limit=True, job=name, limit_job=name, pid=number, uid=UID, origin=origin)
        )
    host.ends()
    record = host.settles()
    assert (record.answer.cause, record.answer.code) == (Cause.JOB, "oom_limit")
    assert "killed its process 15" in record.answer.sentence, "the other job is not this one"


def test_a_job_of_slurm_is_one_though_both_collectors_have_it(host: WhyHost) -> None:
    host.runs(workload(host, NAME))
    host.run(65)
    host.ends()
    host.workloads = WorkloadsFacts(workloads=(workload(host, NAME, ended=host.uptime),))
    host.run(SETTLES + 60)
    assert [record.epoch.name for record in host.records] == [NAME]


@pytest.mark.parametrize("together", [False, True])
def test_a_process_of_a_job_that_has_its_record_is_another_s_all_the_same(together: bool) -> None:
    host = WhyHost(2)
    began = host.uptime
    first = Job(id=8, uid=UID, gpus=(0,), started=began)
    second = Job(id=9, uid=UID, gpus=(0,), started=began)
    own = JobProcess(pid=100, uid=UID, job=8)
    host.job_facts = JobsFacts(jobs=(first, second), processes=(own,))
    host.run(10)
    host.step(replace(host.xid(0, 31), pid=100))
    over = replace(first, ended=host.uptime, exit_code=1)
    if not together:
        host.job_facts = JobsFacts(jobs=(over, second))
        host.run(SETTLES + 5)
    host.job_facts = JobsFacts(jobs=(over, replace(second, ended=host.uptime, exit_code=1)))
    host.run(SETTLES + 5)
    assert [(record.epoch.id, record.answer.code) for record in host.records] == [("8", "xid.31"), ("9", "")]


@pytest.mark.parametrize(("mask", "touched"), [(0x1A9, []), (0x19A, [f"fabric_unhealthy@gpu/{slot(0)}"])])
def test_a_fabric_of_limited_capacity_keeps_no_job_from_starting(mask: int, touched: list[str]) -> None:
    host = WhyHost(2)
    host.without_slurm()
    host.change(0, fabric_health_mask=mask)
    host.run(120)
    host.job_facts = JobsFacts(jobs=(Job(id=7, uid=UID, gpus=(0,), started=host.uptime),))
    host.run(10)
    host.job_facts = JobsFacts(jobs=(replace(host.job_facts.jobs[0], ended=host.uptime, exit_code=1, state="FAILED"),))
    record = host.settles()
    assert [touch.detail for touch in record.epoch.touches if touch.what == "standing"] == touched


@pytest.mark.parametrize(
    ("mask", "lasts", "touched"),
    [
        (0x1A9, 30, []),
        (0x1A9, 3_600, [f"fabric_unhealthy.limited_capacity@gpu/{slot(0)}"]),
        (0x81AA, 200, []),
        (0x81AA, 3_600, [f"fabric_unhealthy.no_manager@gpu/{slot(0)}"]),
    ],
)
def test_a_fabric_of_limited_capacity_or_without_its_manager_is_no_cause_of_a_job_s_end(
    host: WhyHost, mask: int, lasts: int, touched: list[str]
) -> None:
    """A switch or trunk link that is out does this to all GPUs of a rack, for days, and their jobs continue."""
    host.change(0, fabric_health_mask=mask)
    host.run(lasts)
    host.job(ended=host.uptime, state="FAILED", exit_code=1)
    host.free()
    host.change(0, fabric_health_mask=0x1AA)
    record = host.settles()
    assert [touch.detail for touch in record.epoch.touches] == touched
    assert (record.answer.cause, record.answer.code) == (Cause.JOB, "FAILED")


@pytest.mark.parametrize("pids", [(100, 101), (None, 100, None, 101)])
@pytest.mark.parametrize("nvml", ["absent", "first", "with them"])
def test_two_jobs_on_one_gpu_have_each_the_xid_of_their_own_process(nvml: str, pids: tuple[int | None, ...]) -> None:
    """An error of one client of MPS ends all of them, and the driver names each. NVML's events name none, nor do the
    driver's lines about the place of an Xid 13.
    """
    host = WhyHost(2)
    both = [Job(id=number, uid=UID, gpus=(0,), started=host.uptime) for number in (8, 9)]
    theirs = [JobProcess(pid=pid, uid=UID, job=number) for number, pid in ((8, 100), (9, 101))]
    host.job_facts = JobsFacts(jobs=tuple(both), processes=tuple(theirs))
    host.gpus[0] = replace(host.gpus[0], processes=tuple(GpuProcess(pid=process.pid) for process in theirs))
    host.run(10)
    reports = [host.xid(0, 31, source=Source.NVML)] * 2
    if nvml == "first":
        host.step(*reports)
    lines = [replace(host.xid(0, 31), pid=pid, text=f"Ch 0000000{n}") for n, pid in enumerate(pids)]
    host.step(*(reports if nvml == "with them" else ()), *lines)
    host.free()
    host.job_facts = JobsFacts(jobs=tuple(replace(job, ended=host.uptime, exit_code=1) for job in both))
    host.run(SETTLES + 5)
    assert [(record.epoch.id, record.answer.code) for record in host.records] == [("8", "xid.31"), ("9", "xid.31")]
    assert {record.answer.certainty for record in host.records} == {Certainty.CERTAIN}


@pytest.mark.parametrize("pid", [100, None])
def test_an_xid_in_the_last_second_of_a_job_is_its_own_though_another_begins_there_in_it(pid: int | None) -> None:
    """Tasks of an array follow each other so: prolog and epilog round both times down to the same second."""
    host = WhyHost(2)
    first = Job(id=8, uid=UID, gpus=(0,), started=host.uptime)
    host.job_facts = JobsFacts(jobs=(first,), processes=(JobProcess(pid=100, uid=UID, job=8),))
    host.gpus[0] = replace(host.gpus[0], processes=(GpuProcess(pid=100),))
    host.run(60)
    noted = host.uptime
    host.uptime += 0.3
    host.step(replace(host.xid(0, 94), pid=pid))
    host.uptime += 0.5
    next_job = Job(id=9, uid=UID, gpus=(0,), started=noted)
    host.job_facts = JobsFacts(
        jobs=(replace(first, ended=noted, exit_code=1), next_job), processes=(JobProcess(pid=101, uid=UID, job=9),)
    )
    host.gpus[0] = replace(host.gpus[0], processes=(GpuProcess(pid=101),))
    host.run(SETTLES + 5)
    (record,) = host.records
    assert (record.epoch.id, record.answer.cause, record.answer.code) == ("8", Cause.HARDWARE, "xid.94")


def test_what_the_driver_reports_late_is_the_last_job_s_though_the_one_before_has_no_record_yet() -> None:
    """The controller has not reported yet how that one ended."""
    host = WhyHost(2)
    ended: list[Job] = []
    for number in (8, 9):
        job = Job(id=number, uid=UID, gpus=(0,), started=host.uptime, batch=number == 8)
        host.job_facts = JobsFacts(jobs=(*ended, job), processes=(JobProcess(pid=number, uid=UID, job=number),))
        host.gpus[0] = replace(host.gpus[0], processes=(GpuProcess(pid=number),))
        host.run(20)
        host.free()
        ended.append(replace(job, ended=host.uptime, exit_code=1))
        host.job_facts = JobsFacts(jobs=tuple(ended))
        host.step()
    host.uptime += 3.0
    host.step(host.xid(0, 94))
    host.run(SETTLES + 5)
    (record,) = host.records
    assert (record.epoch.id, record.answer.code) == ("9", "xid.94")


def test_an_xid_of_the_job_before_is_not_told_to_the_next_one_on_its_gpu() -> None:
    host = WhyHost(2)
    first = Job(id=8, uid=UID, gpus=(0,), started=host.uptime)
    host.job_facts = JobsFacts(jobs=(first,), processes=(JobProcess(pid=100, uid=UID, job=8),))
    host.gpus[0] = replace(host.gpus[0], processes=(GpuProcess(pid=100),))
    host.run(60)
    first = replace(first, ended=host.uptime, exit_code=1)
    host.uptime += 1.0
    second = Job(id=9, uid=UID, gpus=(0,), started=host.uptime)
    host.job_facts = JobsFacts(jobs=(first, second), processes=(JobProcess(pid=101, uid=UID, job=9),))
    host.gpus[0] = replace(host.gpus[0], processes=(GpuProcess(pid=101),))
    host.uptime += 0.5
    host.step(replace(host.xid(0, 31), pid=100))
    host.run(SETTLES + 5)
    host.free()
    host.job_facts = JobsFacts(jobs=(first, replace(second, ended=host.uptime, exit_code=1)))
    host.run(SETTLES + 5)
    assert [(record.epoch.id, record.answer.code) for record in host.records] == [("8", "xid.31"), ("9", "")]


@pytest.mark.parametrize("steps", [((None,), (100,), (999,)), ((None, 100, None, 999),)])
def test_a_process_that_the_memory_of_the_node_ended_is_not_blamed_for_its_sigbus(
    host: WhyHost, steps: tuple[tuple[int | None, ...], ...]
) -> None:
    """The kernel's first line about an error names no process."""
    for seq, pids in enumerate(steps):
        origin = LogOrigin(boot_id=host.boot_id, sequence=seq)
        line = KernelLineEvent(at=host.now, what=LineKind.MEMORY_FAILED, text="Memory failure", origin=origin)
        host.step(*[replace(line, pid=pid) for pid in pids])
    host.job(ended=host.uptime, state="FAILED", signal=7)
    host.free()
    record = host.settles()
    assert (record.answer.cause, record.answer.certainty) == (Cause.HOST, Certainty.CERTAIN)
    assert "its process 100" in record.answer.sentence
    assert [(touch.what, touch.pid) for touch in record.epoch.touches] == [("memory_error", 100), ("memory_error", 999)]
    assert not host.codes, "the memory controllers count it where there is a driver of them"


@pytest.mark.parametrize(("xid", "codes"), [(94, {"8": "xid.94", "9": ""}), (95, {"8": "xid.95", "9": "xid.95"})])
@pytest.mark.parametrize("before", ["ended", "has a record", "is asked about"])
def test_an_xid_in_the_second_in_which_a_job_follows_another_accuses_no_gpu_of_the_later_one_unless_it_failed(
    before: str, xid: int, codes: dict[str, str]
) -> None:
    """The line names no process, and the later job had no time to open the GPU."""
    host = WhyHost(2)
    first = Job(id=8, uid=UID, gpus=(0,), started=host.uptime, batch=before == "is asked about")
    host.job_facts = JobsFacts(jobs=(first,))
    host.run(60)
    first = replace(first, ended=host.uptime, exit_code=1)
    second = Job(id=9, uid=UID, gpus=(0,), started=host.uptime)
    host.uptime += 0.3
    host.step(host.xid(0, xid))
    host.job_facts = JobsFacts(jobs=(first, second), processes=(JobProcess(pid=101, uid=UID, job=9),))
    host.gpus[0] = replace(host.gpus[0], processes=(GpuProcess(pid=101),))
    host.run(SETTLES + 5 if before == "has a record" else 5)
    host.free()
    host.job_facts = JobsFacts(jobs=(first, replace(second, ended=host.uptime, exit_code=1)))
    host.run(ANSWERED_WITHIN)
    assert {record.epoch.id: record.answer.code for record in host.records} == codes
    assert [record.epoch.id for record in host.records][:1] == ["9" if before == "is asked about" else "8"]
