"""What names, control groups and environments show of a process, whatever their content."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden_collectors.control_groups import RootFolders
from gpuwarden_collectors.receivers.cgroups import OUTSIDE, Group, group_in
from gpuwarden_collectors.receivers.declared import ENVIRON_MOST, NODES_MOST, UNREAD, declarations_in, declared_signal
from gpuwarden_collectors.receivers.facts import NOTHING, SIGNALS, Role
from gpuwarden_collectors.receivers.names import named
from gpuwarden_collectors.receivers.process import Process
from gpuwarden_collectors.receivers.roles import Member, roles
from gpuwarden_collectors.receivers.timed_reads import TimedReads
from gpuwarden_job.acknowledge import job_name

ID = "0123456789abcdef" * 4
INNER = "f" * 64

GROUPS = {
    f"0::/system.slice/docker-{ID}.scope": Group(container=ID),
    f"12:pids:/docker/{ID}\n0::/": Group(container=ID),
    f"0::/machine.slice/libpod-{ID}.scope/container": Group(container=ID),
    f"0::/machine.slice/libpod-conmon-{ID}.scope": OUTSIDE,
    f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod7.slice/cri-containerd-{ID}.scope": Group(container=ID),
    f"0::/kubepods.slice/kubepods-pod7.slice/crio-{ID}.scope/container": Group(container=ID),
    f"0::/kubepods.slice/kubepods-pod7.slice/crio-conmon-{ID}.scope": OUTSIDE,
    f"4:memory:/kubepods/burstable/pod0c7b/{ID}": Group(container=ID),
    f"0::/system.slice/containerd.service/kubepods-pod7.slice:cri-containerd:{ID}": Group(container=ID),
    f"0::/../../docker/{ID}": Group(container=ID),
    f"0::/docker/{ID}/docker/{INNER}": Group(container=ID),
    f"0::/docker/{ID}/system.slice/slurmstepd.scope/job_12/step_batch/user/task_0": Group(job=12, step="batch", task="0"),
    f"0::/system.slice/slurmstepd.scope/job_12/step_3/user/task_1/libpod-{ID}.scope": Group(job=12, step="3", task="1"),
    "7:freezer:/slurm_n2/uid_1001/job_12/step_extern/task_special\n0::/": Group(job=12, step="extern", task="special", owner=1001),
    "0::/system.slice/slurmstepd.scope/s5K1P9VPN8R8C00/step_0/slurm": Group(sluid="s5K1P9VPN8R8C00", step="0"),
    f"0::/../../kubepods-burstable-pod7.slice/cri-containerd-{ID}.scope": Group(container=ID),
    f"0::/../cri-containerd-{ID}.scope": Group(container=ID),
    f"4:pids:/../../pod7-x/{ID}": Group(container=ID),
    f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod7.slice/cri-containerd-{ID}.scope": Group(container=ID),
    f"4:memory:/libpod_parent/libpod-{ID}": Group(container=ID),
    f"4:memory:/libpod_parent/{INNER}/libpod-{ID}": Group(container=ID),
    f"4:memory:/ecs/cluster/task/{ID}": Group(container=ID),
    f"0::/machine.slice/machine-libpod_pod_{INNER}.slice/libpod-{ID}.scope/container": Group(container=ID),
    "0::/../../system.slice/n7_slurmstepd.scope/job_12/step_0/user/task_2": Group(job=12, step="0", task="2"),
    "0::/../slurmstepd.scope/job_12/step_0": Group(job=12, step="0"),
    "9:cpuset:/slurm/uid_7/job_12/step_0\n8:devices:/slurm/uid_7/job_12/step_0/task_1": Group(job=12, step="0", task="1", owner=7),
    f"0::/kubepods.slice/kubepods-pod7.slice/crio-{ID}.scope/container/system.slice/slurmstepd.scope/job_12/step_0": Group(job=12, step="0"),
    "0::/user.slice/user-1001.slice/user@1001.service/x_slurmstepd.scope/job_12/step_0": OUTSIDE,
    "0::/user.slice/user-1001.slice/user@1001.service/app.slice/system.slice/slurmstepd.scope/job_12": OUTSIDE,
    "4:freezer:/user.slice/user-1001.slice/session-1.scope/slurm/uid_1/job_12/step_0": OUTSIDE,
    "4:freezer:/mine/slurm/uid_1/job_12/step_0": OUTSIDE,
    "0::/../web.service/slurmstepd.scope/job_12": OUTSIDE,
    f"0::/system.slice/web.service/docker-{ID}.scope": OUTSIDE,
    f"0::/../web.service/docker-{ID}.scope": OUTSIDE,
    f"0::/user.slice/user-1001.slice/user@1001.service/user.slice/libpod-{ID}.scope/container": OUTSIDE,
    f"4:memory:/mine/docker/{ID}": OUTSIDE,
    f"0::/system.slice/web.service/kubepods-pod7.slice:cri-containerd:{ID}": OUTSIDE,
    f"0::/docker/{ID}a": OUTSIDE,
    f"0::/docker/{ID.upper()}": OUTSIDE,
    "0::/": OUTSIDE,
    "": OUTSIDE,
}  # fmt: skip
"""The forms of Docker, Podman, containerd, CRI-O and Slurm, of both versions, as seen from the host and from a container; and what only
resembles them, the same names in places where users make folders among it.
"""
NOWHERE = RootFolders(Path("/nowhere"))
"""No cgroup file system can be looked at."""


@pytest.mark.parametrize(("text", "group"), GROUPS.items())
def test_a_control_group_names_its_job_or_its_container(text: str, group: Group) -> None:
    assert group_in(text, NOWHERE) == group


NAMES: list[tuple[str, Sequence[str], Role | None]] = [
    ("bash", ["/bin/bash", "/var/spool/slurmd/job00012/slurm_script"], Role.SHELL),
    ("bash", ["-bash"], Role.SHELL),
    ("slurm_script", ["/usr/bin/python3", "/var/spool/slurmd/job00012/slurm_script"], None),
    ("torchrun", ["/opt/venv/bin/python", "/opt/venv/bin/torchrun", "--nproc-per-node=8", "train.py"], Role.LAUNCHER),
    ("python", ["python3.11", "-u", "-X", "faulthandler", "-m", "torch.distributed.run", "train.py"], Role.LAUNCHER),
    ("python", ["python", "-mtorch.distributed.launch", "train.py"], Role.LAUNCHER),
    ("python", ["python", "/x/site-packages/torch/distributed/run.py", "train.py"], Role.LAUNCHER),
    ("pt_main_thread", ["python", "train.py", "torchrun"], None),
    ("python", ["python", "-m", "submitit.core._submit", "/logs"], None),
    ("python", ["python", "-c", "torchrun"], None),
    ("python3.13t", ["python3.13t", "train.py"], None),
    ("python", ["python"], None),
    ("slurmstepd", ["slurmstepd: [4711.batch]"], Role.SERVICE),
    ("sshd", ["sshd: alice@pts/0"], Role.SERVICE),
    ("tmux: server", ["tmux", "new"], Role.SERVICE),
    ("containerd-shim", [], Role.SERVICE),
    ("nvidia-cuda-mps", [], Role.SERVICE),
    ("nvidia-cuda-mps", ["/usr/bin/nvidia-cuda-mps-server"], Role.SERVICE),
    ("nv-hostengine", ["/usr/bin/nv-hostengine", "-n"], Role.SERVICE),
    ("orted", ["/opt/ompi/bin/orted", "-mca", "x"], Role.LAUNCHER),
    ("train: epoch 3", ["train: epoch 3 of 90"], None),
    ("", [], None),
    ("", [""], None),
]


@pytest.mark.parametrize(("name", "command", "role"), NAMES)
def test_the_role_of_a_program_follows_from_its_name(name: str, command: Sequence[str], role: Role | None) -> None:
    assert named(name, command) is role


@pytest.mark.parametrize(
    ("text", "signal_name"),
    [
        ("USR1", "USR1"), ("sigusr1", "USR1"), (" SIGTERM ", "TERM"), ("hup", "HUP"), ("USR2", "USR2"), ("", ""), ("  ", ""),
        ("none", NOTHING), ("No", NOTHING), ("off", NOTHING), ("0", NOTHING), ("KILL", NOTHING), ("9", NOTHING),
        ("10", NOTHING), ("USR1,USR2", NOTHING), ("\u0130", NOTHING), ("SIG", ""), ("x" * 100_000, NOTHING),
    ],
)  # fmt: skip
def test_what_we_may_not_send_is_not_replaced_by_something_else(text: str, signal_name: str) -> None:
    """A job that declares KILL did not declare TERM."""
    assert declared_signal(text) == signal_name


def environ(variables: Mapping[str, str]) -> bytes:
    return b"".join(f"{name}={value}\0".encode("utf-8", "surrogateescape") for name, value in variables.items())


IDENTITIES: list[tuple[dict[str, str], object]] = [
    ({"RANK": "9", "LOCAL_RANK": "1", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1"}, ("RANK", "9", "1")),
    ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, ("OMPI_COMM_WORLD_RANK", "2", "0")),
    ({"PMI_RANK": "2", "MPI_LOCALRANKID": "2"}, ("PMI_RANK", "2", "2")),
    ({"LOCAL_RANK": "1", "NODE_RANK": "0"}, ("LOCAL_RANK", "", "1")),
    ({"SLURM_STEP_ID": "4", "SLURM_PROCID": "7", "SLURM_LOCALID": "3"}, ("SLURM_PROCID of 4", "7", "3")),
    ({"SLURM_PROCID": "0"}, None),
    ({"RANK": "-1"}, None),
    ({"RANK": "1" * 50}, None),
    ({"RANK": "\u0663"}, None),
    ({"XRANK": "1", "A": "RANK=1"}, None),
]


@pytest.mark.parametrize(("variables", "identity"), IDENTITIES)
def test_the_rank_of_a_process_follows_from_its_environment(variables: Mapping[str, str], identity: object) -> None:
    assert declarations_in(environ(variables), b"").identity == identity


@pytest.mark.parametrize(
    ("nodes", "read"),
    [
        ("n[1-2,007],m5", True),
        ("rack-1.site_a", True),
        ("n" * NODES_MOST, True),
        ("n" * (NODES_MOST + 1), False),
        ("n[1-" + "9" * 20 + "]", False),
        ("n1 n2", False),
        ("[" * NODES_MOST, False),
        ("n\N{ARABIC-INDIC DIGIT THREE}", False),
        ("", False),
    ],
)
def test_the_nodes_of_a_step_are_taken_only_whole_and_in_the_form_of_slurm(nodes: str, read: bool) -> None:
    """Anybody may write anything there, and what is cut off names nodes too."""
    variables = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": nodes}
    assert declarations_in(environ(variables), b"").step_nodes == (nodes if read else "")
    assert declarations_in(environ({**variables, "SLURM_STEP_ID": "4294967291"}), b"").step_nodes == ""


def test_of_a_huge_environment_what_is_whole_counts_and_the_first_of_two() -> None:
    fill = b"X=" + b"y" * (ENVIRON_MOST - 1000) + b"\0"
    assert declarations_in(fill + b"GPUWARDEN_SIGNAL=HUP\0GPUWARDEN_SIGNAL=TERM\0", b"").declared == "HUP"
    last = b"GPUWARDEN_SIGNAL=TERM"
    cut = b"X=" + b"y" * (ENVIRON_MOST - 3 - len(last)) + b"\0" + last
    assert len(cut) == ENVIRON_MOST
    assert declarations_in(cut, b"").declared == "", "what was cut off may have been TERMINAL"
    assert declarations_in(cut[1:], b"").declared == "TERM"


@given(
    st.binary(max_size=300),
    st.binary(max_size=300),
    st.sampled_from([b"", b"GPUWARDEN_SIGNAL=", b"RANK=", b"SLURM_JOB_ID="]),
)
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_an_environment_and_a_command_line(data: bytes, more: bytes, name: bytes) -> None:
    """Replaced, not UTF-8, not ended: the declaration is a valid one, or none."""
    declarations = declarations_in(data + b"\0" + name + more, more)
    assert declarations.declared in ("", NOTHING, *SIGNALS)
    assert declarations.job is None or 0 <= declarations.job < 10**9
    named("x", declarations.command)
    str(declarations).encode()


@given(
    st.dictionaries(
        st.sampled_from(["GPUWARDEN_JOB", "SLURM_JOB_ID", "DSTACK_JOB_ID"]), st.text("a./-\u00e9 0", max_size=4)
    )
)
@settings(max_examples=200, deadline=None)
def test_acknowledgements_are_read_from_the_folder_that_the_job_uses(variables: Mapping[str, str]) -> None:
    assert declarations_in(environ(variables), b"").folder == (job_name(variables) or "")


def test_the_signals_are_those_of_this_platform() -> None:
    assert all(hasattr(signal, f"SIG{name}") for name in SIGNALS)
    assert UNREAD.declared == ""


@pytest.mark.parametrize("parent", [lambda pid: pid - 1, lambda pid: 1, lambda pid: 10_000 if pid == 1 else pid - 1])
def test_of_ten_thousand_processes_in_a_chain_a_heap_or_a_circle_one_is_the_rank(parent: Callable[[int], int]) -> None:
    members = {
        pid: Member(
            process=Process(pid, parent(pid), pid, "python", uid=7, catches=frozenset(), program=()),
            step="0",
        )
        for pid in range(1, 10_001)
    }
    members[1].gpu = members[1].leader = True
    by_pid = roles(members, 7)
    assert len(by_pid) == 10_000
    assert [pid for pid, role in by_pid.items() if role is Role.RANK] == [1]


# --- reads that hang -----------------------------------------------------------------------------------------------


def test_a_read_that_hangs_is_left_behind_and_the_others_are_made() -> None:
    """The read is not tried again before it has returned; then it is."""
    gate, came = threading.Event(), list[int]()

    def read(item: int) -> int:
        came.append(item)
        if item % 10 == 3:
            gate.wait()
        return item * item

    reads: TimedReads[int, int] = TimedReads(patience=0.2)
    expected = {item: item * item for item in range(30) if item % 10 != 3}
    while reads.all(read, range(30)) != expected:
        pass  # on a machine so busy that others seemed to hang, too
    assert reads.all(read, range(30)).keys() <= expected.keys()
    assert [came.count(item) for item in (3, 13, 23)] == [1, 1, 1]
    gate.set()
    for thread in threading.enumerate():
        if thread.name == "timed-read":
            thread.join(60)
    while len(reads.all(read, range(30))) < 30:
        pass


def test_with_too_many_that_hang_nothing_more_is_read() -> None:
    gate = threading.Event()
    reads: TimedReads[int, bool] = TimedReads(patience=0.05, most=2)
    assert reads.all(lambda _: gate.wait(), range(10)) == {}
    assert reads.all(lambda _: True, range(10, 20)) == {}
    gate.set()


def test_an_internal_error_is_not_taken_for_a_read_that_hangs() -> None:
    with pytest.raises(ZeroDivisionError):
        TimedReads[int, float]().all(lambda item: 1 / item, [0])
