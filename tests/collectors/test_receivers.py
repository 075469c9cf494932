"""Who is found on a host, and as what: trees of real processes in real control groups, as launchers make them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpuwarden_collectors.receivers.facts import Kind, LocalJob, Receiver, Role
from gpuwarden_collectors.receivers.reader import ReceiversReader
from gpuwarden_collectors.slurm.departing_facts import ListedPid
from support.job_trees import Forest, forest, member
from support.needs import root_rights

PROC = Path("/proc")
USER = 65534
RANK, HELPER, LAUNCHER, SHELL, SERVICE = Role.RANK, Role.HELPER, Role.LAUNCHER, Role.SHELL, Role.SERVICE
Spec = dict[str, Any]


@pytest.fixture
def trees() -> Iterator[Forest]:
    with forest() as grown:
        yield grown


def stepd(*below: Spec) -> Spec:
    """Return a slurmstepd, which starts the tasks of a step. Needs root, to whom slurmstepd belongs."""
    root_rights()
    return member("stepd", *below, program="slurmstepd")


def slurm(trees: Forest, rank: int, step: int = 0, **more: str) -> dict[str, Any]:
    own = {"SLURM_JOB_ID": str(trees.job), "SLURM_STEP_ID": str(step)}
    return {**own, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), **more}


class Found:
    """One scan, by the labels of a forest."""

    def __init__(
        self, pids: Mapping[str, int], gpu: Collection[str] = (), listed: Mapping[int, ListedPid] | None = None,
        owners: Mapping[int, int] | None = None, reader: ReceiversReader | None = None,
    ) -> None:  # fmt: skip
        self.pids = pids
        jobs = (reader or ReceiversReader(PROC)).read({pids[label] for label in gpu}, listed, owners)
        self.jobs = [job for job in jobs if any(receiver.pid in pids.values() for receiver in job.processes)]
        self._receivers = {receiver.pid: receiver for job in self.jobs for receiver in job.processes}

    def __getitem__(self, label: str) -> Receiver:
        return self._receivers[self.pids[label]]

    def job(self, label: str) -> LocalJob:
        return next(job for job in self.jobs if any(receiver.pid == self.pids[label] for receiver in job.processes))

    def roles(self) -> dict[str, Role]:
        return {label: self._receivers[pid].role for label, pid in self.pids.items() if pid in self._receivers}

    def ranks(self) -> set[str]:
        return {label for label, role in self.roles().items() if role is RANK}


def v2(trees: Forest, step: str = "0", task: str = "0") -> str:
    return trees.cgroup(f"system.slice/slurmstepd.scope/job_{trees.job}/step_{step}/user/task_{task}")


# --- Slurm ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_a_wrapper_s_trainer_is_the_rank_and_its_workers_are_helpers(trees: Forest, version: int) -> None:
    """`srun bash train.sh`: the task leader is a shell; data loaders have the rank's environment, and its handlers."""
    path = {
        1: f"slurm/uid_65534/job_{trees.job}/step_0/task_0",
        2: f"system.slice/n1_slurmstepd.scope/job_{trees.job}/step_0/user/task_0",
    }
    group = trees.cgroup(path[version], version=version)
    pids = trees.start(
        stepd(
            member(
                "wrapper",
                member("train", member("loader"), member("writer", catch=["TERM"]), catch=["TERM", "USR1"], fork=True),
                shell="{} & wait", cgroup=group, uid=USER, env=slurm(trees, 3, GPUWARDEN_SIGNAL="sigusr1"),
            )
        )
    )  # fmt: skip
    scan = Found(pids, gpu=["train"])
    assert scan.roles() == {"wrapper": SHELL, "train": RANK, "loader": HELPER, "writer": HELPER}
    train = scan["train"]
    assert train == Receiver(
        pid=pids["train"], started=train.started, uid=USER, name=train.name, role=RANK, catches=frozenset({"TERM", "USR1"}),
        declared="USR1", step="0", leader=False, rank=3, gpu=True,
    )  # fmt: skip
    assert scan["wrapper"].leader
    assert scan["loader"].catches == {"TERM", "USR1"}, "forked with the handlers of its rank"
    job = scan.job("train")
    assert (job.kind, job.id, job.uid, job.folder) == (Kind.SLURM, str(trees.job), USER, str(trees.job))


def test_a_batch_script_that_became_its_trainer_is_a_rank_of_the_batch_step(trees: Forest) -> None:
    """`exec python`: one number, first a shell's and then a rank's, for one reader that read both."""
    group = v2(trees, step="batch")
    env = {"SLURM_JOB_ID": str(trees.job), "SLURM_PROCID": "0", "GPUWARDEN_SIGNAL": None}
    gate = trees.folder / "gate"
    os.mkfifo(gate)
    script = member("script", member("train", catch=["TERM"], env={"GPUWARDEN_SIGNAL": "none"}), waits=False,
                    shell=f"read < {gate}; exec {{}}", cgroup=group, env=env)  # fmt: skip
    reader = ReceiversReader(PROC)
    pids = trees.start(stepd(script), wait_for=("stepd", "script"))
    before = Found(pids, reader=reader)["script"]
    assert (before.role, before.leader, before.step, before.declared) == (SHELL, True, "batch", "")
    gate.write_text("go\n")
    pids = trees.wait_for("train")
    after = Found(pids, reader=reader)["train"]
    assert (after.pid, after.started) == (before.pid, before.started)
    assert (after.role, after.leader, after.step, after.declared) == (RANK, True, "batch", "NONE")
    assert after.rank is None, "SLURM_PROCID is set in every batch script"


def test_a_handler_by_which_ray_ends_its_worker_is_no_sign_that_it_saves(trees: Forest) -> None:
    """Ray itself sets it, in every worker, which exits with 1 at once: unless the job declares that signal, it gets none."""

    def worker(label: str, *signals: str, **env: str) -> Spec:
        return member(label, catch=signals, comm="ray::RayTrainWo", env={"GPUWARDEN_SIGNAL": None, **env})

    pids = trees.start(
        member(
            "raylet",
            worker("plain", "TERM"),
            worker("own", "TERM", "USR1"),
            worker("asks", "TERM", GPUWARDEN_SIGNAL="TERM"),
            program="raylet",
        )
    )
    scan = Found(pids, gpu=["plain", "own", "asks"])
    assert scan.ranks() == {"plain", "own", "asks"}
    assert {label: set(scan[label].catches) for label in scan.ranks()} == {
        "plain": set(),
        "own": {"USR1"},
        "asks": {"TERM"},
    }


def test_the_handlers_of_a_jvm_are_no_sign_that_it_saves(trees: Forest) -> None:
    """A JVM sets them in every process: it exits on TERM and HUP, and crashes on USR2."""

    def executor(label: str, **env: str) -> Spec:
        return member(label, catch=["TERM", "HUP", "USR1", "USR2"], comm="java", env={"GPUWARDEN_SIGNAL": None, **env})

    scan = Found(
        trees.start(
            member("launcher", executor("plain"), executor("asks", GPUWARDEN_SIGNAL="TERM"), script="bin/torchrun")
        ),
        gpu=["plain", "asks"],
    )
    assert {label: set(scan[label].catches) for label in scan.ranks()} == {"plain": {"USR1"}, "asks": {"TERM", "USR1"}}


def test_the_engine_of_vllm_gets_no_signal_by_which_it_drops_its_requests(trees: Forest) -> None:
    engine = member("engine", catch=["TERM"], comm="VLLM::EngineCor")
    scan = Found(trees.start(member("server", engine, catch=["TERM"], script="bin/vllm")), gpu=["engine"])
    assert scan.ranks() == {"engine"}
    assert scan["engine"].catches == frozenset()


@pytest.mark.parametrize("first", ["appinit", "sinit"])
def test_the_first_process_of_a_container_of_apptainer_is_not_signalled(trees: Forest, first: str) -> None:
    """Apptainer has it with `--pid` or `-C`: it catches every signal, and passes it on to a program that may die of it."""
    train = member("train")
    container = member("first", train, program=first, catch=["TERM", "USR1"])
    step = member("starter", container, program="starter-suid", cgroup=v2(trees), env=slurm(trees, 0))
    seen = Found(trees.start(stepd(step)), gpu=["train"])
    assert seen.roles() == {"starter": LAUNCHER, "first": SERVICE, "train": RANK}
    assert seen["train"].catches == frozenset()


def torchrun(*workers: Spec, **more: Any) -> Spec:
    return member("launcher", *workers, **{"script": "bin/torchrun", "catch": ["TERM", "HUP"], **more})


def worker(rank: int, *below: Spec, **more: Any) -> Spec:
    env = {"RANK": str(rank + 8), "LOCAL_RANK": str(rank), "WORLD_SIZE": "16"}
    return member(f"rank{rank}", *below, env=env, session=True, catch=["TERM"], fork=True, **more)


@pytest.mark.parametrize(
    "more",
    [
        {"script": "bin/torchrun"}, {"script": "bin/ft_launcher"}, {"module": "torch.distributed.run"},
        {"script": "bin/accelerate"}, {"module": "accelerate.commands.launch"},
        {"module": "deepspeed.launcher.launch", "by_path": True}, {"script": "bin/composer", "options": ["-u", "-W", "ignore"]},
        {"script": "our_own_launcher.py"},
    ],
    ids=lambda more: next(iter(more.values())),
)  # fmt: skip
def test_a_launcher_s_workers_are_the_ranks_whatever_started_them(trees: Forest, more: Mapping[str, Any]) -> None:
    """The workers are sessions of their own, they catch what their launcher catches, and the launcher would kill them."""
    pids = trees.start(
        stepd(torchrun(worker(0, member("loader")), worker(1), cgroup=v2(trees), env=slurm(trees, 1), **more))
    )
    for gpu in (["rank0", "rank1"], []):  # before and after CUDA is initialised
        scan = Found(pids, gpu)
        assert scan.roles() == {"launcher": LAUNCHER, "rank0": RANK, "rank1": RANK, "loader": HELPER}
        assert [scan[label].rank for label in ("rank0", "rank1")] == [8, 9]
        assert not scan["rank0"].leader
        assert scan["launcher"].leader


def test_a_trainer_that_starts_the_other_ranks_of_its_host_is_the_first_rank_itself(trees: Forest) -> None:
    """Lightning does so without a scheduler: the process started by hand is local rank 0."""
    other = member("rank1", catch=["TERM"], env={"LOCAL_RANK": "1", "NODE_RANK": "0"})
    pids = trees.start(member("rank0", other, catch=["TERM"], cgroup=trees.cgroup(f"docker/{trees.container}")))
    for gpu in (["rank0", "rank1"], []):
        assert Found(pids, gpu).ranks() == {"rank0", "rank1"}


def test_what_has_started_that_trainer_is_a_launcher_and_the_trainer_still_a_rank(trees: Forest) -> None:
    """An entry point may catch SIGTERM, and end what it started."""
    other = member("rank1", catch=["TERM"], env={"LOCAL_RANK": "1", "NODE_RANK": "0"})
    first = member("rank0", other, catch=["TERM"])
    pids = trees.start(member("entry", first, catch=["TERM"], cgroup=trees.cgroup(f"docker/{trees.container}")))
    for gpu in (["rank0", "rank1"], ["rank0"]):
        assert Found(pids, gpu).roles() == {"entry": LAUNCHER, "rank0": RANK, "rank1": RANK}
    assert Found(pids).ranks() == {"rank0", "rank1"}, "also while NVML does not say who holds a GPU"


def test_a_tree_of_mpi_is_seen_through_to_its_ranks(trees: Forest) -> None:
    """The batch step of the first node has mpirun and its ranks; other nodes have orted, which srun started in step 0."""

    def ranks(first: int) -> list[Spec]:
        return [
            member(f"rank{n}", catch=["USR1"], env={"OMPI_COMM_WORLD_RANK": str(n), "OMPI_COMM_WORLD_LOCAL_RANK": str(n - first)})
            for n in (first, first + 1)
        ]  # fmt: skip

    batch = member("script", member("mpirun", *ranks(0), program="mpirun"), shell="{} & wait", cgroup=v2(trees, step="batch"), env=slurm(trees, 0) | {"SLURM_STEP_ID": None})  # fmt: skip
    orted = member("orted", *ranks(2), program="orted", cgroup=v2(trees), env=slurm(trees, 1))
    scan = Found(trees.start(stepd(batch, orted)))
    assert scan.roles() == {
        "script": SHELL, "mpirun": LAUNCHER, "orted": LAUNCHER, **{f"rank{n}": RANK for n in range(4)},
    }  # fmt: skip
    assert [(scan[f"rank{n}"].step, scan[f"rank{n}"].rank) for n in range(4)] == [
        ("batch", 0), ("batch", 1), ("0", 2), ("0", 3),
    ]  # fmt: skip


def test_what_runs_beside_a_rank_in_its_script_is_none(trees: Forest) -> None:
    """A dashboard in the batch script, a pipe behind the trainer, `timeout` before it, MPS, and Slurm's own sleep."""
    batch = member(
        "script",
        member("dashboard", catch=["TERM"]), member("srun", program="srun"), member("mps", program="nvidia-cuda-mps-server"),
        shell="{} & {} & {} & wait", cgroup=v2(trees, step="batch"), env=slurm(trees, 0) | {"SLURM_STEP_ID": None},
    )  # fmt: skip
    task = member(
        "task",
        member("timeout", member("train", catch=["TERM"]), program="timeout", catch=["TERM"]), member("filter", catch=["TERM"]),
        shell="{} | {}", cgroup=v2(trees), env=slurm(trees, 0),
    )  # fmt: skip
    extern = member("sleep", program="sleep", cgroup=v2(trees, step="extern", task="special"))
    pids = trees.start(stepd(batch, task, extern))
    scan = Found(pids, gpu=["train", "mps"])
    assert scan.roles() == {
        "script": SHELL, "dashboard": HELPER, "srun": LAUNCHER, "mps": SERVICE, "task": SHELL, "timeout": LAUNCHER,
        "train": RANK, "filter": HELPER, "sleep": SERVICE,
    }  # fmt: skip
    assert len(scan.jobs) == 1
    under_mps = Found(pids, gpu=["mps"])
    assert under_mps["train"].role is RANK, "the server holds the GPU for a client that does not show"


def test_orphans_are_classified_by_what_they_declare(trees: Forest) -> None:
    """Processes whose parent is gone: one that works on alone, one beside the rank that it was of, and MPS."""
    left = member("gone", member("worker", catch=["TERM"], orphan=True, env=slurm(trees, 1)), leaves=True)
    beside = member("gone too", member("service", catch=["TERM"], orphan=True), leaves=True)
    control = member("gone as well", member("mps", program="nvidia-cuda-mps-control", orphan=True), leaves=True)
    train = member("train", left, beside, control, catch=["TERM"], cgroup=v2(trees), env=slurm(trees, 0))
    scan = Found(trees.start(stepd(train)))
    assert {label: role for label, role in scan.roles().items() if not label.startswith("gone")} == {
        "train": RANK, "worker": RANK, "service": HELPER, "mps": SERVICE,
    }  # fmt: skip


def test_a_process_of_another_user_in_a_job_is_not_the_job_s(trees: Forest) -> None:
    """The job's user may not have a process signalled that sudo started."""
    root = member("as root", member("below", catch=["TERM"]), catch=["TERM"], program="sudo")
    train = member("train", catch=["TERM"])
    script = member("script", train, shell="{} & wait", cgroup=v2(trees), uid=USER, env=slurm(trees, 0))
    other = member("other", root, shell="{} & wait", cgroup=v2(trees, task="1"), env=slurm(trees, 1))
    scan = Found(trees.start(stepd(script, other)), gpu=["below", "train"])
    assert scan.roles() == {"script": SHELL, "train": RANK, "other": SERVICE, "as root": SERVICE, "below": SERVICE}
    assert scan.job("train").uid == USER


def test_without_control_groups_slurmds_list_is_used(trees: Forest) -> None:
    """proctrack/linuxproc and pgid. A number that meanwhile is another process's is passed over."""
    pids = trees.start(
        stepd(
            member("task", member("train", catch=["TERM"]), shell="{} & wait", env=slurm(trees, 0)),
            member("stranger", catch=["TERM"], env=slurm(trees, 0) | {"SLURM_JOB_ID": "12"}),
        )
    )
    listed = {
        pids["task"]: ListedPid(job=trees.job, step="0", local=0, rank=5),
        pids["train"]: ListedPid(job=trees.job, step="0"),
        pids["stranger"]: ListedPid(job=trees.job, step="0", local=1, rank=6),
    }
    scan = Found(pids, listed=listed)
    assert scan.roles() == {"task": SHELL, "train": RANK}
    assert (scan["task"].leader, scan["task"].rank, scan["train"].leader) == (True, 0, False)
    assert scan.job("train").id == str(trees.job)


def test_numbers_of_another_pid_namespace_are_no_processes_of_this_host(trees: Forest) -> None:
    """A job with a PID namespace of its own is listed by its numbers in there (seen with 26.05.3, namespace/linux)."""
    group = f"system.slice/slurmstepd.scope/job_{trees.job}/step_{{}}"
    rank = member("rank", catch=["TERM"], cgroup=trees.cgroup(group.format("0/user/task_0")), env=slurm(trees, 0))
    pids = trees.start(stepd(rank, member("extern", cgroup=trees.cgroup(group.format("extern/user/task_special")))))
    pids |= trees.start(member("service", catch=["TERM"]))
    own, other = ListedPid(job=trees.job, step="0", local=0, rank=0), ListedPid(job=trees.job + 1, step="3")
    listed = {pids["service"]: own, pids["extern"]: ListedPid(job=trees.job, step="extern")}
    scan = Found(pids, listed=listed)
    assert (scan.ranks(), "service" in scan.roles()) == ({"rank"}, False)
    assert Found(pids, listed={pids["rank"]: other})["rank"].leader, "another job's process may have its number there"


def test_where_nobody_lists_them_a_gpu_user_s_environment_names_its_job(trees: Forest) -> None:
    """The rest of its tree belongs to that job, too: its launcher and its helpers, unless the controller gave the job to another user."""
    launcher = torchrun(worker(0, member("loader")), env=slurm(trees, 0))
    pids = trees.start(stepd(launcher))
    scan = Found(pids, gpu=["rank0"])
    assert scan.roles() == {"launcher": LAUNCHER, "rank0": RANK, "loader": HELPER}
    assert (scan.job("loader").kind, scan.job("loader").id, scan["loader"].step) == (Kind.SLURM, str(trees.job), "0")
    other = Found(pids, gpu=["rank0"], owners={trees.job: USER})
    assert other.job("rank0").kind is Kind.PROCESS


def test_under_a_sluid_the_job_number_comes_from_its_processes(trees: Forest) -> None:
    sluid = f"system.slice/slurmstepd.scope/{trees.sluid}/step_0/user/task_{{}}"
    plain = member("plain", catch=["TERM"], cgroup=trees.cgroup(sluid.format(0)))
    declares = member("declares", catch=["TERM"], cgroup=trees.cgroup(sluid.format(1)), env=slurm(trees, 1))
    pids = trees.start(stepd(plain, declares))
    scan = Found(pids)
    assert (scan.job("plain").id, scan.ranks()) == (str(trees.job), {"plain", "declares"})
    other = Found(pids, listed={pids["plain"]: ListedPid(job=99, step="0", local=0, rank=0)})
    assert other.job("declares").id == "99", "slurmd knows better"


def test_tasks_without_folders_of_their_own_have_a_leader_each(trees: Forest) -> None:
    """Slurm leaves all tasks of a step in one folder of version 2 where cgroup.conf constrains nothing (seen with 26.05.3)."""
    special = v2(trees, task="special")
    ranks = [
        member(f"task{n}", program="python", catch=["TERM"], cgroup=special, env=slurm(trees, n)) for n in range(2)
    ]
    scan = Found(trees.start(stepd(*ranks)))
    assert scan.ranks() == {"task0", "task1"}
    assert [scan[label].leader for label in ("task0", "task1")] == [True, True]


@pytest.mark.parametrize("version", [1, 2])
def test_of_two_users_in_one_job_none_is_its_owner_until_slurm_says_so(trees: Forest, version: int) -> None:
    """The folder of version 1 says so: slurmd named it."""
    path = {
        1: f"slurm/uid_1001/job_{trees.job}/step_0",
        2: f"system.slice/slurmstepd.scope/job_{trees.job}/step_0/user",
    }
    group = trees.cgroup(path[version], version=version)
    other = member("other", catch=["TERM"], cgroup=group, uid=1002, env=slurm(trees, 1), session=True)
    own = member("own", catch=["TERM"], cgroup=group, uid=1001, env=slurm(trees, 0))
    pids = trees.start(stepd(other, own))
    scan = Found(pids)
    assert scan.job("own").uid == (1001 if version == 1 else None)
    assert scan["own"].role is RANK, "it is told, whoever else is in there"
    if version == 2:
        told = Found(pids, owners={trees.job: 1001})
        assert (told.job("own").uid, told.roles()) == (1001, {"own": RANK, "other": SERVICE})


def test_a_number_in_an_environment_makes_nobody_the_owner_of_a_job(trees: Forest) -> None:
    pids = trees.start(stepd(member("claims", catch=["TERM"], uid=1002, env=slurm(trees, 0))))
    scan = Found(pids, gpu=["claims"])
    assert (scan.job("claims").id, scan.job("claims").uid) == (str(trees.job), None)


def test_of_two_users_who_name_one_job_neither_is_believed(trees: Forest) -> None:
    claims = [member(f"of{uid}", catch=["TERM"], uid=uid, env=slurm(trees, 0)) for uid in (1001, 1002)]
    scan = Found(trees.start(stepd(*claims)), gpu=["of1001", "of1002"])
    assert {scan.job(label).kind for label in ("of1001", "of1002")} == {Kind.PROCESS}
    assert scan.ranks() == {"of1001", "of1002"}, "both are told"


# --- containers and unmanaged processes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "first", [{"shell": "{} & wait", "interpreter": ["sh", "-c"]}, {"program": "tini"}, {"program": "docker-init"}],
    ids=["sh", "tini", "docker-init"],
)  # fmt: skip
def test_the_first_process_of_a_container_is_not_signalled(trees: Forest, first: Mapping[str, Any]) -> None:
    train = member("train", member("loader"), catch=["TERM"], fork=True, env={"DSTACK_JOB_ID": f"task-{trees.job}"})
    pids = trees.start(member("first", train, cgroup=trees.cgroup(f"docker/{trees.container}"), **first))
    scan = Found(pids, gpu=["train"])
    assert scan.roles() == {"first": SERVICE if "program" in first else SHELL, "train": RANK, "loader": HELPER}
    job = scan.job("train")
    assert (job.kind, job.id, job.folder) == (Kind.CONTAINER, f"task-{trees.job}", f"task-{trees.job}")


def test_a_job_of_dstack_is_seen_through_its_runner(trees: Forest) -> None:
    """sh, dstack-runner and sshd, an interactive shell in a session of its own, then what the user runs."""
    shell = member("shell", member("train", catch=["USR1"]), shell="{} & wait", interpreter=["bash", "-i", "-c"])
    runner = member("runner", shell, program="dstack-runner")
    first = member(
        "first",
        runner,
        member("sshd", program="sshd"),
        shell="{} & {} & wait",
        cgroup=trees.cgroup(f"system.slice/docker-{trees.container}.scope"),
    )
    scan = Found(trees.start(first), gpu=["train"])
    assert scan.roles() == {"first": SHELL, "runner": SERVICE, "sshd": SERVICE, "shell": SHELL, "train": RANK}
    assert scan.job("train").id == trees.container


def test_a_container_counts_if_it_works_or_declares_it(trees: Forest) -> None:
    """A container counts if it holds a GPU, has a rank's number or declares a signal. A web server that catches TERM
    does not, nor does DCGM.
    """
    ids = [f"{trees.container[1:]}{n}" for n in range(4)]
    groups = [trees.cgroup(f"docker/{name}") for name in ids]
    pids = trees.start(
        member(
            "host",
            member("web", catch=["TERM", "HUP"], cgroup=groups[0]),
            member("dcgm", program="dcgm-exporter", catch=["TERM"], cgroup=groups[1]),
            member(
                "declares", catch=["HUP"], cgroup=groups[2], env={"GPUWARDEN_SIGNAL": "HUP", "DSTACK_JOB_ID": "same"}
            ),
            member("claims", catch=["HUP"], cgroup=groups[3], env={"GPUWARDEN_SIGNAL": "HUP", "DSTACK_JOB_ID": "same"}),
        )
    )
    scan = Found(pids, gpu=["dcgm"])
    assert scan.roles() == {"declares": RANK, "claims": RANK}
    assert len({job.id for job in scan.jobs}) == 2, "two that call themselves the same are not one"


@pytest.mark.parametrize(
    ("env", "elsewhere"),
    [
        ({}, False),
        ({"WORLD_SIZE": "2"}, False),
        ({"WORLD_SIZE": "3"}, True),
        ({"OMPI_COMM_WORLD_SIZE": "16"}, True),
        ({"DSTACK_NODES_NUM": "1", "WORLD_SIZE": "2"}, False),
        ({"DSTACK_NODES_NUM": "2"}, True),
        ({"SLURM_JOB_NUM_NODES": "2", "WORLD_SIZE": "many"}, True),
    ],
)
def test_ranks_show_that_others_are_elsewhere_by_their_number_or_that_of_their_nodes(
    trees: Forest, env: Mapping[str, str], elsewhere: bool
) -> None:
    ranks = [member(f"rank{n}", env={"RANK": str(n), "LOCAL_RANK": str(n), **env}, catch=["TERM"]) for n in range(2)]
    group = trees.cgroup(f"docker/{trees.container}")
    pids = trees.start(member("first", *ranks, cgroup=group))
    scan = Found(pids, gpu=["rank0", "rank1"])
    assert scan.ranks() == {"rank0", "rank1"}
    assert scan.job("rank0").elsewhere is elsewhere


def test_a_container_in_a_job_is_the_job_s_if_its_group_is(trees: Forest) -> None:
    """Enroot and pyxis run in the step's group; what a job has Docker run is in Docker's."""
    inside = trees.cgroup(
        f"system.slice/slurmstepd.scope/job_{trees.job}/step_0/user/task_0/libpod-{trees.container}.scope"
    )
    docker = member(
        "docker",
        member("other", catch=["TERM"]),
        program="docker-init",
        cgroup=trees.cgroup(f"system.slice/docker-{trees.container}.scope"),
    )
    pids = trees.start(
        stepd(
            member("crun", member("train", catch=["TERM"]), program="crun", cgroup=inside, env=slurm(trees, 0)), docker
        )
    )
    scan = Found(pids, gpu=["train", "other"])
    assert [(job.kind, job.id) for job in scan.jobs] == [
        (Kind.SLURM, str(trees.job)),
        (Kind.CONTAINER, trees.container),
    ]
    assert scan.roles() == {"crun": SERVICE, "train": RANK, "docker": SERVICE, "other": RANK}


def test_unmanaged_processes_are_one_job_for_each_tree(trees: Forest) -> None:
    """Started over ssh from one shell: a launcher with two ranks, and another program. The desktop is nobody's job."""
    launcher = torchrun(worker(0), worker(1, member("loader")))
    other = member("other", member("crutch"), catch=["TERM"], comm="a) R (b\n\xe9")
    shell = member(
        "shell", launcher, other, member("idle"), member("Xorg", program="Xorg"), shell="{} & {} & {} & {} & wait"
    )
    pids = trees.start(member("sshd", shell, program="sshd"))
    scan = Found(pids, gpu=["rank0", "rank1", "other", "Xorg"])
    own = [job for job in scan.jobs if job.kind is Kind.PROCESS]
    assert {job.id for job in own} == {str(pids["launcher"]), str(pids["other"])}
    assert scan.roles() == {
        "launcher": LAUNCHER, "rank0": RANK, "rank1": RANK, "loader": HELPER, "other": RANK, "crutch": HELPER,
    }  # fmt: skip
    assert scan["other"].name == "a) R (b?\u00e9"


def test_a_parent_of_workers_that_catch_nothing_is_signalled(trees: Forest) -> None:
    """Structure alone does not show whether a process without a GPU launches or leads: what it started must be able to save."""
    for label, catches, expected in (("leads", [], {"leads"}), ("starts", ["TERM"], {"starts below"})):
        below = member(f"{label} below", catch=catches)
        pids = trees.start(stepd(member(label, below, catch=["TERM"], cgroup=v2(trees), env=slurm(trees, 0))))
        assert Found(pids, gpu=[f"{label} below"]).ranks() & set(pids) == expected
        trees.clear()


def test_a_host_whose_processes_come_and_go_is_read_all_the_same(trees: Forest) -> None:
    group = v2(trees)
    storm = "while :; do for n in 1 2 3 4 5; do /bin/true & done; wait; done"
    pids = trees.start(
        stepd(member("train", catch=["TERM"], cgroup=group, env=slurm(trees, 0)), member("storm", shell=storm, cgroup=group, env=slurm(trees, 1)))
    )  # fmt: skip
    reader = ReceiversReader(PROC)
    for _ in range(50):
        assert Found(pids, gpu=["train"], reader=reader)["train"].role is RANK
