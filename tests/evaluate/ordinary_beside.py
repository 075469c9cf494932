"""What happens on healthy nodes beside their GPUs, and to DCGM's engine. None of it is a fault. All rates are assumed."""

from __future__ import annotations

from dataclasses import replace

from evaluate.beside import DCGM, FABRIC_MANAGER, LOCAL, PERSISTENCED, SHARED
from evaluate.clockwork import Process
from evaluate.node import Node
from gpuwarden_collectors.dcgm.facts import DcgmProblem, DcgmProblemKind
from gpuwarden_collectors.facts import GpuProcess
from gpuwarden_collectors.host_facts import PluginState
from gpuwarden_collectors.slurm.jobs_facts import Job, JobProcess, JobsFacts

# --- boot


def boot(node: Node) -> Process:
    """DCGM's engine and the fabric manager wait for the driver; ports train for up to 40 seconds."""
    if node.engine is not None:
        node.engine.stop()
    if node.beside is not None:
        beside = node.beside
        beside.service(FABRIC_MANAGER, active="activating", sub="start")
        for port in range(len(beside.ports)):
            beside.port(port, state="init", physical_state="polling")
        yield node.dice.uniform(0.0, 40.0)
        for port in range(len(beside.ports)):
            beside.port_comes_up(port)


def booted(node: Node) -> None:
    if node.engine is not None:
        node.engine.start(node.now)
    if node.beside is not None:
        node.beside.service(FABRIC_MANAGER, active="active", sub="running")


# --- DCGM


def engine_restart(node: Node) -> Process:
    if node.engine is not None:
        node.engine.stop()
        yield node.dice.uniform(2.0, 30.0)
        node.engine.start(node.now)


def engine_pauses(node: Node) -> Process:
    """A check that takes too long, once."""
    if node.engine is not None and node.engine.runs:
        node.engine.hung = True
        yield node.dice.uniform(1.0, 20.0)
        node.engine.hung = False


def watches_changed(node: Node) -> Process:
    """Somebody runs `dcgmi health`, which switches our watches too; they are set again in the same pass."""
    if node.engine is not None:
        changed = DcgmProblem(kind=DcgmProblemKind.WATCHES_CHANGED, text="another client changed our health watches")
        node.engine.problems = (changed,)
        yield 15.0
        node.engine.problems = ()


# --- ports, mounts, memory, processes, services, site checks


def port_bounce(node: Node) -> Process:
    """A switch reboots: every port that leads to it is down for a moment."""
    if node.beside is None:
        return
    ports = range(len(node.beside.ports)) if node.dice.random() < 0.5 else [node.dice.randrange(len(node.beside.ports))]
    for port in ports:
        node.beside.port_goes_down(port)
    yield node.dice.uniform(1.0, 45.0)
    for port in ports:
        node.beside.port_comes_up(port)


def slow_mount(node: Node) -> Process:
    """A busy server does not answer for some seconds."""
    if node.beside is not None:
        path = node.dice.choice((SHARED, LOCAL))
        node.beside.hung[path] = node.now.boottime
        yield node.dice.uniform(1.0, 25.0)
        node.beside.hung.pop(path, None)


def disk_fills(node: Node) -> Process:
    """Jobs leave their scratch files: full enough to notice, and no more."""
    if node.beside is not None:
        total = node.beside.mounts[LOCAL].bytes_total or 1
        left = int(total * node.dice.uniform(0.07, 0.3))
        node.beside.mount(LOCAL, bytes_free=left, bytes_available=left)
        yield node.dice.uniform(3600.0, 40_000.0)
        node.beside.mount(LOCAL, bytes_free=total // 2, bytes_available=total // 2)


def memory_pressure(node: Node) -> Process:
    """A job that loads its data: most memory is in use, sometimes nearly all of it for a minute, and one process is killed."""
    if node.beside is None:
        return
    before = node.beside.memory
    share = node.dice.uniform(0.03, 0.1)
    node.beside.memory = replace(before, available_bytes=int(before.total_bytes * share))
    yield node.dice.uniform(600.0, 20_000.0)
    node.beside.memory = replace(before, available_bytes=int(before.total_bytes * 0.01))
    yield node.dice.uniform(5.0, 60.0)
    kills = (before.oom_kills or 0) + node.dice.randint(0, 2)
    node.beside.memory = replace(before, oom_kills=kills)


def corrected_memory_errors(node: Node) -> Process:
    if node.beside is not None:
        first, *rest = node.beside.memory.controllers
        corrected = (first.corrected or 0) + node.dice.randint(1, 20)
        node.beside.memory = replace(node.beside.memory, controllers=(replace(first, corrected=corrected), *rest))
        yield 0.0


def waiting_process(node: Node) -> Process:
    """Put a process in D state for as long as its file system takes; some hold a GPU, one is the driver's own."""
    if node.beside is not None:
        pid = node.dice.randrange(1000, 4_000_000)
        comm = node.dice.choice(("python3", "python3", "tar", "nvidia-smi"))
        node.beside.hang_process(node.now, comm=comm, gpu=node.dice.random() < 0.7, pid=pid)
        yield node.dice.uniform(10.0, 240.0)
        node.beside.stuck.pop(pid, None)


def slow_exit(node: Node) -> Process:
    """A job is over, and its processes need some seconds to let go of their GPU."""
    n, pid = node.dice.randrange(len(node.gpus)), node.dice.randrange(1000, 4_000_000)
    if n in node.reserved:  # another job is on it
        return
    now = node.now.boottime
    held = JobProcess(pid=pid, uid=1000, job=4711, known_from="cgroup", ended=now)
    node.put(n, processes=(GpuProcess(pid=pid),))
    node.jobs = JobsFacts(jobs=(Job(id=4711, uid=1000, ended=now),), processes=(held,))
    yield node.dice.uniform(1.0, 18.0)
    node.put(n, processes=())
    node.jobs = JobsFacts()


def service_restart(node: Node) -> Process:
    """Restart a service by hand, or by a package upgrade."""
    if node.beside is not None:
        unit = node.dice.choice((FABRIC_MANAGER, PERSISTENCED, DCGM))
        node.beside.service(unit, active="deactivating", sub="stop-sigterm")
        yield node.dice.uniform(0.5, 10.0)
        node.beside.service(unit, active="activating", sub="start")
        yield node.dice.uniform(0.5, 30.0)
        node.beside.service(unit, active="active", sub="running")


def check_hiccup(node: Node) -> Process:
    """A site check that does not end in time, once."""
    if node.beside is not None:
        well = node.beside.check
        node.beside.check = replace(well, state=PluginState.UNKNOWN, exit_code=None, unknown_runs=1, text="did not end")
        yield 300.0
        node.beside.check = well


PER_DAY = {
    engine_restart: 0.3,
    engine_pauses: 0.2,
    watches_changed: 0.2,
    port_bounce: 0.2,
    slow_mount: 0.5,
    disk_fills: 0.5,
    memory_pressure: 0.5,
    corrected_memory_errors: 0.5,
    waiting_process: 1.0,
    slow_exit: 1.0,
    service_restart: 0.3,
    check_hiccup: 0.2,
}
