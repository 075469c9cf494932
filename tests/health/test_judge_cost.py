"""What a pass over a healthy node costs, counted in calls: time depends on the machine, the number of calls on the code."""

from __future__ import annotations

import sys
from collections.abc import Callable

from support.hosts import Host

CALLS = 1550
"""Of Python functions, for eight GPUs with 18 NVLinks each: a tenth more than there are on CPython 3.11, which counts comprehensions too."""


def calls_of(work: Callable[[], object]) -> int:
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


def test_nothing_is_computed_again_and_again_while_a_node_is_healthy() -> None:
    host = Host(8)
    host.run(600.0)
    nvml, pci = host.nvml(), host.pci()
    host.uptime += 5.0
    assert calls_of(lambda: host.step(nvml=nvml, pci=pci)) <= CALLS
    assert not host.findings
