"""Faults of single NVLinks, ports and adapters, of readings, and of what only lines of the kernel log besides Xids show."""

from __future__ import annotations

from dataclasses import replace

from evaluate.clockwork import Process
from evaluate.fault_class import Strike
from evaluate.node import Node
from gpuwarden_collectors.event_facts import KernelLineEvent, LineKind
from gpuwarden_collectors.facts import CallError
from support.hosts import slot


def line(node: Node, kind: LineKind, *, at: str = "", part: str = "") -> KernelLineEvent:
    return KernelLineEvent(at=node.now, what=kind, slot=at, part=part, text=kind.replace("_", " "))


def firmware_dies(kind: LineKind) -> Strike:
    """Return a fault in which the adapter's firmware dies; its port stays active."""

    def strike(node: Node, n: int) -> Process:
        assert node.beside is not None, "this story needs a whole node"
        node.say_lines(line(node, kind, at=node.beside.ports[n % 8].slot))
        yield 0.0

    return strike


def lockups(part: str) -> Strike:
    """Return a fault with one lockup each 28 s, for a quarter of an hour."""

    def strike(node: Node, n: int) -> Process:
        for _ in range(32):
            node.say_lines(
                line(node, LineKind.SOFT_LOCKUP), *([line(node, LineKind.SOFT_LOCKUP, part=part)] if part else [])
            )
            yield 28.0

    return strike


def drive_gone(node: Node, n: int) -> Process:
    node.say_lines(line(node, LineKind.NVME_FAILED, part=f"nvme{n}"))
    yield 0.0


def reset_advised(node: Node, n: int) -> Process:
    node.say_lines(line(node, LineKind.GPU_RESET_ADVISED, at=slot(n)))
    yield 0.0


def link_recovers(node: Node, n: int) -> Process:
    """Link 2 had done so hundreds of times before gpuwarden came; it goes on each 21 minutes."""
    for count in range(505, 520):
        links = node.links_up()
        node.put(n, links=tuple(replace(each, recoveries=count if each.link == 2 else 0) for each in links))
        yield 60.0 if count == 505 else 1260.0


def links_never_up(node: Node, n: int) -> Process:
    """Replace the node by one with a GPU that never had a link; its daemon starts for the first time."""
    node.stop_daemon()
    node.train(n, down=range(node.link_count))
    node.start_daemon(remembers=False)
    yield 0.0


def symbol_errors(node: Node, n: int) -> Process:
    """20 a second, at one port of eight."""
    assert node.beside is not None, "this story needs a whole node"
    for count in range(0, 60_000, 200):
        node.beside.port(n % 8, symbol_error=count)
        yield 10.0


def adapter_loses_lanes(node: Node, n: int) -> Process:
    assert node.beside is not None, "this story needs a whole node"
    node.beside.adapter_narrows(n % 8, lanes=8)
    yield 0.0


def driver_slows_down(node: Node, n: int) -> Process:
    """Let each call about one GPU take longer."""
    node.put(n, read_seconds=2.0)
    yield 0.0


def readings_lost(node: Node, n: int) -> Process:
    calls = ("nvmlDeviceGetPerformanceState", "nvmlDeviceGetUtilizationRates")
    node.change(n, performance_state=None, utilization_gpu=None)
    node.put(n, errors=tuple(CallError(call=call, code=999, text="Unknown Error") for call in calls))
    yield 0.0
