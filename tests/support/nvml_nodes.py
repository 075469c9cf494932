"""A node of the fake NVML library with our reader on it, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuwarden_collectors.facts import GpuFacts, NvmlFacts
from gpuwarden_collectors.nvml.options import NvmlOptions
from gpuwarden_collectors.nvml.reader import NvmlReader
from support.fake_nvml_library import CONTROL_VARIABLE, FakeNvml

MINUTE = 60.0


class Node:
    """`fake` sets what the GPUs answer, `read` asks them; `now` is the clock by which slow answers are kept."""

    def __init__(self, fake: FakeNvml) -> None:
        self.fake = fake
        self.now = 1000.0
        self.reader = NvmlReader(NvmlOptions(library=str(fake.library)), clock=lambda: self.now)

    def read(self, *, after: float = 5.0) -> NvmlFacts:
        self.now += after
        return self.reader.read()

    def gpu(self, index: int = 0, *, after: float = 5.0) -> GpuFacts:
        return self.read(after=after).gpus[index]


@contextmanager
def node_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """Eight healthy H100, not yet connected to."""
    node = Node(FakeNvml.build(folder))
    monkeypatch.setenv(CONTROL_VARIABLE, str(node.fake.control))
    yield node
    node.fake.clear()
    node.reader.close()
