"""Faults of DCGM's engine, and of what a node has beside its GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from evaluate.beside import IMEX, LOCAL, SHARED, Beside, service
from evaluate.clockwork import Process
from evaluate.engine import FAIL, NVLINK, Engine
from evaluate.fault_class import Strike
from evaluate.node import Node
from gpuwarden_collectors.dcgm.facts import DcgmProblem, DcgmProblemKind
from gpuwarden_collectors.host_facts import PluginState


def _engine(node: Node) -> Engine:
    assert node.engine is not None, "this story needs a node with DCGM"
    return node.engine


def _beside(node: Node) -> Beside:
    assert node.beside is not None, "this story needs a whole node"
    return node.beside


# --- DCGM


def engine_hangs(node: Node, n: int) -> Process:
    _engine(node).hung = True
    yield 0.0


def engine_dies(node: Node, n: int) -> Process:
    _engine(node).stop()
    yield 0.0


def engine_reads_nothing(node: Node, n: int) -> Process:
    _engine(node).blind = True
    yield 0.0


def engine_empty(node: Node, n: int) -> Process:
    """Empty the engine: it was started before the driver, and stays without GPUs."""
    _engine(node).empty = True
    yield 0.0


def engine_impaired(kind: DcgmProblemKind) -> Strike:
    def strike(node: Node, n: int) -> Process:
        _engine(node).problems = (DcgmProblem(kind=kind, text=kind.value),)
        yield 0.0

    return strike


def engine_loses_gpu(node: Node, n: int) -> Process:
    _engine(node).lost.add(n)
    yield 0.0


def engine_reports(system: int, health: int, code: int) -> Strike:
    """An incident of this GPU that nothing else shows."""

    def strike(node: Node, n: int) -> Process:
        _engine(node).reported[n] = [(system, health, code, None, None)]
        yield 0.0

    return strike


def imex_unhealthy(node: Node, n: int) -> Process:
    """Let IMEX fail on a node of a rack that is one NVLink domain and whose IMEX runs on the hosts."""
    for other in range(len(node.gpus)):
        node.give(other, fabric_in_cluster=1, fabric_clique=32766)
    _beside(node).services[IMEX] = service(IMEX)
    yield 60.0
    _engine(node).node_reports = [(NVLINK, FAIL, 122, None, None)]
    yield 0.0


def engine_alone_has_xid(number: int) -> Strike:
    """Return an Xid that only the engine has: neither the kernel log nor NVML's events were read in time."""

    def strike(node: Node, n: int) -> Process:
        _engine(node).xid(n, number)
        yield 0.0

    return strike


# --- ports


def port_goes_down(node: Node, n: int) -> Process:
    _beside(node).port_goes_down(node.dice.randrange(8))
    yield 0.0


def adapter_gone(node: Node, n: int) -> Process:
    del _beside(node).ports[node.dice.randrange(8)]
    yield 0.0


def port_flaps(node: Node, n: int) -> Process:
    """Let a port go down several times, each time so briefly that no pass need see it."""
    port = node.dice.randrange(8)
    for _ in range(6):
        _beside(node).port_goes_down(port)
        yield 2.0
        _beside(node).port_comes_up(port)
        yield node.dice.uniform(60.0, 600.0)


def port_slow(node: Node, n: int) -> Process:
    _beside(node).port(node.dice.randrange(8), rate_gbps=200.0)
    yield 0.0


# --- mounts


def mount_hangs(path: str) -> Strike:
    def strike(node: Node, n: int) -> Process:
        _beside(node).hung[path] = node.now.boottime
        yield 0.0

    return strike


def mount_changes(path: str, **values: Any) -> Strike:
    def strike(node: Node, n: int) -> Process:
        _beside(node).mount(path, **values)
        yield 0.0

    return strike


FULL = mount_changes(LOCAL, bytes_free=40 << 30, bytes_available=40 << 30)
NO_INODES = mount_changes(LOCAL, inodes_free=1000)
UNMOUNTED = mount_changes(
    SHARED, mounted=False, bytes_total=None, bytes_free=None, bytes_available=None, inodes_total=None, inodes_free=None
)
STALE = mount_changes(SHARED, error="Stale file handle", bytes_total=None, bytes_free=None, bytes_available=None)
READ_ONLY = mount_changes(LOCAL, read_only=True)


# --- memory, processes, services, site checks


def memory_low(node: Node, n: int) -> Process:
    beside = _beside(node)
    beside.memory = replace(beside.memory, available_bytes=beside.memory.total_bytes // 100)
    yield 0.0


def memory_loses_data(node: Node, n: int) -> Process:
    beside = _beside(node)
    first, *rest = beside.memory.controllers
    beside.memory = replace(beside.memory, controllers=(replace(first, uncorrected=1), *rest))
    yield 0.0


def process_sticks(comm: str) -> Strike:
    def strike(node: Node, n: int) -> Process:
        _beside(node).hang_process(node.now, comm=comm, gpu=True)
        yield 0.0

    return strike


def service_fails(unit: str) -> Strike:
    def strike(node: Node, n: int) -> Process:
        _beside(node).service(unit, active="failed", sub="failed", result="exit-code")
        yield 0.0

    return strike


def service_restarts(unit: str) -> Strike:
    """Return a fault in which the unit is started again and again, and runs at most passes."""

    def strike(node: Node, n: int) -> Process:
        for restarts in range(1, 9):
            _beside(node).service(unit, restarts=restarts)
            yield 60.0

    return strike


def check_reports(state: PluginState, code: int | None) -> Strike:
    def strike(node: Node, n: int) -> Process:
        beside = _beside(node)
        beside.check = replace(beside.check, state=state, exit_code=code, text="ERROR: nhc: the reason")
        yield 0.0

    return strike


def check_tells_nothing(node: Node, n: int) -> Process:
    beside = _beside(node)
    beside.check = replace(beside.check, state=PluginState.UNKNOWN, exit_code=None, text="did not end", unknown_runs=3)
    yield 0.0
