"""Parses the output of Slurm's commands about jobs to be signalled and requeued; the same from 22.05 to 26.05.

`squeue --Format` accepts any text after a field's width. A random separator for each call delimits the fields, because
users can put anything into a job's name and comment, including separators of earlier calls and line breaks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuwarden_collectors.slurm.departing_facts import ListedPid, SlurmJob
from gpuwarden_collectors.slurm.errors import OddAnswer, one_line
from gpuwarden_collectors.slurm.jobs_text import is_number
from gpuwarden_collectors.slurm.settings import release_of

_FIELDS = tuple(
    """
    JobID JobArrayID UserID State NodeList NumNodes Partition BatchFlag Requeue RestartCnt StartTime
    ReqNodes admin_comment Name Comment""".split()
)
_NOTHING = ("", "(null)", "n/a", "N/A", "None", "Unknown")
_LONGEST_TEXT = 4096  # characters of a text set by users
_LONGEST_LIST = 65_536  # characters: a list of 8,000 nodes of odd names
_LINES_MAX = 100_000
_STEP = re.compile(r"\d{1,10}(\+\d{1,10})?|[a-z]{1,16}")
_STEP_ID = re.compile(r"^StepId=(?=\S{1,64} UserId=)", re.MULTILINE)
_TREES = {"proctrack/linuxproc": True, "proctrack/pgid": True}
"""Process tracking that signals all processes of a step; proctrack/cgroup needs SignalChildrenProcesses for that."""
_CHILDREN_SIGNALLED_FROM = (23, 11)
_SIGNALS_CHILDREN = re.compile(r"^\s*SignalChildrenProcesses\s*=\s*\"?(\w+)", re.MULTILINE | re.IGNORECASE)
_INCLUDE = re.compile(r"^\s*Include\s", re.MULTILINE | re.IGNORECASE)


def job_format(token: str) -> str:
    """Returns the argument of `squeue --Format`; the random `token` separates the fields."""
    between, end = _marks(token)
    return ",".join(f"{name}:0{between}" for name in _FIELDS[:-1]) + f",{_FIELDS[-1]}:0{end}"


def jobs(text: str, token: str) -> dict[int, SlurmJob]:
    """Parses jobs by number. Raises OddAnswer."""
    return {job.id: job for job in _jobs(text, token)}


def _jobs(text: str, token: str) -> Iterator[SlurmJob]:
    between, end = _marks(token)
    *records, rest = text.split(end)
    if rest.strip():
        raise OddAnswer(f"squeue reports {one_line(rest)!r}")
    for record in records:
        values = record.lstrip("\n").split(between)
        if len(values) != len(_FIELDS):
            raise OddAnswer(f"squeue reports {one_line(record)!r}")
        yield _job(dict(zip(_FIELDS, values, strict=True)))


def _marks(token: str) -> tuple[str, str]:
    return f"|{token}|", f"|{token}."


def _job(record: dict[str, str]) -> SlurmJob:
    return SlurmJob(
        id=_number(record, "JobID"),
        uid=_number(record, "UserID"),
        state=record["State"].lower(),
        nodes=_text(record["NodeList"], _LONGEST_LIST),
        node_count=_number(record, "NumNodes"),
        partition=_text(record["Partition"]),
        batch=_number(record, "BatchFlag") > 0,  # counts launches: 2 after a prolog refused the job (seen with 25.11)
        requeue=record["Requeue"] == "1",
        restarts=_number(record, "RestartCnt"),
        started=_time(record["StartTime"]),
        comment=_text(record["Comment"]),
        admin_comment=_text(record["admin_comment"]),
        called=record["JobArrayID"],
        name=_text(record["Name"]),
        pinned=_text(record["ReqNodes"], _LONGEST_LIST),
    )


def _number(record: dict[str, str], field: str) -> int:
    text = record[field]
    if not is_number(text):
        raise OddAnswer(f"squeue reports that the {field} of a job is {one_line(text)!r}")
    return int(text)


def _time(text: str) -> float:
    """Unix time of a text (seconds by SLURM_TIME_FORMAT=%s); 0 for a job that has not started."""
    return float(text) if is_number(text) else 0.0


def _text(value: str, longest: int = _LONGEST_TEXT) -> str:
    """Replaces unprintable characters, including undecodable bytes, by blanks and limits the length."""
    return "" if value in _NOTHING else "".join(c if c.isprintable() else " " for c in value[:longest])


def listed_pids(text: str) -> dict[int, ListedPid]:
    """Parses `scontrol listpids` (PID JOBID STEPID LOCALID GLOBALID) by PID; skips lines of another form.

    A PID of -1 means a step without processes.
    """
    by_pid = {}
    for line in text.splitlines()[:_LINES_MAX]:
        columns = line.split()
        if len(columns) == 5 and is_number(columns[0]) and is_number(columns[1]) and _STEP.fullmatch(columns[2]):
            local, rank = (int(column) if is_number(column) else None for column in columns[3:])
            by_pid[int(columns[0])] = ListedPid(job=int(columns[1]), step=columns[2], local=local, rank=rank)
    return by_pid


def steps(text: str, job: str) -> tuple[str, ...]:
    """Parses `scontrol --oneliner show step`, whose lines begin with such as StepId=7.0, 7.batch or 7_3.0, for the
    steps of `job`.

    Parts of a step occur several times. For the last task of an array the output has the steps of all tasks. Raises
    OddAnswer, also for text before the first step; text after it may belong to a step's name, which may contain line
    breaks.
    """
    before, *shown = _STEP_ID.split(text)
    own_steps = list[str]()
    for line in shown[:_LINES_MAX]:
        name = line.partition(" ")[0]
        of, _, step = name.partition(".")
        if of == job and not _STEP.fullmatch(step):
            raise OddAnswer(f"scontrol reports that {one_line(name)!r} is a step of job {job}")
        own_steps += [step] if of == job else []
    if before.strip():
        raise OddAnswer(f"scontrol reports for the steps of job {job} {one_line(before)!r}")
    return tuple(own_steps)


def whole_trees(config: str, cgroup_conf: str | None) -> bool | None:
    """True if a signal for a step reaches all its processes; None if unknown.

    `config` is the output of `scontrol show config`, which lacks SignalChildrenProcesses. `cgroup_conf` is the content
    of that file, or None.
    """
    settings = dict(re.findall(r"^(ProctrackType|SLURM_VERSION)\s*=\s*(\S+)", config, re.MULTILINE))
    if settings.get("ProctrackType") != "proctrack/cgroup":
        return _TREES.get(settings.get("ProctrackType", ""))
    release = release_of(settings.get("SLURM_VERSION", ""))
    if release is not None and release < _CHILDREN_SIGNALLED_FROM:
        return False
    if cgroup_conf is None or _INCLUDE.search(cgroup_conf):
        return None
    values = _SIGNALS_CHILDREN.findall(cgroup_conf)
    return bool(values) and values[-1].lower() in ("yes", "up", "true", "1")
