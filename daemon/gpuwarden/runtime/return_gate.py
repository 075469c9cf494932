"""The return gate in the daemon: made and asked only where the configuration wants it, so that others do not load it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from gpuwarden.engine.enforcement import Enforcement
from gpuwarden.engine.engine import Engine
from gpuwarden.engine.journal import Journal
from gpuwarden.health.model import Verdict
from gpuwarden.ledger.ledger import Ledger
from gpuwarden.policy.situation import Situation
from gpuwarden.runtime.wiring import Site
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.facts import Stamp

if TYPE_CHECKING:
    from gpuwarden.engine.return_gate import ReturnGate, Turn

PROBE_AND_START = 120.0
"""Seconds that the mark of a test stays beyond `test.gate_timeout`."""


class Service(Protocol):
    """The parts of the daemon that the gate needs."""

    journal: Journal
    ledger: Ledger
    enforcement: Enforcement
    verdict: Verdict


def return_gate(site: Site, service: Service, request_step: Callable[[], None], clock: Clock) -> ReturnGate | None:
    """The test before a restoration. None if none is configured, and in mode observe, in which nothing is restored."""
    if not site.gate_level or site.config.mode != "enforce":
        return None
    from gpuwarden.engine.return_gate import GateOptions, ReturnGate  # noqa: PLC0415 - most daemons have no gate, and their memory none of it
    from gpuwarden_collectors.active_test.level import Level  # noqa: PLC0415 - as above

    test = site.config.test  # type: ignore[attr-defined]
    options = GateOptions(
        socket=test.gate_socket, level=Level(site.gate_level), within=test.gate_timeout, turn=_turn(site)
    )
    return ReturnGate(
        options,
        append=service.journal.append,
        gate=lambda: service.enforcement.state.gate,
        could_test=lambda: service.enforcement.state.testable,
        gpus=lambda: service.verdict.gpus,
        changed=request_step,
        committed=service.ledger.commit,
        boot_id=site.boot_id,
        clock=clock,
    )


def _turn(site: Site) -> Turn | None:
    """Slurm counts how many nodes are tested; where there is none, nobody does."""
    if site.slurm is None:
        return None
    from gpuwarden.actuators.gate_mark import GateMark  # noqa: PLC0415 - as above

    config, test = site.config, site.config.test  # type: ignore[attr-defined]
    return GateMark(
        site.slurm,
        config.slurm,
        at_once=test.at_once,
        slurm_user=test.slurm_user,
        lasts=test.gate_timeout + PROBE_AND_START,
        pause=config.breaker.recount_after,
    )


def with_gate(situation: Situation, gate: ReturnGate, engine: Engine, now: Stamp) -> Situation:
    """Add to the situation what the gate needs to know."""
    nvml, lease = engine.view.nvml.facts, engine.state.lease
    return replace(
        situation,
        gate_run=gate.run,
        testing=lease is not None and lease.holds(now),
        gpus_used=nvml is None or any(gpu.processes for gpu in nvml.gpus),
    )
