"""Any story of NVML and DCGM ends alike, whether or not the daemon was restarted in the middle of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.health.model import Severity
from gpuwarden_collectors.base import PassOutcome
from gpuwarden_collectors.dcgm.facts import DcgmGpuStatus, DcgmProblemKind
from support.dcgm_hosts import CONNECTION_LOST, DcgmHost

Act = Callable[[DcgmHost], None]

ACTS: dict[str, Act] = {
    "dcgm: memory errors": lambda host: host.incident(4),
    "dcgm: row remap failed": lambda host: host.incident(80, gpu=1),
    "dcgm: memory beyond repair": lambda host: host.field(1, memory_unrepairable=1),
    "dcgm: crc errors": lambda host: host.incident(13, health=10),
    "dcgm: link down": lambda host: host.incident(14, link=3),
    "dcgm: capping": lambda host: host.incident(12, health=10),
    "dcgm: nothing": lambda host: host.silence(),
    "dcgm: lost a GPU": lambda host: host.status(1, DcgmGpuStatus.LOST),
    "dcgm: has it again": lambda host: host.status(1, DcgmGpuStatus.OK),
    "dcgm: blind": lambda host: host.problem(DcgmProblemKind.BLIND),
    "dcgm: gone": lambda host: host.away(PassOutcome.FAILED, CONNECTION_LOST),
    "dcgm: absent": lambda host: host.away(PassOutcome.ABSENT, "no nv-hostengine"),
    "dcgm: answers": lambda host: host.back(),
    "nvml: memory errors": lambda host: host.change(0, ecc_uncorrected_volatile=2),
    "nvml: none": lambda host: host.change(0, ecc_uncorrected_volatile=0),
    "nvml: no such reading": lambda host: host.change(0, ecc_uncorrected_volatile=None),
    "nvml: row remap failed": lambda host: host.change(1, remapped_rows_failure=1),
    "time": lambda host: None,
}
STEP = 40.0
SETTLED = 1500.0


def played(story: list[str], *, restarted_after: int | None = None) -> DcgmHost:
    host = DcgmHost(2)
    host.run(120, every=15)
    for place, act in enumerate(story):
        host.uptime += 5
        ACTS[act](host)
        host.run(STEP, every=15)
        if place == restarted_after:
            host.restart_daemon()
    # While DCGM is away or hangs, a daemon that is started again cannot know what the other read last.
    host.back()
    host.status(1, DcgmGpuStatus.OK)
    host.dcgm = replace(host.dcgm, problems=())
    host.run(SETTLED, every=15)
    return host


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(story=st.lists(st.sampled_from(sorted(ACTS)), min_size=1, max_size=8), data=st.data())
def test_a_restart_anywhere_changes_no_verdict(story: list[str], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(story) - 1))
    whole, resumed = played(story), played(story, restarted_after=cut)
    assert {(str(f.key), f.severity) for f in whole.findings} == {(str(f.key), f.severity) for f in resumed.findings}


QUIET = ["dcgm: capping", "dcgm: nothing", "dcgm: gone", "dcgm: absent", "dcgm: answers", "time", "dcgm: blind"]


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(story=st.lists(st.sampled_from([*QUIET, "dcgm: lost a GPU", "dcgm: has it again"]), max_size=12))
def test_nothing_that_befalls_the_engine_alone_is_ever_a_failure(story: list[str]) -> None:
    host = played(story)
    raised = [event for event in host.ledger if event.kind == "raised"]
    assert [event for event in raised if event.data["severity"] == Severity.FAILURE] == []
