"""The role of a process by the name of its program. For other programs the position in the tree decides (roles.py)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gpuwarden_collectors.receivers.facts import Role

_TABLE: Mapping[Role, str] = {
    Role.SHELL: "sh bash dash ash zsh fish ksh mksh csh tcsh busybox",
    Role.LAUNCHER: """
        srun salloc sbatch mpirun mpiexec mpirun_rsh mpiexec.hydra hydra_pmi_proxy hydra_bstrap_proxy orterun orted
        prte prterun prted prun jsrun flux pdsh ssh parallel torchrun accelerate accelerate-launch deepspeed ft_launcher
        composer horovodrun colossalai torchx fabric ray raylet gcs_server dask dask-worker dask-scheduler
        timeout time env nice nohup stdbuf numactl taskset setsid script unbuffer xargs watch sudo su runuser setpriv uv uvx
        poetry pixi conda mamba micromamba apptainer singularity starter starter-suid enroot unshare nsenter
        bwrap nsys nsys-launcher ncu strace ltrace gdb perf rr valgrind py-spy
    """,
    Role.SERVICE: """
        init systemd slurmstepd slurmd sshd sshd-session sshd-auth dropbear login cron crond tmux screen
        dstack-runner dstack-shim tini tini-static docker-init dumb-init catatonit podman-init
        appinit sinit s6-svscan s6-supervise supervisord runsv runsvdir pause dockerd containerd containerd-shim containerd-shim-runc-v2 conmon conmonrs crun runc podman docker
        crio kubelet nvidia-cuda-mps-control nvidia-cuda-mps-server nvidia-persistenced nvidia-fabricmanager nv-fabricmanager
        nv-hostengine dcgm-exporter dcgmi nvidia-smi nvidia-imex Xorg Xwayland gnome-shell kwin_x11 gpuwarden
        jupyter jupyter-lab jupyter-notebook jupyter-server jupyterhub-singleuser code-server wandb-core wandb-service
        tensorboard
    """,
}
"""Launchers include programs that only start one other program, wait for it, and forward or handle signals."""

_MODULES: Mapping[Role, str] = {
    Role.LAUNCHER: """
        torch.distributed.run torch.distributed.launch accelerate.commands.launch accelerate.commands.accelerate_cli
        deepspeed.launcher.runner deepspeed.launcher.launch deepspeed.launcher.launcher_helper composer.cli.launcher
        nvidia_resiliency_ext.fault_tolerance.launcher horovod.runner.launch lightning.fabric.cli lightning_fabric.cli
        ray.scripts.scripts distributed.cli.dask_worker
    """,
    Role.SERVICE: """
        gpuwarden gpuwarden.cli.main jupyter jupyterlab notebook tensorboard tensorboard.main wandb
        multiprocessing.resource_tracker
    """,
}
"""`python -m NAME`, or the path of that file."""

_RAY_WORKER = "ray::"
"""What Ray calls its workers: `ray::IDLE`, then `ray::RayTrainWorker.run`."""
_VLLM = "VLLM::"
"""What vLLM calls its processes on GPUs: `VLLM::EngineCore`, `VLLM::Worker_TP0`."""
_JVM = "java"

_PROGRAMS = {name: role for role, names in _TABLE.items() for name in names.split()}
_CUT = {name[:15]: role for name, role in _PROGRAMS.items()}  # the kernel truncates names to 15 bytes
_BY_MODULE = {name: role for role, names in _MODULES.items() for name in names.split()}
_PYTHON = re.compile(r"(?:python|pypy|pythonw)[0-9.]*t?d?")
_OTHER_INTERPRETERS = ("perl", "ruby", "node")
_TAKE_A_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def named(name: str, command: Sequence[str]) -> Role | None:
    """Returns the role by the command line, or None if it is unknown.

    The kernel's name of the process counts only if the command line is inconclusive.
    """
    program = _base(command[0]) if command else ""
    if _PYTHON.fullmatch(program):
        return _python(command[1:])
    if program in _OTHER_INTERPRETERS:
        return _PROGRAMS.get(_base(next(iter(command[1:]), "")))
    return _PROGRAMS.get(program) or _CUT.get(_base(name))


def ends_by(name: str) -> frozenset[str]:
    """Returns the signals that the framework of a process of this name handles by ending it at once: such a handler saves nothing.

    A worker of Ray exits with 1 within milliseconds of SIGTERM (its own handler, in ray/_private/worker.py; seen with 2.60).
    The engine of vLLM and its workers exit on SIGTERM with all their requests, while its API server would let them end
    (vllm/v1/engine/core.py, multiproc_executor.py).
    Every JVM exits on SIGTERM and SIGHUP, and crashes on SIGUSR2, with which it suspends its threads (seen with OpenJDK 17).
    """
    if name == _JVM:
        return frozenset({"TERM", "HUP", "USR2"})
    return frozenset({"TERM"}) if name.startswith((_RAY_WORKER, _VLLM)) else frozenset()


def _python(arguments: Sequence[str]) -> Role | None:
    """Returns the role of a Python process, by its module or script; None if it has neither."""
    rest = iter(arguments)
    for argument in rest:
        if argument == "-m":
            return _module(next(rest, ""))
        if argument.startswith("-m") and len(argument) > 2:
            return _module(argument[2:])
        if argument in _TAKE_A_VALUE:
            next(rest, "")
        elif argument == "-c":
            return None
        elif not argument.startswith("-"):
            dotted = argument.removesuffix(".py").replace("/", ".")
            roles = (role for module, role in _BY_MODULE.items() if "." in module and dotted.endswith("." + module))
            return next(roles, _PROGRAMS.get(_base(argument)))
    return None


def _module(name: str) -> Role | None:
    return _BY_MODULE.get(name.removesuffix(".__main__"))


def _base(argument: str) -> str:
    """Removes the folder, the dash of a login shell, and what follows a name (`sshd: alice@pts/0`, `tmux: server`)."""
    return argument.partition(": ")[0].rpartition("/")[2].removeprefix("-")
