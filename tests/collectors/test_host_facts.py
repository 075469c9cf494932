"""The facts of a host go through the codec like all others: to a worker, into a trace and back."""

from __future__ import annotations

import json

import pytest

from gpuwarden_collectors.codec import from_wire, to_wire
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.host_facts import (
    InfinibandFacts,
    MemoryController,
    MemoryFacts,
    MountFacts,
    PluginFacts,
    PluginResult,
    PluginState,
    PortFacts,
    ProcessesFacts,
    ServiceFacts,
    ServicesFacts,
    StorageFacts,
    StuckProcess,
)

FACTS = [
    InfinibandFacts(ports=(PortFacts(device="mlx5_0", port=1, state="active", rate_gbps=400.0, link_downed=2),)),
    StorageFacts(mounts=(MountFacts(path="/größe", bytes_total=1 << 60), MountFacts(path="/gone", hung_for=3.5))),
    MemoryFacts(total_bytes=1 << 41, controllers=(MemoryController(name="mc0", uncorrected=1),)),
    ProcessesFacts(stuck=(StuckProcess(pid=7, comm="a?b", seen_for=60.0, gpu=None),)),
    ServicesFacts(services=(ServiceFacts(unit="a.service", active="failed"),)),
    PluginFacts(results=(PluginResult(name="nhc", state=PluginState.FAILURE, at=Stamp(1.0, 2.0), exit_code=1),)),
]


@pytest.mark.parametrize("facts", FACTS, ids=lambda facts: type(facts).__name__)
def test_facts_come_back_as_they_were(facts: object) -> None:
    assert from_wire(type(facts), json.loads(json.dumps(to_wire(facts)))) == facts
