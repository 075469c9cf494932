"""What a worker has measured so far. It is kept when the test ends early: a wrong word remains a finding."""

from __future__ import annotations

from dataclasses import field

from gpuwarden_collectors.active_test.chunks import KernelTally
from gpuwarden_collectors.active_test.facts import GpuMeasured, Obstacle, PcieMeasured, PeerMeasured
from gpuwarden_collectors.active_test.kernels import layout
from gpuwarden_collectors.active_test.memory import MemoryTally
from gpuwarden_collectors.active_test.others import Others
from gpuwarden_collectors.dataclass import dataclass


@dataclass(slots=True)
class Results:
    """The results of one GPU so far."""

    others: Others | None = None
    pcie: PcieMeasured | None = None
    peers: list[PeerMeasured] = field(default_factory=list)
    kernels: list[KernelTally] = field(default_factory=list)
    memory: MemoryTally | None = None
    text: str = ""
    """The parts of the test that were left out."""

    def measured(self, obstacle: Obstacle | None = None, text: str = "") -> GpuMeasured:
        """Returns all results as facts; `obstacle` and `text` say why the test ended early."""
        others = self.others
        return GpuMeasured(
            obstacle=obstacle,
            text=text or self.text,
            memory=self.memory.facts() if self.memory is not None else None,
            kernels=tuple(facts for tally in self.kernels if (facts := tally.facts()) is not None),
            pcie=self.pcie,
            peers=tuple(self.peers),
            temperature=others.temperature if others is not None else None,
            temperature_most=others.temperature_most if others is not None else None,
            reasons=others.reasons if others is not None else 0,
            kernels_version=layout.VERSION,
        )
