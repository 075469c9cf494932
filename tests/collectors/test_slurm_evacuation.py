"""What Slurm's commands print of jobs that are to be signalled and requeued, recorded and made up, becomes facts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden_collectors.slurm.departing_facts import ListedPid, SlurmJob
from gpuwarden_collectors.slurm.departing_text import job_format, jobs, listed_pids, steps, whole_trees
from gpuwarden_collectors.slurm.errors import OddAnswer

RECORDED = json.loads(
    (Path(__file__).parents[1] / "data/slurm/evacuation-debian-12-22.05.8.json").read_text(encoding="utf-8")
)
TOKEN = RECORDED["token"]
TRAINING = SlurmJob(
    id=35, uid=0, state="running", nodes="n[1-2]", node_count=2, partition="gpu", batch=True, requeue=True,
    started=1795316949.0, comment="gpuwarden:signal=USR1  |   ü", admin_comment="gpuwarden:ckpt@n2@1795316693", called="35",
    name="a|b c", pinned="n[1-2]",
)  # fmt: skip
PLAIN = (
    "7",
    "7",
    "1001",
    "RUNNING",
    "n1",
    "1",
    "gpu",
    "1",
    "1",
    "0",
    "1795316949",
    "",
    "(null)",
    "wrap",
    "(null)",
)


def record(*fields: str, token: str = TOKEN) -> str:
    """Return a record as squeue prints it."""
    suffixes = [field.partition(":0")[2] for field in job_format(token).split(",")]
    return "".join(value + suffix for value, suffix in zip(fields, suffixes, strict=True)) + "\n"


def changed(**fields: str) -> tuple[str, ...]:
    names = [field.partition(":0")[0] for field in job_format(TOKEN).split(",")]
    return tuple(fields.get(name, value) for name, value in zip(names, PLAIN, strict=True))


def test_the_jobs_of_a_node_as_recorded() -> None:
    by_number = jobs(RECORDED["squeue"], TOKEN)
    assert by_number[35] == TRAINING
    alone = replace(TRAINING, nodes="n1", node_count=1, comment="", admin_comment="", name="wrap")
    assert by_number[36] == replace(alone, id=36, called="36+0", pinned="")
    tasks = {number: by_number[number] for number in (38, 39)}
    assert {number: job.called for number, job in tasks.items()} == {38: "38_1", 39: "38_0"}
    assert tasks[38] == replace(alone, id=38, called="38_1", requeue=False, started=1795316951.0, pinned="n1")


def test_no_jobs_are_no_jobs() -> None:
    assert jobs("", TOKEN) == {}
    assert jobs("\n", TOKEN) == {}


@pytest.mark.parametrize(
    ("field", "text", "fact", "value"),
    [
        ("StartTime", "N/A", "started", 0.0),
        ("StartTime", "Unknown", "started", 0.0),
        ("BatchFlag", "0", "batch", False),
        ("BatchFlag", "2", "batch", True),
        ("State", "COMPLETING", "state", "completing"),
        ("NodeList", "", "nodes", ""),
        ("ReqNodes", "rack[1-3]-n[07-12]", "pinned", "rack[1-3]-n[07-12]"),
        ("Comment", "\x1b[2J" + "c" * 9000, "comment", " [2J" + "c" * 4092),
        ("Name", b"\xff\xfe".decode("utf-8", "surrogateescape"), "name", "  "),
    ],
)
def test_odd_values_mean_what_they_do(field: str, text: str, fact: str, value: object) -> None:
    assert getattr(jobs(record(*changed(**{field: text})), TOKEN)[7], fact) == value


@pytest.mark.parametrize(
    "text",
    [
        "slurm_load_jobs error",
        record(*PLAIN)[:-9],
        record(*PLAIN, token="0" * 16),
        record(*changed(JobID="7_[1-3]")),
        record(*changed(UserID="-1")),
        record(*changed(RestartCnt="9" * 20)),
    ],
)
def test_what_is_no_list_of_jobs_is_an_error(text: str) -> None:
    with pytest.raises(OddAnswer):
        jobs(text, TOKEN)


@settings(max_examples=200, deadline=None)
@given(
    name=st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
    comment=st.one_of(st.text(max_size=60), st.just(record(*changed(JobID="8"), token="0" * 16))),
)
def test_what_a_user_writes_makes_no_other_job_and_no_other_field(name: str, comment: str) -> None:
    by_number = jobs(record(*changed(Name=name, Comment=comment)) + record(*changed(JobID="9", JobArrayID="9")), TOKEN)
    expected = jobs(record(*PLAIN), TOKEN)[7]
    assert {number: replace(job, name="", comment="") for number, job in by_number.items()} == {
        7: replace(expected, name="", comment=""),
        9: replace(expected, name="", comment="", id=9, called="9"),
    }


def test_the_processes_of_steps_as_recorded() -> None:
    by_pid = listed_pids(RECORDED["listpids"])
    assert len(by_pid) == 10
    assert by_pid[29963] == ListedPid(job=35, step="0", local=0, rank=0)
    assert by_pid[29940] == ListedPid(job=35, step="batch")


def test_odd_lines_about_processes_are_passed_over() -> None:
    text = (
        "PID      JOBID    STEPID   LOCALID GLOBALID\n-1       1        extern   0       1\n24 1 0+1 2 5\n"
        "x 1 0 0 0\n25 y 0 0 0\n26 1 0;rm 0 0\n27 1 0\n28 1 interactive - -\n"
    )
    assert listed_pids(text) == {
        24: ListedPid(job=1, step="0+1", local=2, rank=5),
        28: ListedPid(job=1, step="interactive"),
    }


@pytest.mark.parametrize(
    ("tracking", "version", "cgroup_conf", "trees"),
    [
        ("proctrack/linuxproc", "22.05.8", None, True),
        ("proctrack/pgid", "24.11.5", "", True),
        ("proctrack/cgroup", "22.05.8", None, False),
        ("proctrack/cgroup", "22.05.8", "SignalChildrenProcesses=yes", False),
        ("proctrack/cgroup", "24.11.5", None, None),
        ("proctrack/cgroup", "24.11.5", "", False),
        ("proctrack/cgroup", "24.11.5", "ConstrainDevices=yes\nsignalchildrenprocesses = YES\n", True),
        ("proctrack/cgroup", "24.11.5", "#SignalChildrenProcesses=yes\nSignalChildrenProcesses=no", False),
        ("proctrack/cgroup", "26.05.0", "include /etc/slurm/more.conf", None),
        ("proctrack/other", "26.05.0", "", None),
    ],
)
def test_whom_a_signal_for_a_step_reaches(
    tracking: str, version: str, cgroup_conf: str | None, trees: bool | None
) -> None:
    config = (
        f"KillWait                = 30 sec\nProctrackType           = {tracking}\nSLURM_VERSION           = {version}\n"
    )
    assert whole_trees(config, cgroup_conf) is trees
    assert whole_trees("", cgroup_conf) is None


# --- steps


def shown(*names: str) -> str:
    return "".join(f"StepId={name} UserId=65534 State=RUNNING Name=train.sh SrunHost:Pid=vm:22799\n" for name in names)


def test_the_steps_of_a_job_are_those_of_its_lines() -> None:
    assert steps(shown("7.0", "7.12", "7.batch", "7.interactive"), "7") == ("0", "12", "batch", "interactive")
    assert steps(shown("7_2.0", "7_3.batch", "7_3.0"), "7_3") == ("batch", "0"), "of an array's last task, of all tasks"
    assert steps(shown("7.0+0", "7.0+1"), "7") == ("0+0", "0+1")
    assert steps(shown("7.0", "7.0"), "7") == ("0", "0"), "its parts from 26.05 on"
    assert steps("", "7") == ()


def test_the_name_of_a_step_may_have_several_lines() -> None:
    text = shown("7.0", "7.1").replace("train.sh", "a\nStepId=7.5 b\nStepId=8.3 UserId=0 \n")
    assert steps(text, "7") == ("0", "1")


@pytest.mark.parametrize(
    "line", ["scontrol: error: no answer", "slurm_load_jobs error", "7.0", "StepId=7.0", "StepId= UserId=0"]
)
def test_a_line_that_is_no_step_is_no_answer(line: str) -> None:
    """The line does not mean either that no step runs."""
    with pytest.raises(OddAnswer):
        steps(f"{line}\n{shown('7.batch')}", "7")


@pytest.mark.parametrize("name", ["7", "7.", "7.0x", "7.+1", "7.0.1"])
def test_a_step_of_the_job_with_an_odd_name_is_no_answer(name: str) -> None:
    with pytest.raises(OddAnswer):
        steps(shown("7.batch", name), "7")


def test_a_part_of_a_heterogeneous_job_and_a_job_of_two_nodes_end_elsewhere_too() -> None:
    alone = replace(TRAINING, node_count=1)
    assert [job.several for job in (TRAINING, alone, replace(alone, called="35+0"))] == [True, False, True]
