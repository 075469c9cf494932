"""How a job ended: who asks the controller, how often, and what its answer says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_collectors.base import CollectorError
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.slurm.hostlist import first_host
from gpuwarden_collectors.slurm.jobs import JobsReader
from gpuwarden_collectors.slurm.jobs_accounting import cancelled_by
from gpuwarden_collectors.slurm.jobs_end import AGAIN_AFTER, AT_ONCE, MOST, OUT_OF_MEMORY, UNTIL, End, end_of, exit_of
from gpuwarden_collectors.slurm.jobs_facts import Job
from gpuwarden_collectors.slurm.jobs_register import parse

DATA = Path(__file__).parents[1] / "data" / "slurm"
NOBODY = 65534
SCRIPT = {"exit3": (3, None), "kill9": (None, 9), "term": (None, 15), "array": (2, None), "gpujob": (5, None)}


def recorded(version: str) -> dict[str, tuple[int, str]]:
    """Return by name the number of a job, and what `scontrol show job -d` printed of it after its end."""
    parts = (DATA / f"ended-{version}.txt").read_text().split("--- ")[1:]
    return {
        name: (int(text.partition("JobId=")[2].split()[0]), text)
        for name, _, text in (part.partition("\n") for part in parts)
    }


@pytest.mark.parametrize("version", ["22.05.8", "24.11.5"])
def test_what_slurm_says_of_the_end_of_a_job_is_read(version: str) -> None:
    ends = {name: end_of(text, number, NOBODY) for name, (number, text) in recorded(version).items()}
    states = {name: end.state if end else None for name, end in ends.items()}
    assert states == {
        "ok": "COMPLETED",
        **dict.fromkeys(SCRIPT, "FAILED"),
        "stepfails": "COMPLETED",
        "stepsegv": "COMPLETED",
        **dict.fromkeys(("owner", "root", "two", "requeue"), "CANCELLED"),
        "timelimit": "TIMEOUT",
        "low": "PREEMPTED",
        "nodefail": "NODE_FAIL",
        "running": "REQUEUED",
        "oom": "OUT_OF_MEMORY",
        "oomstep": "COMPLETED",
        "forged": None,
    }
    for name, code in SCRIPT.items():
        assert (end := ends[name]) is not None
        assert (end.exit_code, end.signal) == code
    assert ends["ok"] == End(state="COMPLETED", exit_code=0, step_exit_code=0, nodes=1)
    assert (end := ends["stepfails"]) is not None
    assert (end.exit_code, end.step_exit_code, end.step_signal) == (0, 7, None)
    assert (end := ends["stepsegv"]) is not None
    assert (end.exit_code, end.step_exit_code, end.step_signal) == (0, 0, 11)
    assert (end := ends["oom"]) is not None
    assert (end.exit_code, end.signal) == (None, None)
    assert (end := ends["oomstep"]) is not None
    assert (end.exit_code, end.step_signal) == (0, OUT_OF_MEMORY)
    for name in ("owner", "timelimit", "low", "nodefail"):
        assert (end := ends[name]) is not None
        assert end.exit_code is None, "the controller ended it"
    assert (end := ends["nodefail"]) is not None
    assert (end.failed_node, end.nodes) == ("n2" if version > "24" else "", 2)


def test_of_steps_that_a_node_of_the_job_manages_the_controller_does_not_know_the_exit_codes() -> None:
    """Slurm writes 0:0 for steps that failed, too, as seen on 24.11 and 25.11."""
    number, text = recorded("24.11.5")["ok"]
    managed = text.replace("   NumNodes=", "   StepMgrEnabled=Yes\n   NumNodes=")
    assert (end := end_of(managed, number, NOBODY)) is not None
    assert (end.state, end.exit_code, end.step_exit_code, end.step_signal) == ("COMPLETED", 0, None, None)


@pytest.mark.parametrize("state", ["FAILED", "COMPLETED"])
@pytest.mark.parametrize(
    ("preempted", "counts"), [("1796015845", True), ("1796015840", True), ("1796015839", False), ("None", False)]
)
def test_a_job_that_ended_in_its_grace_was_preempted(state: str, preempted: str, counts: bool) -> None:
    """Slurm 22.05 reports how its steps ended. A preemption before its start was of an earlier run."""
    number, text = recorded("22.05.8")["exit3"]
    text = re.sub(r"StartTime=\S+ EndTime=\S+", "StartTime=1796015840 EndTime=1796015845", text)
    text = re.sub(r"JobState=\w+", f"JobState={state}", text)
    line = f"   PreemptEligibleTime=1796015840 PreemptTime={preempted}\n"
    assert (end := end_of(text.replace("   NumNodes=", f"{line}   NumNodes="), number, NOBODY)) is not None
    assert (end.state, end.exit_code) == (("PREEMPTED", None) if counts else (state, 3))


def test_the_other_parts_of_a_heterogeneous_job_count_as_its_nodes() -> None:
    """Slurm ends all parts if a node of one is lost. About the first part the answer has all of them, as seen on 22.05 and 25.11."""
    number, text = recorded("22.05.8")["ok"]
    part = text.replace(f"JobId={number} ", f"JobId={number} HetJobId={number} HetJobOffset=0 ")
    part = part.replace("   UserId=", f"   HetJobIdSet={number}-{number + 2}\n   UserId=", 1)
    assert (end := end_of(part, number, NOBODY)) is not None
    assert end.nodes == 3
    others = [
        part.replace(f"JobId={number}", f"JobId={number + n}").replace("ExitCode=0:0", "ExitCode=1:0") for n in (1, 2)
    ]
    assert end_of("\n".join((part, *others)), number, NOBODY) == end
    forged = text.replace("JobName=ok", f"JobName=x\n   HetJobIdSet={number}-{number + 2}\n")
    assert end_of(forged, number, NOBODY) == end_of(text, number, NOBODY)


@pytest.mark.parametrize(
    ("state", "priority", "said"),
    [
        ("PENDING", 4294901759, "REQUEUED"),
        ("PENDING", 0, "REQUEUE_HOLD"),
        ("SPECIAL_EXIT", 0, "REQUEUE_HOLD"),
        ("RUNNING", 0, "REQUEUED"),
    ],
)
def test_a_job_that_was_put_back_is_held_or_runs_again(state: str, priority: int, said: str) -> None:
    number, text = recorded("22.05.8")["running"]
    text = text.replace("JobState=RUNNING", f"JobState={state}").replace("Priority=4294901759", f"Priority={priority}")
    assert (end := end_of(text, number, NOBODY)) is not None
    assert end.state == said


def test_an_answer_about_another_users_job_or_another_number_is_none() -> None:
    number, text = recorded("24.11.5")["exit3"]
    assert end_of(text, number, 1001) is None
    assert end_of(text, number + 1, NOBODY) is None
    assert end_of(text, number, None) is not None


@pytest.mark.parametrize(
    "name",
    [
        "x\n   JobState=NODE_FAIL Reason=NodeDown FailedNode=n9 Dependency=(null)",
        "x\n\nJobId={number} JobName=y\n   JobState=COMPLETED Reason=None",
        "x\n   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0",
        "x\n   UserId=nobody(65534)",
        "x\n   DerivedExitCode=0:0",
    ],
)
def test_a_name_of_a_job_cannot_change_what_is_said_of_it(name: str) -> None:
    number, text = recorded("22.05.8")["exit3"]
    assert end_of(text.replace("JobName=exit3", f"JobName={name.format(number=number)}"), number, NOBODY) is None


@given(st.text(max_size=300))
def test_no_text_is_more_than_an_end(text: str) -> None:
    for answer in (text, f"JobId=7 {text}", f"JobId=7\n   JobState={text}", f"JobId=7\n   JobState=FAILED {text}"):
        end = end_of(answer, 7, None)
        assert end is None or len(end.failed_node) <= 64
    code, signal = exit_of(text)
    assert code is None or code >= 0
    assert signal is None or 0 < signal <= OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("text", "parts"),
    [("3:0", (3, None)), ("0:9", (0, 9)), ("0:125", (0, OUT_OF_MEMORY)), ("0:126", (0, None)), ("", (None, None)), ("3", (None, None)), ("-1:0", (None, None)), ("٣:0", (None, None))],
)  # fmt: skip
def test_exit_codes(text: str, parts: tuple[int | None, int | None]) -> None:
    assert exit_of(text) == parts


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("n[1-2]", "n1"), ("n1,n2", "n1"), ("n[007,9]", "n007"), ("rack[1,3]-n[01-16],m5", "rack1-n01"), ("n[1,2,3", "n1"),
        ("rack[1-2]-n[01", "rack1-n01"), ("n7", "n7"), ("", ""), ("[", ""), ("n[", "n"),
    ],
)  # fmt: skip
def test_the_first_node_of_a_list(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def test_the_notes_say_how_the_script_ended_and_where_it_ran() -> None:
    started = "uid=1001 gpus=0 started=50 user=alice nodes=2 node=n1 list=n[1-2]\n"
    job = Job(id=7, uid=1001, user="alice", gpus=(0,), started=50, nodes=2, batch=True)
    assert parse(7, started) == job
    assert parse(7, started.replace("node=n1", "node=n2")).batch is False
    ended = parse(7, f"{started}ended=60 exit=3:0\n")
    assert (ended.ended, ended.exit_code, ended.signal) == (60, 3, None)
    assert parse(7, f"{started}ended=60 exit=0:9\n").signal == 9
    memory = parse(7, f"{started}ended=60 exit=0:125\n")
    assert (memory.state, memory.signal, memory.exit_code) == ("OUT_OF_MEMORY", None, None)
    assert parse(7, f"{started}ended=60 exit=0:0\n").exit_code is None, "so it is of a job that was cancelled, too"
    assert parse(7, f"{started}exit=3:0\n").exit_code is None


class Node:
    """A node of Slurm, with the notes of prolog and epilog, and a controller that answers as it is told."""

    def __init__(self, folder: Path, name: str = "n1") -> None:
        self.name = name
        self.register = folder / f"jobs-{name}"
        self.register.mkdir()
        conf = folder / "slurm.conf"
        conf.touch()
        self.now = 10_000.0
        self.asked: list[int] = []
        self.answers: Mapping[int, str] = {}
        self.accounting: Mapping[int, str] | None = None
        self.accounting_asked = 0
        self.reader = JobsReader(
            folder, self.register, conf, node=name, pids=tuple, ask=self._ask, clock=lambda: Stamp(self.now, self.now)
        )

    def _ask(self, words: tuple[str, ...]) -> str:
        if words[0] == "sacct":
            assert words[1:5] == ("-XnP", "-o", "JobIDRaw,UID,State", "-j")
            self.accounting_asked += 1
            if self.accounting is None:
                raise CollectorError("Slurm accounting storage is disabled")
            return self.accounting.get(int(words[5]), "")
        assert words[:4] == ("scontrol", "show", "job", "-d")
        self.asked.append(int(words[4]))
        if (number := int(words[4])) not in self.answers:
            raise CollectorError("Invalid job id specified")
        return self.answers[number]

    def ran(self, job: int, *, ago: float = 0.0, length: float = 60.0, nodes: str = "n1", code: str = "0:0") -> None:
        end = int(self.now - ago)
        start = f"uid=1001 gpus=0 started={int(end - length)} user=a nodes=2 node={self.name} list={nodes}\n"
        (self.register / str(job)).write_text(f"{start}ended={end} exit={code}\n")

    def pass_by(self, seconds: float, every: float = 15.0) -> dict[int, Job]:
        end = self.now + seconds
        while self.now < end:
            self.now += every
            jobs = self.reader.read().jobs
        return {job.id: job for job in jobs}


def answer(number: int, state: str, code: str = "0:0", started: float = 0.0) -> str:
    return (
        f"JobId={number} JobName=x\n   UserId=a(1001) GroupId=a(1001)\n   JobState={state} Reason=None Dependency=(null)\n"
        f"   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode={code}\n   DerivedExitCode=0:0\n   StartTime={started:.0f} EndTime=Unknown Deadline=N/A\n   NumNodes=2 NumCPUs=2\n\n"
    )


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_the_end_of_a_job_is_asked_once_some_seconds_after_it(node: Node) -> None:
    node.answers = {60: answer(60, "CANCELLED", "0:15")}
    node.ran(60)
    node.now += 4
    assert node.reader.read().jobs[0].state == ""
    assert node.asked == []
    jobs = node.pass_by(270)
    assert node.asked == [60]
    assert (jobs[60].state, jobs[60].exit_code, jobs[60].signal, jobs[60].nodes) == ("CANCELLED", None, 15, 2)


@pytest.mark.parametrize(("failed", "here"), [("n1", True), ("n2", False)])
def test_the_node_that_slurm_lost_is_this_one_or_another(node: Node, failed: str, here: bool) -> None:
    text = answer(60, "NODE_FAIL", "0:1").replace("Reason=None", f"Reason=NodeDown FailedNode={failed}")
    node.answers = {60: text}
    node.ran(60, nodes="n[1-2]")
    job = node.pass_by(90)[60]
    assert (job.state, job.failed_node, job.failed_here) == ("NODE_FAIL", failed, here)


def test_who_cancelled_a_job_is_asked_of_accounting(node: Node) -> None:
    node.answers = {60: answer(60, "CANCELLED", "0:15"), 61: answer(61, "FAILED", "1:0")}
    node.accounting = {60: "60|1001|CANCELLED by 0\n"}
    node.ran(60)
    node.ran(61)
    jobs = node.pass_by(90)
    assert (jobs[60].cancelled_by, jobs[61].cancelled_by, node.accounting_asked) == (0, None, 1)


def test_where_there_is_no_accounting_it_is_asked_once_an_hour(node: Node) -> None:
    for job in range(60, 64):
        node.answers = {**node.answers, job: answer(job, "CANCELLED", "0:15")}
        node.ran(job)
    jobs = node.pass_by(90)
    assert {job.state for job in jobs.values()} == {"CANCELLED"}
    assert {job.cancelled_by for job in jobs.values()} == {None}
    assert node.accounting_asked == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "60|1001|CANCELLED",
        "60|1002|CANCELLED by 0",
        "60|1001|FAILED",
        "60|1001|CANCELLED by root",
        "61|1001|CANCELLED by 0",
        "60|1001|CANCELLED by 0\n60|1001|CANCELLED by 1\n",
    ],
)
def test_an_answer_of_accounting_that_names_nobody_or_another_job_is_none(text: str) -> None:
    assert cancelled_by(text, 60, 1001) is None
    assert cancelled_by("60|1001|CANCELLED by 1001\n", 60, 1001) == 1001


@pytest.mark.parametrize("job", [1, 2])
def test_who_cancelled_is_known_of_each_task_of_an_array(job: int) -> None:
    """Accounting answers with all tasks for the number of the last one, which is that of the array (22.05.8)."""
    text = "2|65534|CANCELLED by 0\n3|65534|COMPLETED\n1|65534|CANCELLED by 0\n"
    assert cancelled_by(text, job, 65534) == 0


def test_only_the_first_node_of_a_job_asks(tmp_path: Path) -> None:
    nodes = [Node(tmp_path, f"n{n}") for n in range(1, 5)]
    for node in nodes:
        node.ran(60, nodes="n[1-4]")
        node.pass_by(290)
    assert [len(node.asked) for node in nodes] == [2, 0, 0, 0]  # it had no answer


def test_a_job_without_gpus_here_or_without_an_end_is_not_asked_for(node: Node) -> None:
    (node.register / "7").write_text("uid=1 gpus= started=9000 user=a nodes=1 node=n1 list=n1\nended=9990\n")
    (node.register / "8").write_text("uid=1 gpus=0 started=9000 user=a nodes=1 node=n1 list=n1\n")
    (node.register / "9").write_text(
        "uid=1 gpus=0 started=9000 user=a\nended=9990\n"
    )  # of a prolog that notes no nodes
    node.pass_by(290)
    assert node.asked == []


def test_what_still_completes_is_asked_once_more(node: Node) -> None:
    node.answers = {60: answer(60, "COMPLETING")}
    node.ran(60)
    assert node.pass_by(AGAIN_AFTER)[60].state == ""
    node.answers = {60: answer(60, "FAILED", "2:0")}
    assert node.pass_by(AGAIN_AFTER + 15)[60].exit_code == 2
    node.pass_by(200)
    assert node.asked == [60, 60]


@pytest.mark.parametrize("state", ["PENDING", "EXPEDITING", "RESV_DEL_HOLD"])
def test_a_requeued_job_is_said_to_be_one_and_keeps_the_exit_of_its_script(node: Node, state: str) -> None:
    node.answers = {60: answer(60, state)}
    node.ran(60, code="85:0")
    job = node.pass_by(60)[60]
    assert (job.state, job.exit_code) == ("REQUEUED", 85)


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "CANCELLED", "COMPLETING"])
def test_of_a_requeued_job_the_end_of_its_next_run_is_not_that_of_its_first(node: Node, state: str) -> None:
    """The second run may be over by the time at which the controller answers."""
    node.ran(60, code="85:0")
    node.answers = {60: answer(60, state, started=node.now + 2)}
    job = node.pass_by(60)[60]
    assert (job.state, job.exit_code) == ("REQUEUED", 85)


def test_a_job_that_started_in_the_second_of_its_end_is_that_job(node: Node) -> None:
    node.ran(60, length=0.0)
    node.answers = {60: answer(60, "TIMEOUT", started=node.now + 0.9)}
    assert node.pass_by(60)[60].state == "TIMEOUT"


@pytest.mark.slow
def test_many_short_jobs_cost_no_more_than_the_bound_and_the_longest_are_asked_for(node: Node) -> None:
    """2,000 jobs in an hour, one of which ran for long."""
    for n in range(240):
        for k in range(8):
            node.ran(n * 10 + k, length=1.0)
        if n == 1:
            node.answers = {5_000: answer(5_000, "TIMEOUT")}
            node.ran(5_000, length=9_000.0)
        before = len(node.asked)
        node.now += 15
        node.reader.read()
        assert len(node.asked) - before <= AT_ONCE
    assert len(node.asked) <= MOST
    assert 5_000 in node.asked


def test_a_controller_that_is_away_is_asked_once_in_a_pass(node: Node) -> None:
    for job in range(60, 70):
        node.ran(job)
    node.now += 45
    node.reader.read()
    assert len(node.asked) == 1


def test_after_a_long_while_it_is_not_asked_any_more(node: Node) -> None:
    node.ran(60, ago=UNTIL + 1)
    node.pass_by(45)
    assert node.asked == []


def test_a_number_that_comes_again_is_another_job(node: Node) -> None:
    node.answers = {60: answer(60, "FAILED", "2:0")}
    node.ran(60)
    assert node.pass_by(60)[60].state == "FAILED"
    node.register.joinpath("60").write_text(f"uid=1001 gpus=0 started={int(node.now)} user=a nodes=1 node=n1 list=n1\n")
    again = node.pass_by(15)[60]
    assert (again.state, again.exit_code, again.ended) == ("", None, None)
    node.answers = {60: answer(60, "COMPLETED")}
    node.ran(60, length=10.0)
    assert node.pass_by(60)[60].state == "COMPLETED"
