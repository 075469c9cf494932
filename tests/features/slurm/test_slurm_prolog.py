"""The prolog refuses a job only on a node that is excluded already; everything else, its own faults included, starts it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import pytest

from gpuwarden_collectors.slurm.jobs_facts import PROLOG_FAILED
from gpuwarden_collectors.slurm.jobs_register import parse
from support.needs import root_rights
from support.slurm_hooks import NOBODY, HookHost

BAD_GPU: Mapping[str, object] = {
    "state": "failure",
    "reason": "gpu_missing",
    "excluded": 1,
    "excluded_by": "dstack:failure slurm:foreign",
}
BAD_NODE: Mapping[str, object] = {**BAD_GPU, "reason": "driver_unresponsive", "node_state": "failure"}
GPUS = {0: "healthy", 1: "healthy", 2: "healthy", 3: "failure", 13: "healthy"}


def prolog(host: HookHost, shell: Sequence[str], gpus: str | None = "3", **more: str) -> tuple[int, str]:
    """Its exit code, and what it logs: at most one line."""
    job = {"SLURM_JOB_ID": "4711", "SLURM_JOB_UID": "1001", "SLURM_JOB_USER": "somebody", **more}
    done = host.run("prolog", shell, **job, **({} if gpus is None else {"SLURM_JOB_GPUS": gpus}))
    assert done.stdout == ""
    assert done.stderr.count("\n") <= 1, done.stderr
    return done.returncode, done.stderr.strip()


@pytest.mark.parametrize("gpus", ["3", "0,3", "3,0", "0,1,2,3"])
def test_a_job_is_refused_a_gpu_that_failed(host: HookHost, shell: Sequence[str], gpus: str) -> None:
    host.verdict(BAD_GPU, gpus=GPUS)
    refusal = "gpuwarden: job 4711: refused: it was given GPUs that failed: 3 (gpu_missing)"
    assert prolog(host, shell, gpus) == (1, refusal)


def test_the_note_of_a_job_says_whether_it_was_refused(host: HookHost, shell: Sequence[str]) -> None:
    host.verdict(BAD_GPU, gpus=GPUS)
    assert [prolog(host, shell, gpus)[0] for gpus in ("3", "0")] == [1, 0]
    assert parse(4711, (host.notes / "4711").read_text()).signal is None, "it starts this time"
    assert prolog(host, shell, "3")[0] == 1
    refused = parse(4711, (host.notes / "4711").read_text())
    assert (refused.signal, refused.uid, refused.gpus) == (PROLOG_FAILED, 1001, (3,))


@pytest.mark.parametrize("gpus", ["0", "0,1,2", "13", "99", None, ""])
def test_a_job_without_that_gpu_starts_on_the_excluded_node(
    host: HookHost, shell: Sequence[str], gpus: str | None
) -> None:
    """The job holds its allocation already, and uses nothing that is bad."""
    host.verdict(BAD_GPU, gpus=GPUS)
    assert prolog(host, shell, gpus) == (0, "")


@pytest.mark.parametrize("gpus", ["0", None])
def test_what_is_wrong_with_the_node_counts_for_every_job(
    host: HookHost, shell: Sequence[str], gpus: str | None
) -> None:
    host.verdict(BAD_NODE, gpus=GPUS)
    assert prolog(host, shell, gpus) == (1, "gpuwarden: job 4711: refused: this node is bad: driver_unresponsive")


STARTS: Mapping[str, tuple[dict[str, object], str]] = {
    "in observe mode": ({"mode": "observe"}, "mode=observe"),
    "with the breaker open": ({"breaker": 1}, "the breaker is open"),
    "with a breaker that nobody read": ({"breaker": ""}, "the breaker is open"),
    "before the node is excluded": ({"excluded": 0}, "has not excluded"),
    "if nobody read whether it is excluded": ({"excluded": ""}, "has not excluded"),
    "if only somebody else's scheduler excludes it": ({"excluded_by": "dstack:failure operator"}, "has not excluded"),
    "in a maintenance reservation, which drains nothing": ({"excluded_by": "slurm:maintenance"}, "has not excluded"),
    "on a stale verdict": ({"age": 100}, "s old"),
    "on a verdict of another boot": ({"boot_id": "0b3c"}, "of another boot"),
    "on a verdict of another format": ({"format": 3}, "cannot be read"),
    "on a verdict that would break arithmetic": ({"stamp": "08"}, "cannot be read"),
    "on simulated GPUs": ({"simulated": 1}, "simulated"),
}


@pytest.mark.parametrize("bad", [BAD_GPU, BAD_NODE], ids=["gpu", "node"])
@pytest.mark.parametrize(("keys", "why"), STARTS.values(), ids=STARTS)
def test_a_job_starts_on_a_bad_node(
    host: HookHost, shell: Sequence[str], bad: Mapping[str, object], keys: dict[str, object], why: str
) -> None:
    """The prolog prints one line that the job starts."""
    host.verdict({**bad, **keys}, gpus=GPUS)
    code, line = prolog(host, shell)
    assert (code, line.startswith("gpuwarden: job 4711: starts: ")) == (0, True)
    assert why in line


@pytest.mark.parametrize("state", ["healthy", "warning", "unknown"])
def test_only_a_failure_refuses(host: HookHost, shell: Sequence[str], state: str) -> None:
    host.verdict(gpus={3: state}, state=state, node_state=state, excluded=1)
    assert prolog(host, shell) == (0, "")


def test_without_a_verdict_a_job_starts(host: HookHost, shell: Sequence[str]) -> None:
    code, line = prolog(host, shell)
    assert (code, line) == (0, "gpuwarden: job 4711: starts: there is no verdict")


def test_a_list_of_gpus_that_cannot_be_read_starts_the_job(host: HookHost, shell: Sequence[str]) -> None:
    host.verdict(BAD_GPU, gpus=GPUS)
    for gpus in ("GPU-8a56,3x", "*", "$(id)", "0-3"):
        code, line = prolog(host, shell, gpus)
        assert (code, "cannot read SLURM_JOB_GPUS" in line) == (0, True)


def test_on_request_a_job_is_refused_while_nothing_is_known(host: HookHost, shell: Sequence[str]) -> None:
    host.refuse()
    assert prolog(host, shell) == (1, "gpuwarden: job 4711: refused: there is no verdict, and on_stale is refuse")
    host.verdict(age=100)
    assert prolog(host, shell)[0] == 1
    host.verdict()
    assert prolog(host, shell) == (0, "")
    host.run_dir.rename(host.folder / "elsewhere")
    assert prolog(host, shell)[0] == 1, "the daemon never came up after this boot"


def test_even_on_request_simulated_gpus_refuse_nobody(host: HookHost, shell: Sequence[str]) -> None:
    host.refuse()
    host.verdict(BAD_NODE, simulated=1)
    assert prolog(host, shell)[0] == 0


@pytest.mark.parametrize("folder", ["state", "state-slurm"])
def test_what_another_user_could_have_asked_for_refuses_nobody(
    host: HookHost, shell: Sequence[str], folder: str
) -> None:
    root_rights()
    host.refuse()
    os.chown(host.folder / folder, NOBODY, NOBODY)
    assert prolog(host, shell) == (0, "gpuwarden: job 4711: starts: there is no verdict")


@pytest.mark.parametrize("bad", [BAD_GPU, BAD_NODE], ids=["gpu", "node"])
def test_a_verdict_of_another_user_refuses_nobody(
    host: HookHost, shell: Sequence[str], bad: Mapping[str, object]
) -> None:
    """An intruder in a daemon that may not drain could otherwise have Slurm drain the node, past the breaker."""
    root_rights()
    host.verdict(bad, gpus=GPUS)
    host.give_away()
    assert prolog(host, shell) == (0, "")


@pytest.mark.parametrize("instead", ["pipe", "link to a pipe", "link to nothing", "endless file"])
def test_it_does_not_wait_for_what_another_user_put_there(host: HookHost, shell: Sequence[str], instead: str) -> None:
    root_rights()
    host.put_in_place_of_the_verdict(instead)
    host.give_away()
    assert prolog(host, shell) == (0, "")


def test_who_was_given_which_gpus_is_left_for_the_daemon(host: HookHost, shell: Sequence[str]) -> None:
    host.verdict()
    assert prolog(host, shell, "0,3") == (0, "")
    words = (host.notes / "4711").read_text().split()
    assert [word.partition("=")[0] for word in words] == ["uid", "gpus", "started", "user"]
    assert {"uid=1001", "gpus=0,3", "user=somebody"} < set(words)


@pytest.mark.parametrize("script", ["prolog", "epilog"])
@pytest.mark.parametrize("umask", [0o077, 0o027, 0o000])
def test_the_note_can_be_read_by_the_daemon_s_user_whatever_the_umask_of_slurmd(
    host: HookHost, shell: Sequence[str], script: str, umask: int
) -> None:
    before = os.umask(umask)
    try:
        host.run(script, shell, SLURM_JOB_ID="4711", SLURM_JOB_UID="1001", SLURM_JOB_USER="a", SLURM_JOB_GPUS="3")
    finally:
        os.umask(before)
    assert (host.notes / "4711").stat().st_mode & 0o777 == 0o644


def test_on_which_nodes_a_job_is_is_left_for_the_daemon(host: HookHost, shell: Sequence[str]) -> None:
    host.verdict()
    nodes = {"SLURM_JOB_NUM_NODES": "1000", "SLURMD_NODENAME": "n1", "SLURM_NODELIST": f"n[1,{'3,' * 999}3]"}
    assert prolog(host, shell, "0,3", **nodes) == (0, "")
    line = (host.notes / "4711").read_text()
    assert line.split()[4:] == ["nodes=1000", "node=n1", f"list={nodes['SLURM_NODELIST']}"[: 1000 - len(" node=n1 ")]]
    job = parse(4711, line)
    assert (job.nodes, job.batch, job.gpus) == (1000, True, (0, 3))


def test_the_sluid_of_a_job_is_left_for_the_daemon(host: HookHost, shell: Sequence[str]) -> None:
    host.verdict()
    assert prolog(host, shell, SLURM_JOB_SLUID="sE3NM8K1NV6800") == (0, "")
    assert parse(4711, (host.notes / "4711").read_text()).sluid == "sE3NM8K1NV6800"


@pytest.mark.parametrize(
    "odd", ["", "s1", "E3NM8K1NV6800", "s" + "0" * 40, "sE3NM8K1 uid=0", "sE3NM8K1\nuid=0", "s$(reboot)"]
)
def test_of_an_unusual_sluid_nothing_is_left(host: HookHost, shell: Sequence[str], odd: str) -> None:
    host.verdict()
    assert prolog(host, shell, SLURM_JOB_SLUID=odd) == (0, "")
    line = (host.notes / "4711").read_text()
    assert "sluid" not in line
    assert "uid=0" not in line


@pytest.mark.parametrize(
    "odd",
    [
        {"SLURM_JOB_NUM_NODES": "2 uid=0"}, {"SLURM_JOB_NUM_NODES": "-1"}, {"SLURMD_NODENAME": "n1\nuid=0"}, {"SLURMD_NODENAME": ""},
        {"SLURM_NODELIST": "n1 uid=0"}, {"SLURM_NODELIST": "$(reboot)"}, {"SLURM_NODELIST": "*"},
    ],
    ids=str,
)  # fmt: skip
def test_of_unusual_nodes_nothing_is_left(host: HookHost, shell: Sequence[str], odd: dict[str, str]) -> None:
    host.verdict()
    assert prolog(host, shell, "0,3", **{"SLURM_NODELIST": "n1", **odd}) == (0, "")
    line = (host.notes / "4711").read_text()
    assert "uid=0" not in line
    assert len(line.split()) == (6 if "SLURM_JOB_NUM_NODES" in odd else 4)


@pytest.mark.parametrize(
    ("comment", "opts_out"),
    [
        ("gpuwarden:stall=ignore", True), ("run 7\n$(reboot) GPUWARDEN_STALL=ignore;", True), ("gpuwarden:stall=watch", False),
        ("uid=0 gpus=1 stall=ignore", False), ("*", False), ("", False),
    ],
)  # fmt: skip
def test_of_the_comment_of_a_job_only_its_opt_out_is_left(
    host: HookHost, shell: Sequence[str], comment: str, *, opts_out: bool
) -> None:
    host.verdict()
    assert prolog(host, shell, "0,3", SLURM_JOB_COMMENT=comment) == (0, "")
    line = (host.notes / "4711").read_text()
    assert line.count("\n") == 1
    assert line.split()[3:] == ["user=somebody", *(["stall=ignore"] if opts_out else [])]


@pytest.mark.parametrize(
    "odd",
    [
        {"SLURM_JOB_ID": "../../x"}, {"SLURM_JOB_ID": ""}, {"SLURM_JOB_UID": "root"}, {"SLURM_JOB_USER": "a b\nuid=0"},
        {"SLURM_JOB_GPUS": "0\ngpus=1"},
    ],
    ids=str,
)  # fmt: skip
def test_nothing_unusual_is_left_for_the_daemon(host: HookHost, shell: Sequence[str], odd: dict[str, str]) -> None:
    host.verdict()
    job = {"SLURM_JOB_ID": "4711", "SLURM_JOB_UID": "1001", "SLURM_JOB_GPUS": "0", **odd}
    assert host.run("prolog", shell, **job).returncode == 0
    assert list(host.notes.iterdir()) == []


def test_a_note_that_cannot_be_written_starts_the_job(host: HookHost, shell: Sequence[str]) -> None:
    (host.notes / "4711").mkdir()  # in the way of its file
    host.verdict()
    assert prolog(host, shell) == (0, "")


def test_nothing_is_written_where_another_user_could_have_put_a_link(host: HookHost, shell: Sequence[str]) -> None:
    root_rights()
    precious = host.folder / "precious"
    precious.write_text("of root's")
    (host.notes / "4711").symlink_to(precious)
    (host.run_dir / "jobs").symlink_to(host.notes)  # where the note was once
    for folder in (host.notes, host.notes.parent):
        os.chown(folder, NOBODY, NOBODY)
        assert prolog(host, shell)[0] == 0
        os.chown(folder, 0, 0)
    assert precious.read_text() == "of root's"


def test_where_no_epilog_has_them_tidied_away_notes_do_not_grow_without_end(
    host: HookHost, shell: Sequence[str]
) -> None:
    host.verdict()
    for job in range(4096):
        (host.notes / str(job)).touch()
    assert prolog(host, shell) == (0, "")
    assert not (host.notes / "4711").exists()
    (host.notes / "0").unlink()
    assert prolog(host, shell) == (0, "")
    assert (host.notes / "4711").exists()


def test_whatever_the_environment_lacks_the_job_starts(host: HookHost, shell: Sequence[str]) -> None:
    host.verdict(BAD_GPU, gpus=GPUS)
    assert host.run("prolog", shell).returncode == 0
