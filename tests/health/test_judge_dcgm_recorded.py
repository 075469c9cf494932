"""Answers of a real nv-hostengine 4.6.0, judged: what it reported of healthy simulated GPUs must be no fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpuwarden.health.model import Health
from gpuwarden_collectors.dcgm.facts import DcgmGpuStatus
from support.dcgm_hosts import DcgmHost
from support.hosts import WALL, slot

RECORDED = Path(__file__).parents[1] / "data" / "dcgm-4.6.0"
LOOKBACK = 60.0  # seconds over which the engine compares two samples
SAMPLES, PASS = 30.0, 15.0


def step(story: str, name: str) -> Any:
    steps = json.loads((RECORDED / f"{story}.json").read_text())
    (answer,) = (each["answer"] for each in steps if each["step"] == name)
    return answer


def test_counters_that_a_reset_of_the_gpu_set_to_0_are_no_fault() -> None:
    """The counters fail or warn for the window of the engine, a sample and a pass longer as we see it."""
    host = DcgmHost(2)
    host.run(120)
    incidents = step("falls", "all counters are 0")["check"]["incidents"]
    assert {code for _, _, code, *_ in incidents} == {3, 10, 12, 70, 71}
    for _, health, code, *_ in incidents:
        host.incident(code, health=health)
    worst = [host.run(PASS) and host.health for _ in range(int((LOOKBACK + SAMPLES + PASS) / PASS))]
    host.silence()
    host.run(300)
    assert [*worst, host.health] == [Health.HEALTHY] * (len(worst) + 1)


def test_what_a_gpu_brought_back_from_before_our_connection_is_history() -> None:
    """The GPU was lost when we connected, with an Xid 79 of any age that the engine keeps, and is well again."""
    host = DcgmHost(2)
    host.run(120)
    reader = step("lost", "back, for the connection that never saw it")["reader"]
    (incident,) = reader["incidents"]
    assert (incident["code"], incident["xid"], incident["preexisting"]) == (120, 79, True)
    host.incident(120, gpu=1, xid=79, latched=True, preexisting=True)
    host.run(300)
    assert (host.health, host.codes) == (Health.HEALTHY, [])


def test_a_last_xid_that_the_engine_kept_while_it_had_let_go_of_the_driver_is_history() -> None:
    """Detached for an upgrade, in which the daemon was started; attached again the field still has the Xid of before."""
    reader = step("detached", "attached again, for the new connection")["reader"]
    assert reader["gpus"][1]["readings"]["last_xid"] == 79
    host = DcgmHost(2)
    host.engine_gpu(1, status=DcgmGpuStatus.DETACHED, watched=False)
    host.run(60)
    host.engine_gpu(1, status=DcgmGpuStatus.OK, watched=True)
    host.field(1, last_xid=79, last_xid_at=WALL + host.uptime - 2 * 3600)
    host.run(300)
    assert (host.health, host.codes) == (Health.HEALTHY, [])


def test_an_xid_that_came_while_a_diagnostic_had_paused_the_engine_is_new() -> None:
    paused = step("paused", "paused")
    assert (paused["engine"]["status"][:2], paused["reader"]["incidents"]) == ([6, 6], [])
    host = DcgmHost(2)
    host.run(60)
    host.status(1, DcgmGpuStatus.DISABLED)
    host.run(3600)
    host.status(1, DcgmGpuStatus.OK)
    host.field(1, last_xid=48, last_xid_at=WALL + host.uptime - 3000)
    host.run(60)
    assert str(host.finding().key) == f"xid.48@gpu/{slot(1)}"
